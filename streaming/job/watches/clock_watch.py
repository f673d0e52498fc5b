"""The watch over the host's clock.

If it was set back, the job must not wait silently for hours. If it is far ahead, no batch may follow it: cutoffs never
go back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

from conf.errors import ClockAhead, ClockBehind
from conf.instants import instant
from state.checkpoint.planned_batch import TOLERANCE_MS, PlannedBatch
from streaming.checkpoint.checkpoint import Checkpoint

log = logging.getLogger(__name__)

# Up to this the job waits silently: clocks are slewed, and differ from host to host.
_UNREMARKABLE_MS = 1_000


def now_ms() -> int:
    """Return the time by this host's clock, epoch ms."""
    return time.time_ns() // 1_000_000


class ClockWatch:
    """Compares the clock of this host with the time that it showed to the newest batch in the offset log.

    Cutoffs never go back (invariant 3). When the clock does, messages that fall due and Spark's next trigger wait until
    it has caught up. The only choice is whether to wait.
    """

    def __init__(self, now_ms: Callable[[], int] = now_ms) -> None:
        self._now_ms = now_ms
        self._shown_ms = 0
        self._warned = False

    def check(self, newest: PlannedBatch | None) -> None:
        """Raise ClockBehind if the clock is more than a minute behind; warn if it is more than a second behind.

        Warns once until the clock has caught up. `newest` is the newest batch in the offset log.
        """
        if newest is None:
            return
        self._shown_ms = shown_ms = max(self._shown_ms, newest.clock_ms)
        now_ms = self._now_ms()
        behind_ms = shown_ms - now_ms
        if behind_ms <= _UNREMARKABLE_MS:
            self._warned = False
            return
        sentence = (
            f"this host's clock shows {instant(now_ms)}, which is {timedelta(milliseconds=behind_ms)} before "
            f"the {instant(shown_ms)} that batch {newest.batch_id} or an earlier one saw"
        )
        if behind_ms > TOLERANCE_MS:
            raise ClockBehind(
                f"{sentence}. Correct the clock, or start the job again when the clock has caught up. "
                "Nothing is lost, and no message was delivered early"
            )
        if not self._warned:
            self._warned = True
            log.warning("%s. Messages that fall due wait until the clock has caught up", sentence)


class BrokerClock(Protocol):
    """The protocol of an object that knows the broker's clock: `sinks.internal_topics.lease.HeldLease`."""

    @property
    def broker_ms(self) -> float | None:
        """The broker's clock, epoch ms; None if it is not known."""

    def check_now(self) -> None:
        """Ask the broker."""


def check_not_ahead(shown_ms: int, whose: str, broker: BrokerClock, limit_ms: int) -> None:
    """Raise ClockAhead if a clock that shows `shown_ms` (epoch ms) is more than `limit_ms` ahead of the broker's.

    The error names the clock by `whose`. Raises the errors of `check_now` too.
    """
    if not _is_ahead(shown_ms, broker, limit_ms):
        return
    # The host may have been paused since the broker answered last, and its monotonic clock with it.
    broker.check_now()
    if _is_ahead(shown_ms, broker, limit_ms):
        broker_ms = round(broker.broker_ms or 0)
        raise ClockAhead(
            f"{whose} shows {instant(shown_ms)}, which is {timedelta(milliseconds=shown_ms - broker_ms)} "
            f"ahead of the broker's clock, {instant(broker_ms)}. clock.skew_limit is "
            f"{timedelta(milliseconds=limit_ms)}. Correct the wrong clock, and start the job again. No "
            "messages were staged by this clock"
        )


def check_host_clock(broker: BrokerClock, limit_ms: int, now_ms: Callable[[], int] = now_ms) -> None:
    """Raise ClockAhead if this host's clock is more than `limit_ms` ahead of the broker's."""
    check_not_ahead(now_ms(), "this host's clock", broker, limit_ms)


def _is_ahead(shown_ms: int, broker: BrokerClock, limit_ms: int) -> bool:
    broker_ms = broker.broker_ms
    return broker_ms is not None and shown_ms - broker_ms > limit_ms


def watch_from(checkpoint: Checkpoint, newest: PlannedBatch | None) -> ClockWatch:
    """Return a watch that has checked the clock against the last two batches in the offset log.

    The `newest` batch may have been planned after the clock was set back, and before the job ended because of that.
    Raises ClockBehind.
    """
    watch = ClockWatch()
    if newest is not None and newest.batch_id:
        watch.check(checkpoint.planned(newest.batch_id - 1))
    watch.check(newest)
    return watch
