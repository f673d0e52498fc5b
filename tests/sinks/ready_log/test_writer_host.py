"""The writer host: a process like Spark's daemon starts it, and forks workers that stage messages on a broker."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import socket
import struct
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, Listener
from typing import cast

import psutil
import pyarrow as pa
import pytest

from conf.errors import CheckpointMismatch, DeliveryFailed
from sinks.ready_log import writer_host
from sinks.ready_log.writer import StagingPlan
from tests.eventually import assert_eventually
from tests.messages import messages
from tests.sinks.ready_log.conftest import Marker, Ready

Answer = tuple[int, str] | BaseException


@dataclass
class Daemon:
    """A process that has started a host, and forks a worker for each time it stages messages."""

    pid: int
    host: psutil.Process
    _commands: Connection

    def stage(self, plan: StagingPlan, shard: int, tables: list[pa.Table]) -> tuple[int, str]:
        """Stage messages in a new worker, and return its answer or raise its error."""
        self._commands.send((plan, shard, tables))
        answer: Answer = self._commands.recv()
        if isinstance(answer, BaseException):
            raise answer
        return answer


def _run_daemon(commands: Connection) -> None:
    writer_host.start_host()
    commands.send(None)
    while True:
        plan, shard, tables = commands.recv()
        worker = os.fork()
        if worker == 0:
            try:
                answer: Answer = writer_host.stage_by_host(plan, shard, iter(tables)).answer()
            except BaseException as error:  # noqa: BLE001
                answer = error
            commands.send(answer)
            os._exit(0)
        if os.waitpid(worker, 0)[1]:
            commands.send(ChildProcessError("the worker was killed"))


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    """A daemon with a host."""
    # Not forked: the tests' process has threads, and a daemon has none.
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe()
    process = context.Process(target=_run_daemon, args=(its,))
    process.start()
    try:
        mine.recv()
        assert process.pid is not None
        [host] = psutil.Process(process.pid).children()
        yield Daemon(process.pid, host, mine)
    finally:
        process.kill()
        process.join()


def _due(*dues: int, size: int = 1) -> pa.Table:
    return messages({"offset": due, "deliver_at_ms": due, "value": b"v" * size} for due in dues)


def test_workers_share_the_writers_of_the_host(daemon: Daemon, plan: StagingPlan, ready: Ready, marker: Marker) -> None:
    _, first = daemon.stage(plan, 0, [_due(1), _due(2, 3)])
    later = replace(plan, batch=replace(plan.batch, batch_id=8), last_writers={0: first})
    assert daemon.stage(later, 0, [_due(4)]) == (1, first)
    assert ready(plan) == [1, 2, 3, 4]
    found = marker(plan)
    assert found is not None
    assert found.staged == 4


def test_a_batch_of_many_megabytes_passes_through_the_host(daemon: Daemon, plan: StagingPlan, ready: Ready) -> None:
    tables = [_due(*range(at, at + 30), size=100_000) for at in range(0, 600, 30)]
    assert daemon.stage(plan, 0, tables)[0] == 600
    assert ready(plan) == [*range(600)]


@pytest.mark.parametrize("behind", [1, pytest.param(600, marks=pytest.mark.thorough)])
def test_an_error_of_the_host_is_raised_in_the_worker_however_much_it_has_left_to_send(
    daemon: Daemon, plan: StagingPlan, ready: Ready, behind: int
) -> None:
    later = replace(plan, batch=replace(plan.batch, batch_id=8))
    assert daemon.stage(later, 0, [_due(1)])[0] == 1
    with pytest.raises(CheckpointMismatch, match="batch 8 is already staged, but the checkpoint is at batch 7"):
        daemon.stage(plan, 0, [_due(due, size=10_000) for due in range(2, 2 + behind)])
    assert ready(plan) == [1]


def test_an_unexpected_error_of_the_host_is_raised_with_its_place(daemon: Daemon, plan: StagingPlan) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)writer host.*stage\.py.*KeyError: .*kind"):
        daemon.stage(plan, 0, [_due(1).drop_columns("kind")])


def test_what_a_killed_worker_has_not_sent_whole_is_not_committed(
    daemon: Daemon, plan: StagingPlan, ready: Ready
) -> None:
    with pytest.raises(ChildProcessError):
        daemon.stage(plan, 0, [_due(1), cast(pa.Table, _Killing())])
    # The host may open the writer for the killed worker only now, and fence the writer of the next one. Spark tries
    # such a task again.
    try:
        count, _ = daemon.stage(plan, 0, [_due(2)])
    except DeliveryFailed:
        count, _ = daemon.stage(plan, 0, [_due(2)])
    assert count == 1
    assert ready(plan) == [2]


class _Killing:
    """Takes the place of a table. The worker that would send it is killed."""

    @property
    def schema(self) -> pa.Schema:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("it lives")


def test_without_its_host_a_worker_hands_over_itself(daemon: Daemon, plan: StagingPlan, ready: Ready) -> None:
    _, first = daemon.stage(plan, 0, [_due(1)])
    daemon.host.kill()
    assert_eventually(lambda: not daemon.host.is_running() or daemon.host.status() == psutil.STATUS_ZOMBIE)
    later = replace(plan, batch=replace(plan.batch, batch_id=8), last_writers={0: first})
    count, writer = daemon.stage(later, 0, [_due(2)])
    assert count == 1
    assert writer != first
    assert ready(plan) == [1, 2]


def test_a_host_that_ends_while_a_worker_connects_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"\0delayline-{uuid.uuid4().hex}"
    monkeypatch.setattr(writer_host, "_address", address)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()

        def end() -> None:
            listening.accept()[0].close()

        ending = threading.Thread(target=end)
        ending.start()
        assert writer_host._connected() is None
        ending.join()


def test_a_worker_that_fails_while_it_sends_closes_the_connection(
    plan: StagingPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although its error is still there: the host must not wait for the rest until the next attempt."""
    mine, hosts = multiprocessing.Pipe()
    monkeypatch.setattr(writer_host, "_connected", lambda: mine)

    def unreadable() -> Iterator[pa.Table]:
        yield _due(1)
        raise pa.ArrowInvalid

    with pytest.raises(pa.ArrowInvalid) as raised:
        writer_host.stage_by_host(plan, 0, unreadable())
    assert hosts.recv()[1:] == (0, 0)
    assert hosts.recv_bytes()
    with pytest.raises(EOFError):
        hosts.recv_bytes()
    assert raised.tb is not None


