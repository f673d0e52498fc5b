"""Release processes as a command starts, restarts and ends them, against a real broker."""

from __future__ import annotations

import logging
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from conf.errors import DelaylineError, InjectedFailure, ReleaseFailed, TopicMissing
from conf.failpoints import VARIABLE
from conf.settings import Settings
from streaming.release import supervisor
from streaming.release.supervisor import ReleaseProcesses
from tests.conftest import MakeSettings
from tests.eventually import assert_eventually
from tests.processes import runs
from tests.streaming.release.conftest import HandOver, Released

# A process starts in two seconds; on a busy machine it takes far longer.
_START_S = 60.0

# A command that dies: it starts a release process, and says which.
_COMMAND = """
import pickle, sys, time
from streaming.release.supervisor import ReleaseProcesses
processes = ReleaseProcesses(pickle.load(sys.stdin.buffer), 1)
processes.start()
print(*processes.pids, flush=True)
time.sleep(600)
"""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _has_error(processes: ReleaseProcesses) -> bool:
    try:
        processes.check()
    except DelaylineError:
        return True
    return False


@pytest.mark.takes(8)
def test_processes_release_what_is_handed_over_and_end_with_the_command(
    application: Settings, handed_over: HandOver, released: Released
) -> None:
    handed_over(1, 2)
    with ReleaseProcesses(application, 2) as processes:
        processes.start()
        started = [psutil.Process(pid) for pid in processes.pids]
        assert len(started) == 2
        assert_eventually(lambda: released() == [1, 2], _START_S)
        handed_over(3, shard=1)
        assert_eventually(lambda: released() == [1, 2, 3], _START_S)
        processes.check()
    assert not any(map(runs, started))


@pytest.mark.takes(10)
def test_a_killed_process_is_started_again(
    application: Settings, handed_over: HandOver, released: Released, caplog: pytest.LogCaptureFixture
) -> None:
    handed_over(1)
    with ReleaseProcesses(application, 1) as processes:
        processes.start()
        assert_eventually(lambda: released() == [1], _START_S)
        (first,) = processes.pids
        os.kill(first, signal.SIGKILL)
        assert_eventually(lambda: processes.pids not in ([], [first]), _START_S)
        handed_over(2)
        assert_eventually(lambda: released() == [1, 2], _START_S)
        processes.check()
    assert "ended by signal 9" in caplog.text


@pytest.mark.takes(8)
def test_processes_that_are_killed_again_and_again_are_no_error(
    application: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_LONGEST_PAUSE_S", 0.1)
    with ReleaseProcesses(application, 1) as processes:
        processes.start()
        for _ in range(supervisor._MOST_ERRORS + 1):
            (pid,) = assert_eventually(lambda: processes.pids, _START_S)
            os.kill(pid, signal.SIGKILL)
            assert_eventually(lambda: processes.pids not in ([], [pid]), _START_S)  # noqa: B023
        processes.check()


@pytest.mark.takes(8)
def test_an_error_that_comes_again_and_again_is_raised_and_ends_the_tries(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "_LONGEST_PAUSE_S", 0.1)
    settings = make_settings()
    with ReleaseProcesses(settings, 1) as processes:
        processes.start()
        assert_eventually(lambda: _has_error(processes), _START_S)
        with pytest.raises(TopicMissing, match=rf"{settings.ready_topic} \(ready\).*`delayline topics create`"):
            processes.check()
        assert processes.pids == []
    tries = [record for record in caplog.records if "topic-missing" in record.getMessage()]
    assert len(tries) == supervisor._MOST_ERRORS
    assert all(record.levelno == logging.WARNING for record in tries)


@pytest.mark.takes(8)
def test_an_error_of_a_process_that_had_joined_is_raised_as_what_it_is(
    application: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_LONGEST_PAUSE_S", 0.1)
    monkeypatch.setenv(VARIABLE, "shards-assigned=raise")
    with ReleaseProcesses(application, 1) as processes:
        processes.start()
        assert_eventually(lambda: _has_error(processes), 2 * _START_S)
        with pytest.raises(InjectedFailure, match="shards-assigned"):
            processes.check()


@pytest.mark.takes(6)
def test_a_process_that_fails_without_an_error_of_its_own_is_reported(
    application: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_LONGEST_PAUSE_S", 0.1)
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with ReleaseProcesses(application, 1) as processes:
        processes.start()
        assert_eventually(lambda: _has_error(processes), _START_S)
        with pytest.raises(ReleaseFailed, match="ended by exit code 1; its log lines say more"):
            processes.check()


@pytest.mark.takes(15)
def test_a_second_command_takes_the_place_of_the_first_for_which_that_is_no_error(
    application: Settings, handed_over: HandOver, released: Released
) -> None:
    handed_over(1)
    with ReleaseProcesses(application, 1) as first:
        first.start()
        assert_eventually(lambda: released() == [1], _START_S)
        with ReleaseProcesses(application, 1) as second:
            second.start()
            assert_eventually(lambda: first.pids == [], _START_S)
            first.check()
            # Otherwise it would try again after a while.
            first.close()
            handed_over(2)
            assert_eventually(lambda: released() == [1, 2], _START_S)
            second.check()


@pytest.mark.takes(20)
def test_an_orphan_releases_what_is_handed_over_and_ends(
    application: Settings, handed_over: HandOver, released: Released, tmp_path: Path
) -> None:
    with open(tmp_path / "log", "wb") as log:
        command = subprocess.Popen(
            [sys.executable, "-c", _COMMAND], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
        )
    assert command.stdin is not None
    assert command.stdout is not None
    pickle.dump(application, command.stdin)
    command.stdin.close()
    orphan = psutil.Process(int(command.stdout.readline()))
    try:
        handed_over(1)
        assert_eventually(lambda: released() == [1], _START_S)
        due_ms = _now_ms() + 4_000
        handed_over(due_ms)
        command.kill()
        command.wait()
        assert_eventually(lambda: released() == [1, due_ms], _START_S)
        assert _now_ms() >= due_ms
        assert_eventually(lambda: not runs(orphan), _START_S)
        assert "the job has ended without a word" in (tmp_path / "log").read_text()
    finally:
        command.kill()
        if runs(orphan):
            orphan.kill()
