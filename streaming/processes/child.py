"""A process as its supervisor has it: at the other end of a socket, started now or by an earlier command."""

from __future__ import annotations

import logging
import math
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from conf import errors
from conf.end_signals import deferred
from conf.errors import DelaylineError, ProcessFailed
from streaming.processes.kinds import Kind
from streaming.processes.meeting_place import connect, meeting_place
from streaming.processes.orders import Orders

log = logging.getLogger(__name__)

_POLL_S = 0.05
# How long an orphan takes to answer at the most. One that is stopped does not answer.
_ADOPT_S = 1.0


class Orphan:
    """A process that an earlier command has started, with the methods of `subprocess.Popen` that are needed."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self._connection = connection

    def poll(self) -> int | None:
        """Return None while it runs. Its exit code is not known: -9 stands for an end without a word, 1 for others."""
        try:
            said = self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError:
            return -signal.SIGKILL
        return 1 if said else -signal.SIGKILL

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended. Raises TimeoutExpired."""
        deadline_s = math.inf if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline_s:
                raise subprocess.TimeoutExpired("process", timeout or 0)
            time.sleep(_POLL_S)
        return code

    def kill(self) -> None:
        """Send SIGKILL."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def spawned(kinds: Iterable[Kind]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a process that waits for orders, and is ready for each of `kinds`. Raises OSError."""
    ours, theirs = socket.socketpair()
    try:
        with theirs, deferred(), _sigterm_blocked():
            popen = subprocess.Popen(
                [sys.executable, "-m", "streaming.processes.supervised", str(theirs.fileno()), *kinds],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
    except OSError:
        ours.close()
        raise
    return popen, ours


@contextmanager
def _sigterm_blocked() -> Iterator[None]:
    """Start processes in which SIGTERM is blocked, from their first instruction on."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def adopted(orders: Orders) -> tuple[Orphan, socket.socket] | None:
    """Return the process of this name that a killed command has left, if it is there and does the same; else None.

    So its shards or lanes change no hands, and no message is late.
    """
    kafka = orders.settings.kafka
    place = meeting_place(orders.settings.application_id, kafka.bootstrap_servers, orders.member)
    connection = None if place is None else connect(place, _ADOPT_S)
    if connection is None:
        return None
    try:
        connection.sendall(pickle.dumps(orders))
        answer = b""
        while part := connection.recv(32):
            answer += part
            if answer.endswith(b"\n"):
                connection.settimeout(None)
                return Orphan(int(answer), connection), connection
    except OSError as problem:
        log.warning("%s %s of an earlier command does not answer: %s", orders.kind, orders.member, problem)
    connection.close()
    return None


def error_of(kind: Kind, supervised: socket.socket, code: int) -> DelaylineError:
    """Return the error that an ended process has sent, or one that has its exit code."""
    report = b""
    with suppress(OSError):
        while part := supervised.recv(65_536):
            report += part
    if not report:
        what = f"signal {-code}" if code < 0 else f"exit code {code}"
        return ProcessFailed(f"a {kind} ended with {what}. See its log lines")
    try:
        # The report comes from a process that we started, so it can be trusted.
        name, arguments = pickle.loads(report)  # noqa: S301
    except (EOFError, pickle.UnpicklingError):
        return ProcessFailed(f"a {kind} was killed while it reported its error. See its log lines")
    error: type[DelaylineError] = getattr(errors, name)
    return error(*arguments)
