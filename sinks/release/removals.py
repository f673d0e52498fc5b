"""The messages that requests have taken out of a shard, for as long as the shard has to know them."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import Enum, auto

from sinks.internal_topics.position import Log, Place
from state.message_ids import NO_IDS, Ids, union
from state.order import OrderKey

# Far more than the time from the commit of a release process until the job has read which messages were recalled.
REMEMBERED_MS = 120_000
# A shard plans each second at the least, unless it waits for something else.
_MOST_STEP_MS = 1_000


class Fate(Enum):
    """The fate of messages that were taken out: they are cancelled, or released at once.

    `UNCERTAIN` is the fate of messages that were requested before a crash: they may still wait in the shard.
    """

    CANCELLED = auto()
    MADE_DUE = auto()
    UNCERTAIN = auto()


@dataclass(frozen=True)
class Removal:
    """The messages that the requests of a chunk have taken out, or may have, and their `fate`.

    - `place`: of the chunk
    - `near_taken_in`: up to which offset the near log was taken in by then; after a crash the least bound that is known
    - `until`: all these messages come before this in the delivery order
    - `epoch`: of the checkpoint that the requests belong to
    - `ids`: of the messages
    - `forget_ms`: until when it is remembered, by a clock that stands still while the shard does
    """

    place: Place
    near_taken_in: int
    until: OrderKey
    epoch: int
    ids: Ids
    fate: Fate
    forget_ms: int

    def end(self, log: Log) -> int:
        """Return the offset of `log` below which chunks were taken in before it: only these have its messages."""
        return self.place.offset if log is Log.READY else self.near_taken_in


class Removals:
    """The removals of a shard: until everything due before is released, and for `REMEMBERED_MS` in any case.

    They have the order of their requests. Instants of `forget_ms` are by a clock that stands still while the shard
    does not plan.
    """

    def __init__(self) -> None:
        self._removals: list[Removal] = []
        # The ids of all removals, and by their fate.
        self._ids: Ids = NO_IDS
        self._of_fate: dict[Fate, Ids] = {}
        # For how long the shard has planned, and when it did last (epoch ms).
        self._planning_ms, self._planned_ms = 0, 0

    @property
    def forget_ms(self) -> int:
        """Until when a removal of now is remembered in any case."""
        return self._planning_ms + REMEMBERED_MS

    def add(self, removal: Removal) -> None:
        """Remember `removal`."""
        self._removals.append(removal)
        self._ids = union([self._ids, removal.ids])
        self._of_fate[removal.fate] = union([self.ids_of(removal.fate), removal.ids])

    def ids_of(self, fate: Fate) -> Ids:
        """Return the ids of messages that had this `fate`."""
        return self._of_fate.get(fate, NO_IDS)

    def ids_at(self, place: Place) -> Ids:
        """Return the messages that later requests have taken out of the chunk at `place`, or may have taken out."""
        first = bisect_right(self._removals, place.offset, key=lambda each: each.end(place.log))
        return union(each.ids for each in self._removals[first:]) if first else self._ids

    def go_on(self, now_ms: int, below: OrderKey | None) -> None:
        """Advance the clock to `now_ms` (epoch ms), and forget the removals that are no longer of use.

        A removal is no longer of use if all messages before its `until` are released (`below`), so that no chunk with
        its messages is read again, and if it is too old to be requested again.
        """
        # While a broker does not answer, nothing is planned. The job may not know yet which messages were recalled
        # before that.
        self._planning_ms += min(max(0, now_ms - self._planned_ms), _MOST_STEP_MS)
        self._planned_ms = now_ms
        kept = [each for each in self._removals if _is_needed(each, below) or each.forget_ms > self._planning_ms]
        if len(kept) < len(self._removals):
            self._removals = kept
            self._of_fate = {fate: union(each.ids for each in kept if each.fate is fate) for fate in Fate}
            self._ids = union(self._of_fate.values())

    def needed(self, below: OrderKey | None) -> list[Place]:
        """Return where the requests are that are needed after a crash, if everything `below` is released."""
        return [each.place for each in self._removals if _is_needed(each, below)]

    def passed(self, now_ms: int) -> OrderKey | None:
        """Return the last key below which removed messages would have been released by `now_ms` (epoch ms), or None."""
        return max((each.until for each in self._removals if each.until.deliver_at_ms <= now_ms), default=None)


def _is_needed(removal: Removal, below: OrderKey | None) -> bool:
    return below is None or below < removal.until