def test_the_host_ends_with_its_daemon(daemon: Daemon) -> None:
    os.kill(daemon.pid, signal.SIGKILL)
    assert_eventually(lambda: not daemon.host.is_running())


def test_a_stranger_that_connects_and_says_nothing_keeps_no_task_waiting(
    daemon: Daemon, plan: StagingPlan, ready: Ready
) -> None:
    names = {str(connection.laddr).strip("@\0") for connection in daemon.host.net_connections("unix")}
    [address] = (f"\0{name}" for name in names if name.startswith("delayline-"))
    with socket.socket(socket.AF_UNIX) as silent, socket.socket(socket.AF_UNIX) as rude:
        silent.connect(address)
        rude.connect(address)
        # Longer than any answer to a challenge.
        rude.sendall(struct.pack("!i", 1000) + bytes(1000))
        assert daemon.stage(plan, 0, [_due(1)])[0] == 1
    assert ready(plan) == [1]


class _ListenerEnds(Exception):
    """Ends the loop, which has no other end."""


class _PoorListener:
    """Has no file for a connection at first."""

    def __init__(self) -> None:
        self.refusals = 3

    def accept(self) -> Connection:
        if not self.refusals:
            raise _ListenerEnds
        self.refusals -= 1
        raise OSError(errno.EMFILE, "Too many open files")


def test_the_host_takes_connections_again_once_it_has_files(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(_ListenerEnds):
        writer_host._accept(cast(Listener, _PoorListener()))
    assert caplog.text.count("Too many open files") == 3
