"""The release stage next to and without the job: taken over, paused, orphaned, and after a loss of the ready log."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient

from benchmarks.release_processes import is_forwarder, is_release, release_children
from conf.failpoints import ROOT_VARIABLE, VARIABLE
from conf.kafka.options import librdkafka_options
from conf.load import load_settings
from sinks.internal_topics.progress import read_progress
from sinks.topics.topics import ensure_topics
from streaming.processes.drain import left_to_release
from tests.eventually import assert_eventually
from tests.processes import runs
from tests.system.conftest import Application, MakeService
from tests.system.load import publish_mixed

# Long enough that waiting messages are staged.
_HORIZON = "clock.horizon=60s"


@dataclass
class Release:
    """`delayline release` in a process of its own."""

    process: subprocess.Popen[bytes]
    log_file: Path

    @property
    def log(self) -> str:
        """Its output."""
        return self.log_file.read_text(errors="replace")

    def shards(self) -> int:
        """Return how many shards it has opened so far."""
        return self.log.count(": released up to ")


StartRelease = Callable[..., Release]


@pytest.fixture
def start_release(application: Application) -> Iterator[StartRelease]:
    """A function that starts a release process with a name, and ends it with the test."""
    with ExitStack() as stack:

        def start(name: str, failpoint: str = "") -> Release:
            log = application.folder / f"release-{name}-{time.time_ns()}.log"
            command = [sys.executable, "-m", "streaming.cli", "release", "--name", name]
            for override in application.overrides(_HORIZON):
                command += ["--set", override]
            environment = os.environ | ({VARIABLE: failpoint} if failpoint else {})
            # A failpoint kills this process alone.
            environment.pop(ROOT_VARIABLE, None)
            with log.open("wb") as output:
                process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
            release = Release(process, log)
            stack.callback(process.wait)
            stack.callback(process.kill)
            assert_eventually(lambda: "running" in release.log or process.poll() is not None, 30, "its start")
            return release

        yield start


def _left(application: Application) -> int:
    settings = load_settings(None, application.overrides(_HORIZON), environ={})
    return sum(left_to_release(settings).values())


@pytest.mark.thorough
@pytest.mark.takes(70)
def test_release_processes_share_the_shards_and_take_over_from_one_that_dies_or_sleeps(
    application: Application, make_service: MakeService, start_release: StartRelease
) -> None:
    service, ledger = make_service(_HORIZON, "release.processes=0")
    service.start()
    first, second = start_release("first"), start_release("second")
    assert_eventually(lambda: first.shards() >= 1 and second.shards() >= 1, 40, "a shard for each")
    publish_mixed(ledger, application, 500, seed=1, longest_ms=25_000)
    assert_eventually(lambda: len(ledger.got) > 100, 60, "deliveries by both")
    # It sleeps until the other one has its shard, and wakes when that is over.
    first.process.send_signal(signal.SIGSTOP)
    opened = second.shards()
    assert_eventually(lambda: second.shards() > opened, 40, "the takeover of the sleeper's shard")
    first.process.send_signal(signal.SIGCONT)
    publish_mixed(ledger, application, 200, seed=2, longest_ms=10_000)
    assert_eventually(lambda: len(ledger.got) > 300, 60, "deliveries after the sleep")
    opened = first.shards()
    second.process.kill()
    assert_eventually(lambda: first.shards() > opened, 40, "the takeover of the dead one's shard")
    publish_mixed(ledger, application, 100, seed=3, longest_ms=5_000)
    # Two thirds of the messages are due while one of the two is away.
    ledger.verify_after_outage(60, least_checked=0.25)
    assert service.stop() == 0, service.log[-3000:]
    first.process.terminate()
    assert first.process.wait(20) == 0


@pytest.mark.thorough
@pytest.mark.takes(40)
def test_a_job_whose_processes_all_get_sigterm_finishes_its_batch_and_ends_without_a_warning(
    application: Application, make_service: MakeService
) -> None:
    service, ledger = make_service(_HORIZON)
    # A warm process would be ended as well.
    service.in_own_group = True
    service.start()
    publish_mixed(ledger, application, 300, seed=1, longest_ms=20_000)
    assert_eventually(lambda: len(ledger.got) > 30, 60, "deliveries")
    at_start = len(service.log)
    # As a service manager does it.
    driver = psutil.Process(service.pid)
    for process in (*driver.children(recursive=True), driver):
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    assert service.wait() == 0, service.log[-3000:]
    said = [
        line
        for line in service.log[at_start:].splitlines()
        # A busy machine takes longer for the offsets of the first batch.
        if re.search("Traceback|WARN|ERROR|Exception|ended with", line) and "Kafka does not answer" not in line
    ]
    assert not said, service.log[-3000:]
    service.in_own_group = False
    service.start()
    ledger.wait_for_all(60)
    assert service.stop() == 0, service.log[-3000:]
    ledger.verify()


@pytest.mark.thorough
@pytest.mark.takes(45)
def test_after_the_kill_of_the_driver_its_release_processes_go_on_until_nothing_is_left(
    application: Application, make_service: MakeService
) -> None:
    # A forwarder would go on as well, and the release process for as long.
    service, ledger = make_service(_HORIZON, "forward.processes=0")
    service.environment = {"SPARK_LOCAL_DIRS": str(application.folder)}
    service.start()
    driver = psutil.Process(service.pid)
    releases = release_children(driver)
    assert len(releases) == 1
    publish_mixed(ledger, application, 400, seed=1, longest_ms=20_000)
    accepted = len(ledger.sent)
    assert_eventually(lambda: _staged(application) >= accepted, 60, "the staging")
    others = [child for child in driver.children(recursive=True) if child not in releases]
    driver.kill()
    driver.wait()
    _, alive = psutil.wait_procs(others, timeout=30)
    assert not alive, "Java outlives its driver"
    # Nobody but the orphan is there.
    ledger.wait_for_all(60)
    assert len(ledger.got) == accepted
    psutil.wait_procs(releases, timeout=30)
    assert not releases[0].is_running(), "the orphan does not end"
    service.start()
    publish_mixed(ledger, application, 50, seed=2, longest_ms=3_000)
    ledger.verify_after_outage(60)
    assert service.stop() == 0, service.log[-3000:]


@pytest.mark.thorough
@pytest.mark.takes(45)
def test_a_job_that_is_restarted_goes_on_with_the_release_processes_of_the_killed_one(
    application: Application, make_service: MakeService
) -> None:
    service, ledger = make_service(_HORIZON)
    service.start()
    driver = psutil.Process(service.pid)
    (release,) = release_children(driver)
    publish_mixed(ledger, application, 400, seed=1, longest_ms=20_000)
    driver.kill()
    driver.wait()
    service.start()
    publish_mixed(ledger, application, 100, seed=2, longest_ms=8_000)
    ledger.verify_after_outage(60)
    assert runs(release)
    assert f"release process {socket.gethostname()}-job-0 is {release.pid}, which" in service.log
    assert service.stop() == 0, service.log[-3000:]
    assert not runs(release), "the release process outlives the job"


@pytest.mark.thorough
@pytest.mark.takes(60)
def test_what_is_published_after_the_kill_of_the_driver_goes_out_and_a_restarted_job_goes_on_with_all_processes(
    application: Application, make_service: MakeService
) -> None:
    service, ledger = make_service(_HORIZON)
    service.start()
    driver = psutil.Process(service.pid)
    processes = [each for each in driver.children() if is_release(each) or is_forwarder(each)]
    assert len(processes) == 2
    driver.kill()
    driver.wait()
    for number in range(100):
        key, delay_ms = f"k{number % 7}".encode(), number * 50
        after = ("deliver-after", f"{delay_ms}ms".encode())
        ledger.publish(
            application.input, b"%d" % number, [after], key=key, output=application.output, delay_ms=delay_ms
        )
    # Nobody but the orphans is there.
    ledger.wait_for_all(30)
    service.start()
    publish_mixed(ledger, application, 100, seed=2, longest_ms=8_000)
    ledger.verify_after_outage(60)
    assert all(map(runs, processes))
    assert service.stop() == 0, service.log[-3000:]
    assert not any(map(runs, processes)), "a process outlives the job"


def _staged(application: Application) -> int:
    settings = load_settings(None, application.overrides(_HORIZON), environ={})
    options = librdkafka_options(settings.kafka)
    markers = [read_progress(options, settings.progress_topic, shard) for shard in range(settings.bucket.shards)]
    return sum(marker.staged for marker in markers if marker is not None)


@pytest.mark.thorough
@pytest.mark.takes(45)
def test_a_release_process_that_is_killed_again_and_again_is_started_again(
    application: Application, make_service: MakeService, start_release: StartRelease
) -> None:
    service, ledger = make_service(_HORIZON)
    service.start()
    publish_mixed(ledger, application, 400, seed=1, longest_ms=15_000)
    for _ in range(3):
        before = len(ledger.got)
        assert_eventually(lambda before=before: len(ledger.got) > before, 60, "a delivery")  # type: ignore[misc]
        root = psutil.Process(service.pid)
        for release in assert_eventually(lambda root=root: release_children(root), 60, "a release process"):  # type: ignore[misc]
            release.kill()
    # Another process takes part, and dies when shards are taken from it.
    other = start_release("other", "shards-revoked=kill")
    assert_eventually(lambda: other.shards() >= 1, 40, "a shard for it")
    publish_mixed(ledger, application, 100, seed=2, longest_ms=8_000)
    other.process.terminate()
    assert other.process.wait(30) == -signal.SIGKILL
    ledger.verify_after_outage(60)
    assert service.stop() == 0, service.log[-3000:]


@pytest.mark.thorough
@pytest.mark.takes(45)
def test_a_ready_log_that_was_lost_stops_the_job_by_name_until_it_is_repaired(
    application: Application, make_service: MakeService
) -> None:
    # Forwarders would write all of them to the near log.
    service, ledger = make_service(_HORIZON, "forward.processes=0")
    service.start()
    publish_mixed(ledger, application, 100, seed=1, longest_ms=4_000)
    ledger.verify_after_outage(60)
    publish_mixed(ledger, application, 60, seed=2, longest_ms=50_000)
    assert_eventually(lambda: _staged(application) >= 160, 60, "the staging")
    assert service.stop() == 0, service.log[-3000:]
    lost = _left(application)
    assert lost > 10
    settings = load_settings(None, application.overrides(_HORIZON), environ={})
    admin = AdminClient({"bootstrap.servers": application.bootstrap})
    admin.delete_topics([settings.ready_topic])[settings.ready_topic].result(30)
    assert_eventually(lambda: settings.ready_topic not in admin.list_topics(timeout=10).topics, 30, "its deletion")
    ensure_topics(settings)

    service.start(wait=False)
    assert service.wait(90) == 1
    assert "error: ready-log-lost: " in service.log
    assert "delayline repair --ready-log" in service.log
    assert service.command("repair", "--ready-log") == 0, service.log
    assert sum(int(line.split()[2]) for line in service.log.splitlines() if "messages are lost" in line) == lost
    assert _left(application) == 0

    service.start()
    before = len(ledger.got)
    publish_mixed(ledger, application, 50, seed=3, longest_ms=3_000)
    assert_eventually(lambda: len(ledger.got) >= before + 50, 60, "deliveries after the repair")
    assert service.stop() == 0, service.log[-3000:]
    # Messages are lost, and the ledger would say so.
    ledger.close()
