"""Logs the step in which a batch takes very long, so that nobody has to guess the cause."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)

# A step takes so long only if a broker or a storage does not answer, or in a flood of messages.
_EVERY_S = 60.0


class SlowBatchWatch:
    """Warns while a step of a batch takes very long.

    `running` returns when each running step began, in seconds by the clock `now_s`.
    """

    def __init__(self, running: Callable[[], Mapping[str, float]], now_s: Callable[[], float] = time.monotonic) -> None:
        self._running = running
        self._now_s = now_s
        # The number of warnings about each step, by its name and start.
        self._warned: dict[tuple[str, float], int] = {}

    def check(self) -> None:
        """Warn of each step that takes more than a minute, once a minute."""
        running = self._running().items()
        warned = {each: self._warned.get(each, 0) for each in running}
        for step, begun_s in running:
            lasts_s = self._now_s() - begun_s
            if lasts_s >= _EVERY_S * (warned[step, begun_s] + 1):
                warned[step, begun_s] = int(lasts_s // _EVERY_S)
                log.warning("the running batch has been in its step %r for %.0f s", step, lasts_s)
        self._warned = warned
