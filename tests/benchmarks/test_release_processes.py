"""Which processes are release processes, which of a job's are killed, and which shards a release process has."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from benchmarks.release_processes import is_forwarder, is_release, kill_driver, release_children, shards_in
from benchmarks.waiting import wait_until
from tests.processes import runs

SLEEP = "import time; time.sleep(300)"
# A driver with a release process, a forwarder and a worker.
DRIVER = f"""
import subprocess, sys
module = "streaming.processes.supervised"
for arguments in ([module, "7", "release process"], [module, "8", "forwarder"], ["worker"]):
    subprocess.Popen([sys.executable, "-c", "{SLEEP}", *arguments])
{SLEEP}
"""


@pytest.fixture
def driver() -> Iterator[psutil.Process]:
    with subprocess.Popen([sys.executable, "-c", DRIVER]) as process:
        root = psutil.Process(process.pid)

        def started() -> bool:
            return sum(SLEEP in child.cmdline() for child in root.children()) == 3

        wait_until(started, 60, "its children", lambda: None)
        children = root.children()
        yield root
        for each in (root, *children):
            if each.is_running():
                each.kill()


def test_processes_are_known_by_their_command_lines(driver: psutil.Process) -> None:
    forwarder, release, worker = sorted(driver.children(), key=lambda child: child.cmdline()[-1])
    assert [is_release(each) for each in (release, forwarder, worker, driver)] == [True, False, False, False]
    assert [is_forwarder(each) for each in (release, forwarder, worker, driver)] == [False, True, False, False]
    assert release_children(driver) == [release]


def test_release_processes_and_forwarders_survive_their_driver(driver: psutil.Process) -> None:
    (release,) = release_children(driver)
    (forwarder,) = filter(is_forwarder, driver.children())
    others = [driver, *(child for child in driver.children() if child not in (release, forwarder))]
    assert set(kill_driver(driver)) == {release, forwarder}
    wait_until(lambda: not any(map(runs, others)), 30, "the end of the others", lambda: None)
    for spared in (release, forwarder):
        assert runs(spared)
        assert spared.status() != psutil.STATUS_STOPPED


@pytest.mark.parametrize(
    ("lines", "shards"),
    [
        ([], set()),
        (["group assigned shards [0, 1] to a"], {0, 1}),
        (["group assigned shards [0, 1] to a", "group revoked shards [0] from a"], {1}),
        (["group assigned shards [0] to a", "group assigned shards [0, 1] to a"], {0, 1}),
        (["group assigned shards [0] to a", "group revoked shards [0] from a", "group assigned shards [] to a"], set()),
    ],
)
def test_a_log_tells_the_shards_of_a_release_process(lines: list[str], shards: set[int]) -> None:
    log = "".join(f"2026-11-22 14:25:17,123 INFO sinks.release.process: {line}\n" for line in lines)
    assert shards_in(log) == shards
