"""What a supervised release process runs: `python -m streaming.release.supervised FD`, with the supervisor's socket."""

from __future__ import annotations

import logging
import pickle
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass, field

from conf.errors import DelaylineError
from conf.logs import configure_logging
from conf.settings import Settings

log = logging.getLogger(__name__)

# An orphan goes on at most so long, and ends when nothing has been left for a while.
_ORPHAN_S = 300.0
_DRAINED_S = 5.0


@dataclass(frozen=True)
class Orders:
    """What the supervisor sends: the settings, the name of the process, and the log level."""

    settings: Settings
    member: str
    log_level: str


@dataclass
class _End:
    """When the process ends: on a signal, or as an orphan that has nothing left to do. Instants are monotonic."""

    stop: threading.Event = field(default_factory=threading.Event)
    orphan_s: float | None = None
    busy_s: float = 0.0

    def is_now(self, drained: bool) -> bool:
        """Return whether to end; `drained` says whether nothing is left to release."""
        now_s = time.monotonic()
        if not drained:
            self.busy_s = now_s
        if self.stop.is_set():
            return True
        if self.orphan_s is None:
            return False
        return now_s - max(self.orphan_s, self.busy_s) > _DRAINED_S or now_s - self.orphan_s > _ORPHAN_S


def main() -> int:
    """Release until the supervisor says so, and return the exit code."""
    end = _End()
    signal.signal(signal.SIGTERM, lambda number, _: end.stop.set())
    # Ctrl-C goes to the whole group, and the supervisor ends this process in its time.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    supervisor = socket.socket(fileno=int(sys.argv[1]))
    with supervisor.makefile("rb") as received:
        # From the supervisor's own process, which is no stranger.
        orders: Orders = pickle.load(received)  # noqa: S301
    configure_logging(orders.log_level)
    threading.Thread(target=_watch, args=(supervisor, end), name="supervisor", daemon=True).start()
    from sinks.release.process import ReleaseProcess

    try:
        ReleaseProcess(orders.settings, orders.member).run(lambda process: end.is_now(process.drained))
    except DelaylineError as error:
        if end.orphan_s is None:
            supervisor.sendall(pickle.dumps((type(error).__name__, error.args)))
        else:
            log.warning("ended as an orphan: %s", error)
        return 1
    return 0


def _watch(supervisor: socket.socket, end: _End) -> None:
    """Note when the supervisor is gone."""
    supervisor.recv(1)
    end.orphan_s = time.monotonic()
    if not end.stop.is_set():
        log.warning("the job has ended without a word; releasing what is handed over")


if __name__ == "__main__":
    sys.exit(main())
