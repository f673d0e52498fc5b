"""Release processes with a command that was killed, and the next command, against a real broker."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from conf.settings import Settings
from streaming.processes import supervisor
from streaming.processes.kinds import Kind
from streaming.processes.meeting_place import meeting_place
from streaming.processes.supervisor import Processes
from tests.eventually import assert_eventually
from tests.processes import runs
from tests.streaming.processes.conftest import Released, Stage
from tests.thorough import some_thorough

# A process starts in two seconds; on a busy machine it takes far longer.
_START_S = 60.0

# A command that dies: it starts a release process, and says which.
_COMMAND = """
import pickle, signal, sys, time
from streaming.processes.kinds import Kind
from streaming.processes.supervisor import Processes
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with Processes(pickle.load(sys.stdin.buffer), {Kind.RELEASE: 1}) as processes:
    processes.start()
    print(*processes.pids, flush=True)
    time.sleep(600)
"""
_MEMBER = f"{socket.gethostname()}-job-0"

StartCommand = Callable[[Settings], tuple["subprocess.Popen[bytes]", psutil.Process]]


@pytest.fixture
def start_command(tmp_path: Path) -> Iterator[StartCommand]:
    """A function that starts a command, and returns it and its release process. All are killed after the test."""
    commands, releases = [], []

    def start(settings: Settings) -> tuple[subprocess.Popen[bytes], psutil.Process]:
        with open(tmp_path / "log", "ab") as log:
            command = subprocess.Popen(
                [sys.executable, "-c", _COMMAND], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        commands.append(command)
        assert command.stdin is not None
        assert command.stdout is not None
        pickle.dump(settings, command.stdin)
        command.stdin.close()
        releases.append(psutil.Process(int(command.stdout.readline())))
        return command, releases[-1]

    yield start
    for command in commands:
        command.kill()
        command.wait()
    for release in filter(runs, releases):
        release.kill()


def _leave_orphan(prepared: Settings, command: subprocess.Popen[bytes]) -> None:
    """Kill a command, and wait until its release process is where the next command looks for it."""
    command.kill()
    command.wait()
    place = meeting_place(prepared.application_id, prepared.kafka.bootstrap_servers, _MEMBER)
    assert_eventually(lambda: place is not None and place.exists(), _START_S)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.takes(20)
@pytest.mark.parametrize("comes", some_thorough(["before its command is killed", "after that"], always=["after that"]))
def test_sigterm_ends_a_process_whose_command_was_killed(
    prepared: Settings,
    staged: Stage,
    released: Released,
    start_command: StartCommand,
    tmp_path: Path,
    comes: str,
) -> None:
    command, orphan = start_command(prepared)
    staged(1)
    assert_eventually(lambda: released() == [1], _START_S)
    # Otherwise it would wait for that.
    staged(_now_ms() + 3_600_000)
    if comes == "after that":
        _leave_orphan(prepared, command)
        orphan.terminate()
    else:
        orphan.terminate()
        command.kill()
        command.wait()
    assert_eventually(lambda: not runs(orphan), _START_S)
    assert ("the job exited unexpectedly" in (tmp_path / "log").read_text()) == (comes == "after that")


@pytest.mark.takes(15)
def test_an_orphan_releases_what_is_staged_and_ends(
    prepared: Settings, staged: Stage, released: Released, start_command: StartCommand, tmp_path: Path
) -> None:
    # test_forwarders tests how long it continues next to a forwarder.
    alone = prepared.model_copy(update={"forward": prepared.forward.model_copy(update={"processes": 0})})
    command, orphan = start_command(alone)
    staged(1)
    assert_eventually(lambda: released() == [1], _START_S)
    due_ms = _now_ms() + 4_000
    staged(due_ms)
    command.kill()
    command.wait()
    assert_eventually(lambda: released() == [1, due_ms], _START_S)
    assert _now_ms() >= due_ms
    assert_eventually(lambda: not runs(orphan), _START_S)
    assert "the job exited unexpectedly" in (tmp_path / "log").read_text()
    place = meeting_place(prepared.application_id, prepared.kafka.bootstrap_servers, _MEMBER)
    assert place is not None
    assert not place.exists()


@pytest.mark.takes(20)
def test_the_next_command_goes_on_with_an_orphan_and_ends_it(
    prepared: Settings, staged: Stage, released: Released, start_command: StartCommand
) -> None:
    command, orphan = start_command(prepared)
    staged(1)
    assert_eventually(lambda: released() == [1], _START_S)
    for due in (2, 3):
        _leave_orphan(prepared, command)
        command, same = start_command(prepared)
        assert same == orphan
        staged(due)
        assert_eventually(lambda: released()[-1] == due, _START_S)  # noqa: B023
    command.terminate()
    assert command.wait(_START_S) == 0
    assert not runs(orphan)
    assert released() == [1, 2, 3]


@pytest.mark.thorough
@pytest.mark.takes(20)
def test_an_orphan_that_the_next_command_goes_on_with_is_started_again_when_it_is_killed(
    prepared: Settings, staged: Stage, released: Released, start_command: StartCommand
) -> None:
    command, orphan = start_command(prepared)
    staged(1)
    assert_eventually(lambda: released() == [1], _START_S)
    _leave_orphan(prepared, command)
    with Processes(prepared, {Kind.RELEASE: 1}) as processes:
        processes.start()
        assert processes.pids == [orphan.pid]
        orphan.kill()
        assert_eventually(lambda: processes.pids not in ([], [orphan.pid]), _START_S)
        staged(2)
        assert_eventually(lambda: released() == [1, 2], _START_S)
        processes.check()


@pytest.mark.takes(20)
@pytest.mark.parametrize("difference", some_thorough(["settings", "code", "it is stopped"], always=["settings"]))
def test_an_orphan_that_does_other_work_or_none_is_replaced(
    prepared: Settings,
    staged: Stage,
    released: Released,
    start_command: StartCommand,
    monkeypatch: pytest.MonkeyPatch,
    difference: str,
) -> None:
    command, orphan = start_command(prepared)
    staged(1)
    assert_eventually(lambda: released() == [1], _START_S)
    command.kill()
    command.wait()
    settings = prepared
    if difference == "settings":
        settings = prepared.model_copy(update={"release": prepared.release.model_copy(update={"lead": 50})})
    elif difference == "code":
        monkeypatch.setattr(supervisor, "code_now", lambda: "another version")
    else:
        orphan.suspend()
    with Processes(settings, {Kind.RELEASE: 1}) as processes:
        processes.start()
        assert len(processes.pids) == 1
        assert processes.pids != [orphan.pid]
        orphan.resume()
        assert_eventually(lambda: not runs(orphan), _START_S)
        staged(2)
        assert_eventually(lambda: released() == [1, 2], _START_S)
        processes.check()
