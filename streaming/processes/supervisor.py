"""Starts release processes and forwarders, starts them again when they end, and ends them."""

from __future__ import annotations

import logging
import math
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from conf import errors
from conf.end_signals import deferred
from conf.errors import BrokerUnreachable, DelaylineError, NameTaken, ProcessFailed
from conf.failpoints import ROOT_VARIABLE
from conf.logs import level_now
from conf.settings import Settings
from streaming.processes.kinds import Kind
from streaming.processes.meeting_place import connect, meeting_place
from streaming.processes.orders import Orders, code_now

log = logging.getLogger(__name__)

_POLL_S = 0.05
_LONGEST_PAUSE_S = 10.0
# After so many errors in a row an operator is needed.
_MOST_ERRORS = 4
# A forwarder is not given up: so long after such errors it is tried again.
_FORWARD_PAUSE_S = 60.0
# A process that has run for so long begins to count anew.
_HEALTHY_S = 60.0
_END_S = 20.0
# What a process is sent when it is to end.
_END = b"\n"
# When all processes have run for so long, a spare one is started: no start is slower for it.
_CALM_S = 10.0
# How long an orphan takes to answer at the most. One that is stopped does not answer.
_ADOPT_S = 1.0


class _Orphan:
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


@dataclass
class _Process:
    """One process: its kind and name, its number among those of its kind, the running one, when it was started, and how
    often in a row it ended.

    `ends` counts all ends, for the pause before the next start; `errors` those that need an operator if they go on.
    `away_since_s` is when it first found no broker, if that is how it ends since then. Instants are monotonic.
    """

    kind: Kind
    member: str
    number: int
    popen: subprocess.Popen[bytes] | _Orphan | None = None
    socket: socket.socket | None = None
    started_s: float = 0.0
    ends: int = 0
    errors: int = 0
    away_since_s: float | None = None
    next_start_s: float = 0.0


@dataclass
class _Spare:
    """A process that waits for orders, which has imported the code that was there when it was started."""

    popen: subprocess.Popen[bytes]
    socket: socket.socket
    code: str


