"""Starts release processes and forwarders, starts them again when they end, and ends them."""

from __future__ import annotations

import logging
import math
import os
import pickle
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from conf.errors import DelaylineError, NameTaken, ProcessFailed
from conf.failpoints import ROOT_VARIABLE
from conf.logs import level_now
from conf.settings import Settings
from streaming.processes.child import Orphan, adopted, error_of, spawned
from streaming.processes.kinds import Kind
from streaming.processes.orders import Orders, code_now
from streaming.processes.restarts import USUAL_PAUSES, Pauses, Restarts

log = logging.getLogger(__name__)

_POLL_S = 0.05
_END_S = 20.0
# Tells a process to end.
_END = b"\n"


@dataclass
class _Process:
    """One process: its kind, name and number within its kind, the running instance, and its starts and ends."""

    kind: Kind
    member: str
    number: int
    restarts: Restarts = field(default_factory=Restarts)
    popen: subprocess.Popen[bytes] | Orphan | None = None
    socket: socket.socket | None = None


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

    def __init__(
        self,
        settings: Settings,
        counts: Mapping[Kind, int],
        command: str = "job",
        pauses: Pauses = USUAL_PAUSES,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Name so many processes of each kind, by the host and `command`: after a restart they have the same names.

        `now` is a monotonic clock that returns seconds.
        """
        self._settings = settings
        self._pauses = pauses
        self._now = now
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
        self._wanted, self._started = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="processes", daemon=True)

    def start(self) -> None:
        """Start the processes. A second call does nothing."""
        self._wanted.set()
        self._started.wait()

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
        """End the processes. Aborts messages that they have written and that are not due yet."""
        self._stopping.set()
        self._wanted.set()
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
        # It has this priority, and so have its processes, however low the caller sets its own later.
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, process: _Process) -> None:
        orders = Orders(process.kind, self._settings_of(process), process.member, code_now(), level_now(), os.getpid())
        process.restarts.started_s = self._now()
        if (found := adopted(orders)) is None:
            self._launch(process, orders)
        else:
            process.popen, process.socket = found
            log.info("adopted %s %s, process %d, from an earlier command", process.kind, process.member, found[0].pid)

    def _settings_of(self, process: _Process) -> Settings:
        """Return the settings with a monitor address of the process's own."""
        monitor = self._settings.monitor
        key = "release" if process.kind is Kind.RELEASE else "forward"
        host, _, port = str(getattr(monitor, key)).rpartition(":")
        if not host or port == "0":
            return self._settings
        address = f"{host}:{int(port) + process.number}"
        return self._settings.model_copy(update={"monitor": monitor.model_copy(update={key: address})})

    def _launch(self, process: _Process, orders: Orders) -> None:
        spare = self._spare
        if spare is None or spare.popen.poll() is not None or spare.code != orders.code:
            self._drop_spare()
            process.popen, process.socket = spawned([process.kind])
        else:
            self._spare = None
            process.popen, process.socket = spare.popen, spare.socket
        log.info("%s %s is %d", process.kind, process.member, process.popen.pid)
        with suppress(BrokenPipeError):
            process.socket.sendall(pickle.dumps(orders))

    def _keep_spare(self) -> None:
        """Start a spare process if it is missing and all other processes run."""
        now_s, calm_s = self._now(), self._pauses.calm_s
        if self._spare is not None and self._spare.popen.poll() is not None:
            self._drop_spare()
        runs = [
            process.popen is not None and now_s > process.restarts.started_s + calm_s for process in self._processes
        ]
        if self._spare is None and runs and all(runs) and now_s > self._spared_s + calm_s:
            self._spared_s = now_s
            # This host may lack processes or memory for a moment.
            with suppress(OSError):
                self._spare = _Spare(*spawned(self._kinds), code_now())

    def _drop_spare(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            # It has nothing to lose.
            spare.socket.close()
            spare.popen.kill()
            spare.popen.wait()

    def _supervise(self) -> None:
        self._wanted.wait()
        for process in self._processes:
            if not self._stopping.is_set():
                self._try_to_start(process)
        self._started.set()
        while not self._stopping.wait(_POLL_S):
            for process in self._processes:
                if process.popen is not None and (code := process.popen.poll()) is not None:
                    self._ended(process, code)
                if process.popen is None and self._now() >= process.restarts.next_start_s and self._error is None:
                    self._try_to_start(process)
            self._keep_spare()

    def _try_to_start(self, process: _Process) -> None:
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
        error = error_of(process.kind, process.socket, code)
        process.socket.close()
        process.popen = process.socket = None
        if isinstance(error, NameTaken):
            # Another process has taken its name and does its work now. Two commands must not take the name from each
            # other in turn.
            process.restarts.next_start_s = self._now() + self._pauses.longest_s
            log.warning("%s %s ended: %s", process.kind, process.member, error)
            return
        self._count(process, error, is_error=code >= 0)

    def _count(self, process: _Process, error: DelaylineError, is_error: bool) -> None:
        """Count an end, or a start that failed, and set when the process is started again."""
        now_s, outage_limit_s = self._now(), self._settings.kafka.outage_limit / 1000
        if process.restarts.count(error, is_error, now_s, self._pauses, outage_limit_s):
            if process.kind is Kind.RELEASE:
                self._error = error
            else:
                process.restarts.next_start_s = now_s + self._pauses.forward_s
        pause_s = process.restarts.next_start_s - now_s
        log.warning("%s %s ended: %s. Restarting it in %.0f s", process.kind, process.member, error, pause_s)


def _name(kind: Kind, command: str, number: int) -> str:
    host = socket.gethostname()
    return f"{host}-{command}-{number}" if kind is Kind.RELEASE else f"{host}-{command}-forward-{number}"
