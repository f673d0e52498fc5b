"""Forwarders next to release processes: started, restarted, adopted and ended in the same way."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest
from confluent_kafka import KafkaException

from conf.failpoints import VARIABLE
from conf.kafka.options import librdkafka_options
from conf.load import load_settings
from conf.settings import Settings
from sinks.group.groups import forward_group
from sinks.group.members import members
from streaming.processes import supervised
from streaming.processes.kinds import SPARE, Kind
from streaming.processes.meeting_place import meeting_place
from streaming.processes.orders import Orders
from streaming.processes.restarts import Pauses
from streaming.processes.supervised import _Supervision
from streaming.processes.supervisor import Processes
from tests.eventually import assert_eventually
from tests.processes import runs
from tests.streaming.processes.conftest import Released, Stage

_START_S = 60.0
_MEMBER = f"{socket.gethostname()}-job-forward-0"
_BOTH = {Kind.RELEASE: 1, Kind.FORWARD: 1}

# A command that dies: it starts a forwarder, and says which.
_COMMAND = """
import pickle, sys, time
from streaming.processes.kinds import Kind
from streaming.processes.supervisor import Processes
with Processes(pickle.load(sys.stdin.buffer), {Kind.FORWARD: 1}) as processes:
    processes.start()
    print(*processes.pids, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def both(prepared: Settings) -> Iterator[Processes]:
    """A release process and a forwarder that run, with which a spare process is started soon."""
    with Processes(prepared, _BOTH, pauses=Pauses(calm_s=0.1)) as processes:
        processes.start()
        yield processes


def forwarders(settings: Settings) -> list[str]:
    """Return the names of the forwarders that are in their group and have lanes."""
    try:
        found = members(librdkafka_options(settings.kafka), forward_group(settings))
    except KafkaException:
        # The broker begins to keep groups.
        return []
    return [member.name for member in found if member.numbers]


@pytest.mark.thorough
@pytest.mark.takes(20)
def test_a_forwarder_runs_beside_a_release_process_and_one_spare_process_serves_for_both(
    prepared: Settings, both: Processes, staged: Stage, released: Released
) -> None:
    assert_eventually(lambda: forwarders(prepared) == [_MEMBER], _START_S)
    staged(1)
    assert_eventually(lambda: released() == [1], _START_S)
    for kind in (Kind.FORWARD, Kind.RELEASE):
        assert_eventually(lambda: both._spare is not None, _START_S)
        assert both._spare is not None
        spare = psutil.Process(both._spare.popen.pid)
        assert_eventually(lambda: spare.name() == SPARE, _START_S)  # noqa: B023
        (pid,) = both.pids_of(kind)
        os.kill(pid, signal.SIGKILL)
        assert_eventually(lambda: both.pids_of(kind) == [spare.pid], _START_S)  # noqa: B023
        assert_eventually(lambda: spare.name() == kind.comm, _START_S)  # noqa: B023
    staged(2)
    assert_eventually(lambda: released() == [1, 2], _START_S)
    assert_eventually(lambda: forwarders(prepared) == [_MEMBER], _START_S)
    both.check()
    started = [psutil.Process(pid) for pid in both.pids]
    assert len(started) == 2
    both.close()
    assert not any(map(runs, started))


@pytest.mark.thorough
@pytest.mark.takes(15)
def test_a_forwarder_that_fails_again_and_again_ends_no_command(
    prepared: Settings,
    staged: Stage,
    released: Released,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(VARIABLE, "lanes-assigned=raise")
    with Processes(prepared, _BOTH, pauses=Pauses(longest_s=0.1)) as processes:
        processes.start()
        assert_eventually(lambda: "Restarting it in 60 s" in caplog.text, 2 * _START_S)
        assert "forwarder" in caplog.text
        assert "failpoint lanes-assigned" in caplog.text
        processes.check()
        staged(1)
        assert_eventually(lambda: released() == [1], _START_S)


@pytest.mark.takes(15)
def test_the_next_command_goes_on_with_the_forwarder_of_one_that_was_killed(prepared: Settings) -> None:
    with subprocess.Popen([sys.executable, "-c", _COMMAND], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as command:
        assert command.stdin is not None
        assert command.stdout is not None
        pickle.dump(prepared, command.stdin)
        command.stdin.close()
        orphan = psutil.Process(int(command.stdout.readline()))
        try:
            assert_eventually(lambda: forwarders(prepared) == [_MEMBER], _START_S)
            command.kill()
            place = meeting_place(prepared.application_id, prepared.kafka.bootstrap_servers, _MEMBER)
            assert_eventually(lambda: place is not None and place.exists(), _START_S)
            with Processes(prepared, _BOTH) as processes:
                processes.start()
                assert processes.pids_of(Kind.FORWARD) == [orphan.pid]
            assert not runs(orphan)
        finally:
            if runs(orphan):
                orphan.kill()


class _Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic(self) -> float:
        return self.now_s


def orphaned(kind: Kind, processes: int) -> _Supervision:
    """Return the supervision of a process without a supervisor, for a job with this number of forwarders."""
    settings = load_settings(None, [f"forward.processes={processes}"], environ={})
    ours, theirs = socket.socketpair()
    supervision = _Supervision(theirs, theirs.makefile("rb"), Orders(kind, settings, "north", "code", "info", 1))
    ours.close()
    assert_eventually(lambda: supervision._orphan_s is not None)
    return supervision


def test_an_orphaned_forwarder_goes_on_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock()
    monkeypatch.setattr(supervised, "time", clock)
    supervision = orphaned(Kind.FORWARD, 1)
    assert not supervision.ends_forward()
    clock.now_s += 60
    assert not supervision.ends_forward()
    clock.now_s += 1
    assert supervision.ends_forward()


@pytest.mark.parametrize(("forwarders", "least_s"), [(0, 5), (1, 65)])
def test_an_orphaned_release_process_outlives_the_forwarders_and_what_they_forwarded(
    monkeypatch: pytest.MonkeyPatch, forwarders: int, least_s: int
) -> None:
    clock = _Clock()
    monkeypatch.setattr(supervised, "time", clock)
    supervision = orphaned(Kind.RELEASE, forwarders)
    for _ in range(least_s):
        assert not supervision.ends_release(drained=True)
        clock.now_s += 1
    # Something is left: it goes on until that is released.
    for _ in range(100):
        assert not supervision.ends_release(drained=False)
        clock.now_s += 1
    assert not supervision.ends_release(drained=True)
    clock.now_s += 5
    assert supervision.ends_release(drained=True)
    # Not for ever.
    clock.now_s += 200
    assert supervision.ends_release(drained=False)
