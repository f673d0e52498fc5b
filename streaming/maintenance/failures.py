"""Failures of steps outside the batches. Their items are set aside for a growing pause, and the job continues."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable
from typing import NamedTuple

from conf.durations import format_duration
from conf.errors import ApplicationHeld, DelaylineError, InvariantViolated
from streaming.monitor.table_state import StepFailures
from streaming.storage.failures import innermost_cause, storage_failure, text_of

log = logging.getLogger(__name__)

# The kinds of steps, as metrics name them.
MERGE, DELETE, JOIN, VACUUM, CLEAN_LOG, LOAD, COPY_IDS = STEPS = (
    "merge", "delete", "join", "vacuum", "clean-log", "load", "copy-ids",
)  # fmt: skip

_FIRST_PAUSE_S = 60.0
# A merge may read and write for hours before it comes to the file that it cannot read.
_LONGEST_PAUSE_S = 6 * 3600.0
# This process may not write, or must not go on.
_ENDS_THE_JOB = (ApplicationHeld, InvariantViolated)


class _Pause(NamedTuple):
    length_s: float
    until_s: float


class Failures:
    """Items that failed in their last step, by kind: buckets of a merge, partitions of ids, or the only item of a kind.

    The loads that the prefetch window makes ahead of need are a kind of step too, and so is the copying of ids.

    Each is left alone for a pause, which doubles with each failure in a row. Instants are seconds by `now`. Only the
    query's thread may use it.
    """

    def __init__(self, table: str, now: Callable[[], float]) -> None:
        """Nothing has failed yet. `table` is the path of the table of sealed buckets, for errors."""
        self._storage = table.rpartition("/")[0]
        self._now = now
        self._counts: Counter[str] = Counter()
        self._pauses: defaultdict[str, dict[Hashable, _Pause]] = defaultdict(dict)

    def add(self, step: str, items: Collection[Hashable], what: str, problem: Exception) -> None:
        """Set `items` aside, because their step failed with `problem`. Raises `problem` if it must end the job.

        `what` names the step in the log.
        """
        if isinstance(problem, _ENDS_THE_JOB):
            raise problem
        pauses = self._pauses[step]
        before_s = max((pauses[item].length_s for item in items if item in pauses), default=_FIRST_PAUSE_S / 2)
        pause_s = min(2 * before_s, _LONGEST_PAUSE_S)
        pauses |= dict.fromkeys(items, _Pause(pause_s, self._now() + pause_s))
        self._counts[step] += 1
        log.debug("%s failed: %s", what, text_of(problem))
        log.warning(
            "%s failed; trying again in %s. The job continues: %s",
            what, format_duration(int(pause_s * 1000)), self._sentence(problem),
        )  # fmt: skip

    def remove(self, step: str, items: Iterable[Hashable]) -> None:
        """Record that a step has done its work on `items`."""
        for item in items:
            self._pauses[step].pop(item, None)

    def keep(self, step: str, present: Collection[Hashable], tried: Collection[Hashable]) -> None:
        """Forget items for which there is nothing left to do.

        They are gone, not being among `present`, or their pause is over and no step is due that would try them again:
        only `tried` are.
        """
        kept = set(tried) | self.waiting(step).intersection(present)
        self.remove(step, self._pauses[step].keys() - kept)

    def waiting(self, step: str) -> set[Hashable]:
        """Return the items that are still in their pause."""
        now_s = self._now()
        return {item for item, pause in self._pauses[step].items() if pause.until_s > now_s}

    def is_over(self, step: str, items: Iterable[Hashable]) -> bool:
        """Return whether no pause of `items` goes on."""
        return self.waiting(step).isdisjoint(items)

    @property
    def by_step(self) -> dict[str, StepFailures]:
        """The failures since the start, and how many items are set aside, by kind of step."""
        return {step: StepFailures(self._counts[step], len(self._pauses[step])) for step in STEPS}

    def _sentence(self, problem: Exception) -> str:
        if isinstance(problem, DelaylineError):
            return str(problem)
        text = text_of(problem)
        return str(storage_failure(text, self._storage) or innermost_cause(text))
