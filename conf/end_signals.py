"""Signals that ask a process to end, for commands that start processes and must leave none behind."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def deferred() -> Iterator[None]:
    """Delay the handlers of end signals until the block is done.

    Use around the start of a process: a handler that raises between the fork and the return of `Popen` leaves a child
    that nobody will end. Python runs handlers in the main thread only, so that in other threads there is nothing to do.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        arrived.append(number)

    # Ignored signals stay ignored, in the child as well.
    before = {
        number: handler for number in END_SIGNALS if (handler := signal.getsignal(number)) not in (None, signal.SIG_IGN)
    }
    for number in before:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for late in arrived:
            signal.raise_signal(late)
