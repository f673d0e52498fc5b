"""Release processes as a command starts, restarts and ends them, against a real broker."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from conf.errors import DelaylineError, InjectedFailure, ProcessFailed, TopicMissing
from conf.failpoints import VARIABLE
from conf.settings import Settings
from streaming.monitor.client import NoAnswer, ask
from streaming.processes import supervisor
from streaming.processes.kinds import SPARE, Kind
from streaming.processes.meeting_place import meeting_place
from streaming.processes.restarts import MOST_ERRORS, Pauses
from streaming.processes.supervisor import Processes
from tests.conftest import MakeSettings
from tests.eventually import assert_eventually
from tests.processes import runs
from tests.streaming.processes.conftest import Released, Stage

# A process starts in two seconds; on a busy machine it takes far longer.
_START_S = 60.0
_SHORT = Pauses(longest_s=0.1)


def _has_error(processes: Processes) -> bool:
    try:
        processes.check()
    except DelaylineError:
        return True
    return False


@pytest.mark.takes(8)
def test_processes_release_what_is_staged_and_end_with_the_command(
    prepared: Settings, staged: Stage, released: Released
) -> None:
    staged(1, 2)
    with Processes(prepared, {Kind.RELEASE: 2}) as processes:
        processes.start()
        started = [psutil.Process(pid) for pid in processes.pids]
        assert len(started) == 2
        assert_eventually(lambda: released() == [1, 2], _START_S)
        staged(3, shard=1)
        assert_eventually(lambda: released() == [1, 2, 3], _START_S)
        processes.check()
    assert not any(map(runs, started))


def test_processes_have_the_priority_from_before_the_command_gave_way(prepared: Settings) -> None:
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    found: list[int] = []

    def run() -> None:
        with Processes(prepared, {Kind.RELEASE: 1}) as processes:
            os.setpriority(os.PRIO_PROCESS, 0, nice + 5)
            processes.start()
            found.extend(psutil.Process(pid).nice() for pid in processes.pids)

    # A thread that has given way may not take it back.
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [nice]


@pytest.mark.takes(15)
def test_a_process_whose_address_another_one_has_releases_all_the_same_and_answers_once_it_is_free(
    prepared: Settings, staged: Stage, released: Released
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        monitor = prepared.monitor.model_copy(update={"release": address})
        with Processes(prepared.model_copy(update={"monitor": monitor}), {Kind.RELEASE: 1}) as processes:
            processes.start()
            staged(1)
            assert_eventually(lambda: released() == [1], _START_S)
            processes.check()
            pids = processes.pids
            taken.close()

            def is_ready() -> bool:
                try:
                    return ask(address, "/readyz").code == 200
                except NoAnswer:
                    return False

            assert_eventually(is_ready, 20)
            assert processes.pids == pids


@pytest.mark.takes(10)
def test_a_killed_process_is_started_again(
    prepared: Settings, staged: Stage, released: Released, caplog: pytest.LogCaptureFixture
) -> None:
    staged(1)
    with Processes(prepared, {Kind.RELEASE: 1}) as processes:
        processes.start()
        assert_eventually(lambda: released() == [1], _START_S)
        (first,) = processes.pids
        os.kill(first, signal.SIGKILL)
        assert_eventually(lambda: processes.pids not in ([], [first]), _START_S)
        staged(2)
        assert_eventually(lambda: released() == [1, 2], _START_S)
        processes.check()
    assert "ended with signal 9" in caplog.text


@pytest.mark.thorough
@pytest.mark.takes(8)
def test_processes_that_are_killed_again_and_again_are_no_error(prepared: Settings) -> None:
    with Processes(prepared, {Kind.RELEASE: 1}, pauses=_SHORT) as processes:
        processes.start()
        for _ in range(MOST_ERRORS + 1):
            (pid,) = assert_eventually(lambda: processes.pids, _START_S)
            os.kill(pid, signal.SIGKILL)
            assert_eventually(lambda: processes.pids not in ([], [pid]), _START_S)  # noqa: B023
        processes.check()


@pytest.mark.takes(8)
def test_an_error_that_comes_again_and_again_is_raised_and_ends_the_tries(
    make_settings: MakeSettings, caplog: pytest.LogCaptureFixture
) -> None:
    settings = make_settings()
    with Processes(settings, {Kind.RELEASE: 1}, pauses=_SHORT) as processes:
        processes.start()
        assert_eventually(lambda: _has_error(processes), _START_S)
        with pytest.raises(TopicMissing, match=rf"{settings.ready_topic} \(ready\).*`delayline topics create`"):
            processes.check()
        assert processes.pids == []
    tries = [record for record in caplog.records if "topic-missing" in record.getMessage()]
    assert len(tries) == MOST_ERRORS
    assert all(record.levelno == logging.WARNING for record in tries)


@pytest.mark.thorough
@pytest.mark.takes(8)
def test_an_error_of_a_process_that_had_joined_is_raised_as_what_it_is(
    prepared: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "shards-assigned=raise")
    with Processes(prepared, {Kind.RELEASE: 1}, pauses=_SHORT) as processes:
        processes.start()
        assert_eventually(lambda: _has_error(processes), 2 * _START_S)
        with pytest.raises(InjectedFailure, match="shards-assigned"):
            processes.check()


@pytest.mark.takes(6)
def test_a_process_that_fails_without_an_error_of_its_own_is_reported(
    prepared: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with Processes(prepared, {Kind.RELEASE: 1}, pauses=_SHORT) as processes:
        processes.start()
        assert_eventually(lambda: _has_error(processes), _START_S)
        with pytest.raises(ProcessFailed, match=r"ended with exit code 1\. See its log lines"):
            processes.check()


def _spare_of(processes: Processes, before: psutil.Process | None = None) -> psutil.Process:
    """Wait for a spare process, another one than `before`."""
    old = None if before is None else before.pid
    assert_eventually(lambda: processes._spare is not None and processes._spare.popen.pid != old, _START_S)
    assert processes._spare is not None
    return psutil.Process(processes._spare.popen.pid)


@pytest.fixture
def one(prepared: Settings) -> Iterator[Processes]:
    """One release process that runs, with which a spare one is started soon."""
    with Processes(prepared, {Kind.RELEASE: 1}, pauses=Pauses(calm_s=0.1)) as processes:
        processes.start()
        yield processes


def _killed(processes: Processes) -> int:
    """Kill the only release process, and return its process id."""
    (pid,) = processes.pids
    psutil.Process(pid).kill()
    return pid


@pytest.mark.takes(15)
def test_a_spare_process_takes_the_place_of_one_that_is_killed(
    one: Processes, staged: Stage, released: Released
) -> None:
    spare = _spare_of(one)
    assert_eventually(lambda: spare.name() == SPARE, _START_S)
    staged(1)
    assert_eventually(lambda: released() == [1], _START_S)
    _killed(one)
    assert_eventually(lambda: one.pids == [spare.pid], _START_S)
    staged(2)
    assert_eventually(lambda: released() == [1, 2], _START_S)
    assert spare.name() != SPARE
    # One that is killed while it waits is replaced as well.
    killed = _spare_of(one)
    killed.kill()
    last = _spare_of(one, before=killed)
    one.check()
    one.close()
    assert not any(map(runs, (spare, killed, last)))


@pytest.mark.thorough
@pytest.mark.takes(10)
def test_a_spare_process_of_other_code_takes_no_ones_place(
    one: Processes, staged: Stage, released: Released, monkeypatch: pytest.MonkeyPatch
) -> None:
    spare = _spare_of(one)
    monkeypatch.setattr(supervisor, "code_now", lambda: "another version")
    first = _killed(one)
    assert_eventually(lambda: one.pids not in ([], [first]), _START_S)
    assert one.pids != [spare.pid]
    staged(1)
    assert_eventually(lambda: released() == [1], _START_S)
    one.check()


@pytest.mark.takes(15)
def test_a_second_command_takes_the_place_of_the_first_for_which_that_is_no_error(
    prepared: Settings, staged: Stage, released: Released
) -> None:
    staged(1)
    with Processes(prepared, {Kind.RELEASE: 1}) as first:
        first.start()
        assert_eventually(lambda: released() == [1], _START_S)
        with Processes(prepared, {Kind.RELEASE: 1}) as second:
            second.start()
            assert_eventually(lambda: first.pids == [], _START_S)
            first.check()
            # Otherwise it would try again after a while.
            first.close()
            staged(2)
            assert_eventually(lambda: released() == [1, 2], _START_S)
            second.check()


@pytest.mark.takes(10)
def test_sigterm_does_not_end_a_process_before_its_command_does(
    prepared: Settings, staged: Stage, released: Released, caplog: pytest.LogCaptureFixture
) -> None:
    with Processes(prepared, {Kind.RELEASE: 1}) as processes:
        processes.start()
        (pid,) = processes.pids
        # While it starts, and when it releases.
        os.kill(pid, signal.SIGTERM)
        staged(1)
        assert_eventually(lambda: released() == [1], _START_S)
        os.kill(pid, signal.SIGTERM)
        staged(2)
        assert_eventually(lambda: released() == [1, 2], _START_S)
        assert processes.pids == [pid]
        process = psutil.Process(pid)
    assert not runs(process)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_meeting_place_in_a_folder_that_others_can_enter_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    place = meeting_place("a", "b", "c")
    assert place is not None
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    assert len({place, meeting_place("a", "b", "d"), meeting_place("a", "x", "c"), meeting_place("x", "b", "c")}) == 4
    place.parent.chmod(0o750)
    assert meeting_place("a", "b", "c") is None
    place.parent.rmdir()
    place.parent.symlink_to(tmp_path)
    assert meeting_place("a", "b", "c") is None
