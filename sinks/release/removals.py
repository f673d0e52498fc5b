"""What requests have taken out of a shard, for as long as the shard has to know it."""

from __future__ import annotations

from bisect import bisect_right

from sinks.internal_topics.position import Place
from sinks.release.recall import REMEMBERED_MS, Removal, Removed
from state.message_ids import NO_IDS, Ids, united
from state.order import OrderKey

# A shard plans each second at the least, unless it waits for something else.
_MOST_STEP_MS = 1_000


class Removals:
    """The removals of a shard: until everything due before is released, and for `REMEMBERED_MS` in any case.

    They have the order of their requests. Instants of `forget_ms` are by a clock that stands still while the shard
    does not plan.
    """

    def __init__(self) -> None:
        self._removals: list[Removal] = []
        # Those of all removals.
        self._ids: Ids = NO_IDS
        # For how long the shard has planned, and when it did last (epoch ms).
        self._planning_ms, self._planned_ms = 0, 0

    @property
    def removed(self) -> Removed:
        """The ids by what became of their messages."""
        return Removed.of(self._removals)

    @property
    def forget_ms(self) -> int:
        """Until when a removal of now is remembered in any case."""
        return self._planning_ms + REMEMBERED_MS

    def add(self, removal: Removal) -> None:
        """Remember `removal`."""
        self._removals.append(removal)
        self._ids = united([self._ids, removal.ids])

    def ids_at(self, place: Place) -> Ids:
        """Return what requests have taken out of the chunk at `place`, or may have: those that came after it."""
        first = bisect_right(self._removals, place.offset, key=lambda each: each.end(place.log))
        return united(each.ids for each in self._removals[first:]) if first else self._ids

    def go_on(self, now_ms: int, below: OrderKey | None) -> None:
        """Let the clock go on to `now_ms` (epoch ms), and forget what is of no use any more.

        That are removals that no chunk has any more which might be read again, since all `below` is released, and that
        nobody asks for again.
        """
        # While a broker does not answer, nothing is planned. The job may not know yet what was recalled before that.
        self._planning_ms += min(max(0, now_ms - self._planned_ms), _MOST_STEP_MS)
        self._planned_ms = now_ms
        kept = [each for each in self._removals if _is_needed(each, below) or each.forget_ms > self._planning_ms]
        if len(kept) < len(self._removals):
            self._removals = kept
            self._ids = united(each.ids for each in kept)

    def needed(self, below: OrderKey | None) -> list[Place]:
        """Return where the requests are that a crash makes needed, if everything `below` is released."""
        return [each.place for each in self._removals if _is_needed(each, below)]

    def passed(self, now_ms: int) -> OrderKey | None:
        """Return the last key below which removed messages would have been released by `now_ms` (epoch ms), or None."""
        return max((each.until for each in self._removals if each.until.deliver_at_ms <= now_ms), default=None)


def _is_needed(removal: Removal, below: OrderKey | None) -> bool:
    return below is None or below < removal.until
