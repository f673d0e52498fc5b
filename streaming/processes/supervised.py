"""The program of a supervised process: `python -m streaming.processes.supervised FD KIND...`.

FD is the supervisor's socket. Importing the code takes most of the time of a start. So the process imports it before
the orders come, for each kind that may be ordered. A spare process imports it long before.
"""

from __future__ import annotations

import importlib
import logging
import os
import pickle
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from conf.errors import DelaylineError
from conf.failpoints import ROOT_VARIABLE
from conf.logs import configure_logging
from streaming.processes.kinds import SPARE, Kind
from streaming.processes.meeting_place import listen, meeting_place
from streaming.processes.orders import Orders

log = logging.getLogger(__name__)

_COMM = Path("/proc/self/comm")
# An orphan that forwards goes on for so long: a service manager has restarted a job by then.
_FORWARD_S = 60.0
# One that releases ends when nothing has been left for a while after that, and goes on at most so long.
_DRAINED_S = 5.0
_ORPHAN_S = 300.0
# The modules that each kind runs. Importing them takes long.
_MODULES = {
    Kind.RELEASE: ("sinks.release.process", "streaming.monitor.release_metrics"),
    Kind.FORWARD: ("streaming.forward.process", "streaming.monitor.forward_metrics"),
}


class _Supervision:
    """The connection to the supervisor, and when the process ends. Instants are monotonic.

    A process without a supervisor, an orphan, ends after a while. Until then it waits at its meeting place for another
    supervisor: a restarted job adopts the processes that it finds.

    SIGTERM is blocked as long as there is a supervisor. A service manager sends it to all processes of a job, which
    finishes its running batch first; until then messages are due. The supervisor says by a byte when it is time to end.
    """

    def __init__(self, supervisor: socket.socket, sent: BinaryIO, orders: Orders) -> None:
        """`sent` is what the `supervisor` sends after the `orders`."""
        self.stop = threading.Event()
        self._supervisor, self._sent = supervisor, sent
        self._orders = orders
        self._orphan_s: float | None = None
        self._busy_s = 0.0
        self._place: Path | None = None
        threading.Thread(target=self._watch, name="supervisor", daemon=True).start()

    def ends_release(self, drained: bool) -> bool:
        """Return whether a release process is to end; `drained` says whether nothing is left to release."""
        now_s = time.monotonic()
        if not drained:
            self._busy_s = now_s
        if self.stop.is_set():
            return True
        orphan_s = self._orphan_s
        if orphan_s is None:
            return False
        forwarded_s = orphan_s + (_FORWARD_S if self._orders.settings.forward.is_on else 0)
        return now_s - max(forwarded_s, self._busy_s) > _DRAINED_S or now_s - orphan_s > _ORPHAN_S

    def ends_forward(self) -> bool:
        """Return whether a forwarder is to end."""
        orphan_s = self._orphan_s
        return self.stop.is_set() or (orphan_s is not None and time.monotonic() - orphan_s > _FORWARD_S)

    def close(self) -> None:
        """Leave the meeting place."""
        if self._place is not None:
            self._place.unlink(missing_ok=True)

    def report(self, error: DelaylineError) -> None:
        """Send the error that ends this process to the supervisor, if there is one."""
        if self._orphan_s is None:
            with suppress(BrokenPipeError):
                self._supervisor.sendall(pickle.dumps((type(error).__name__, error.args)))
        else:
            log.warning("an orphaned process ended: %s", error)

    def _watch(self) -> None:
        """Wait for the end of each supervisor, and then for the next one."""
        while True:
            asked = b""
            with suppress(ConnectionError):
                asked = self._sent.read(1)
            if asked or signal.SIGTERM in signal.sigpending():
                self.stop.set()
                # Open until this process has ended: a supervisor that did not start it waits for that.
                with suppress(ConnectionError):
                    self._supervisor.recv(1)
                return
            self._orphan_s = time.monotonic()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            log.warning("the job exited unexpectedly; this %s continues for a limited time", self._orders.kind)
            try:
                found = self._next_supervisor()
            except OSError as problem:
                log.warning("the next job will not find this process: %s", problem)
                return
            if found is None:
                return
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            (self._supervisor, self._sent), self._orphan_s = found, None
            log.info("the job is running again and has adopted this process")

    def _next_supervisor(self) -> tuple[socket.socket, BinaryIO] | None:
        """Wait until a supervisor comes with orders for the same work. Raises OSError."""
        settings = self._orders.settings
        place = meeting_place(settings.application_id, settings.kafka.bootstrap_servers, self._orders.member)
        if place is None:
            return None
        with listen(place) as listener:
            self._place = place
            while True:
                supervisor, _ = listener.accept()
                # From a process of this user, who alone can reach the socket.
                sent = supervisor.makefile("rb")
                orders = _orders_in(sent)
                if orders is not None and orders.same_work(self._orders):
                    break
                # It will start a process of its own, which takes this one's place.
                sent.close()
                supervisor.close()
        self.close()
        os.environ[ROOT_VARIABLE] = str(orders.root)
        supervisor.sendall(b"%d\n" % os.getpid())
        return supervisor, sent


def main() -> int:
    """Do what the supervisor orders until it says that it is enough, and return the exit code."""
    # Ctrl-C goes to the whole group, and the supervisor ends this process in its time. It has blocked SIGTERM here.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    supervisor = socket.socket(fileno=int(sys.argv[1]))
    _rename(SPARE)
    # Only now, since it takes a while: a Ctrl-C is ignored.
    from streaming.processes.member import monitored_member

    for kind in sys.argv[2:]:
        for module in _MODULES[Kind(kind)]:
            importlib.import_module(module)
    sent = supervisor.makefile("rb")
    orders = _orders_in(sent)
    if orders is None:
        return 1
    _rename(orders.kind.comm)
    supervision = _Supervision(supervisor, sent, orders)
    signal.signal(signal.SIGTERM, lambda number, _: supervision.stop.set())
    configure_logging(orders.log_level, orders.settings.monitor.log_format)
    try:
        # An orphan of an earlier command may have the address, until this process takes its place in the group.
        with monitored_member(orders.kind, orders.settings, orders.member, waits_for_address=True) as process:
            process.run(partial(_ends, orders.kind, supervision))
    except DelaylineError as error:
        supervision.report(error)
        return 1
    finally:
        supervision.close()
    return 0


def _ends(kind: Kind, supervision: _Supervision, process: Any) -> bool:
    return supervision.ends_release(process.drained) if kind is Kind.RELEASE else supervision.ends_forward()


def _rename(name: str) -> None:
    """Rename this process, where the system can."""
    with suppress(OSError):
        _COMM.write_text(name)


def _orders_in(sent: BinaryIO) -> Orders | None:
    """Read the orders; return None if the supervisor is gone, or is of another version."""
    with suppress(EOFError, OSError, AttributeError, pickle.UnpicklingError):
        # The orders come from a process of the same user, so they can be trusted.
        orders = pickle.load(sent)  # noqa: S301
        return orders if isinstance(orders, Orders) else None
    return None


if __name__ == "__main__":
    sys.exit(main())