class Processes:
    """The release processes and forwarders of a command. A context manager, which ends them.

    A process that is killed is started again at once; one that fails, after a pause that grows. If a release process
    fails again and again, `check` raises its error: it needs an operator. A spare process, which only waits for orders,
    takes the place of one that has ended: that saves most of the time of a start.
    """

    def __init__(self, settings: Settings, counts: Mapping[Kind, int], command: str = "job") -> None:
        """Name so many processes of each kind, by the host and `command`: after a restart they have the same names."""
        self._settings = settings
        self._error: DelaylineError | None = None
        self._stopping = threading.Event()
        self._processes = [
            _Process(kind, _name(kind, command, number), number)
            for kind, count in counts.items()
            for number in range(count)
        ]
        self._kinds = [kind for kind, count in counts.items() if count]
        self._spare: _Spare | None = None
        # When a spare was started last, by the monotonic clock.
        self._spared_s = -math.inf
        # Failpoints end the whole tree of the command.
        os.environ.setdefault(ROOT_VARIABLE, str(os.getpid()))
        self._thread = threading.Thread(target=self._supervise, name="processes", daemon=True)

    def start(self) -> None:
        """Start the processes. A second call does nothing."""
        if self._thread.ident is not None:
            return
        for process in self._processes:
            self._start(process)
        self._thread.start()

    def check(self) -> None:
        """Raise the error of a release process that failed again and again."""
        if self._error is not None:
            raise self._error

    @property
    def pids(self) -> list[int]:
        """The process ids of the running processes."""
        return [process.popen.pid for process in self._processes if process.popen is not None]

    def pids_of(self, kind: Kind) -> list[int]:
        """The process ids of the running processes of one kind."""
        return [process.popen.pid for process in self._processes if process.popen is not None and process.kind is kind]

    def close(self) -> None:
        """End the processes. What they have written and is not due is aborted."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._drop_spare()
        for process in self._processes:
            if process.socket is not None:
                # SIGTERM is blocked there (`supervised`).
                with suppress(OSError):
                    process.socket.sendall(_END)
        running = [(process, process.popen) for process in self._processes if process.popen is not None]
        deadline_s = time.monotonic() + _END_S
        for process, popen in running:
            try:
                popen.wait(max(0.1, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                log.warning("%s %d did not stop in time; killing it", process.kind, popen.pid)
                popen.kill()
                popen.wait()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, process: _Process) -> None:
        orders = Orders(process.kind, self._settings_of(process), process.member, code_now(), level_now(), os.getpid())
        process.started_s = time.monotonic()
        if not self._adopt(process, orders):
            self._launch(process, orders)

    def _settings_of(self, process: _Process) -> Settings:
        """Return the settings with a monitor address of the process's own."""
        monitor = self._settings.monitor
        key = "release" if process.kind is Kind.RELEASE else "forward"
        host, _, port = str(getattr(monitor, key)).rpartition(":")
        if not host or port == "0":
            return self._settings
        address = f"{host}:{int(port) + process.number}"
        return self._settings.model_copy(update={"monitor": monitor.model_copy(update={key: address})})

    def _adopt(self, process: _Process, orders: Orders) -> bool:
        """Go on with the process of this name that a killed command has left, if it is there and does the same.

        So its shards or lanes change no hands, and no message is late.
        """
        place = meeting_place(self._settings.application_id, self._settings.kafka.bootstrap_servers, process.member)
        connection = None if place is None else connect(place, _ADOPT_S)
        if connection is None:
            return False
        try:
            connection.sendall(pickle.dumps(orders))
            answer = b""
            while part := connection.recv(32):
                answer += part
                if answer.endswith(b"\n"):
                    connection.settimeout(None)
                    process.popen, process.socket = _Orphan(int(answer), connection), connection
                    log.info(
                        "adopted %s %s, process %d, from an earlier command", process.kind, process.member, int(answer)
                    )
                    return True
        except OSError as problem:
            log.warning("%s %s of an earlier command does not answer: %s", process.kind, process.member, problem)
        connection.close()
        return False

    def _launch(self, process: _Process, orders: Orders) -> None:
        spare = self._spare
        if spare is None or spare.popen.poll() is not None or spare.code != orders.code:
            self._drop_spare()
            process.popen, process.socket = _spawned([process.kind])
        else:
            self._spare = None
            process.popen, process.socket = spare.popen, spare.socket
        log.info("%s %s is %d", process.kind, process.member, process.popen.pid)
        with suppress(BrokenPipeError):
            process.socket.sendall(pickle.dumps(orders))

    def _keep_spare(self) -> None:
        """Start a spare process if there is none, and all others run."""
        now_s = time.monotonic()
        if self._spare is not None and self._spare.popen.poll() is not None:
            self._drop_spare()
        runs = [process.popen is not None and now_s > process.started_s + _CALM_S for process in self._processes]
        if self._spare is None and runs and all(runs) and now_s > self._spared_s + _CALM_S:
            self._spared_s = now_s
            # This host may lack processes or memory for a moment.
            with suppress(OSError):
                self._spare = _Spare(*_spawned(self._kinds), code_now())

    def _drop_spare(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            # It has nothing to lose.
            spare.socket.close()
            spare.popen.kill()
            spare.popen.wait()

    def _supervise(self) -> None:
        while not self._stopping.wait(_POLL_S):
            for process in self._processes:
                if process.popen is not None and (code := process.popen.poll()) is not None:
                    self._ended(process, code)
                if process.popen is None and time.monotonic() >= process.next_start_s and self._error is None:
                    self._start_again(process)
            self._keep_spare()

    def _start_again(self, process: _Process) -> None:
        try:
            self._start(process)
        except Exception as problem:  # noqa: BLE001
            # This host may lack processes, memory or files for a moment. This thread must go on all the same.
            error = ProcessFailed(f"cannot start the process: {type(problem).__name__}: {problem}")
            error.__cause__ = problem
            self._count(process, error, is_error=True)

    def _ended(self, process: _Process, code: int) -> None:
        """Note why a process has ended, and when it is started again."""
        assert process.socket is not None
        error = _error_of(process.kind, process.socket, code)
        process.socket.close()
        process.popen = process.socket = None
        if isinstance(error, NameTaken):
            # Whoever has taken its place does its work now. Two commands must not do this to each other in turn.
            process.next_start_s = time.monotonic() + _LONGEST_PAUSE_S
            log.warning("%s %s ended: %s", process.kind, process.member, error)
            return
        self._count(process, error, is_error=code >= 0)

    def _count(self, process: _Process, error: DelaylineError, is_error: bool) -> None:
        """Count an end, or a start that failed, and set when the process is started again.

        Brokers that are away count as an error once they are for longer than a job waits for them.
        """
        now_s = time.monotonic()
        if now_s - process.started_s > _HEALTHY_S:
            process.ends = process.errors = 0
        # The first one is started again at once.
        pause_s = min(_LONGEST_PAUSE_S, float(process.ends**2))
        process.ends += 1
        is_away = type(error) is BrokerUnreachable
        process.away_since_s = (process.away_since_s or now_s) if is_away else None
        if not is_error:
            process.errors = 0
        elif process.away_since_s is None or now_s - process.away_since_s > self._settings.kafka.outage_limit / 1000:
            process.errors += 1
        if process.errors >= _MOST_ERRORS:
            if process.kind is Kind.RELEASE:
                self._error = error
            else:
                # The batches do its work.
                pause_s = _FORWARD_PAUSE_S
        process.next_start_s = now_s + pause_s
        log.warning("%s %s ended: %s. Restarting it in %.0f s", process.kind, process.member, error, pause_s)


def _name(kind: Kind, command: str, number: int) -> str:
    host = socket.gethostname()
    return f"{host}-{command}-{number}" if kind is Kind.RELEASE else f"{host}-{command}-forward-{number}"


def _spawned(kinds: Iterable[Kind]) -> tuple[subprocess.Popen[bytes], socket.socket]:
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


def _error_of(kind: Kind, supervised: socket.socket, code: int) -> DelaylineError:
    """Return the error that an ended process has sent, or one that has its exit code."""
    report = b""
    with suppress(OSError):
        while part := supervised.recv(65_536):
            report += part
    if not report:
        what = f"signal {-code}" if code < 0 else f"exit code {code}"
        return ProcessFailed(f"a {kind} ended with {what}. See its log lines")
    try:
        # From a process of ours, which is no stranger.
        name, arguments = pickle.loads(report)  # noqa: S301
    except (EOFError, pickle.UnpicklingError):
        return ProcessFailed(f"a {kind} was killed while it reported its error. See its log lines")
    error: type[DelaylineError] = getattr(errors, name)
    return error(*arguments)
