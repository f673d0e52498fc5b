"""Decides the requests that come to a shard, chunk by chunk, about messages that wait in it.

`recall` has the rules. Here is what they need: which ids the waiting chunks have, and copies of the messages that shall
be due at once. Both may take chunks that must be read again, which other messages need not wait for.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from sinks.internal_topics.position import Place
from sinks.release.copies import Copies, due_by, due_now, wanted_of
from sinks.release.encoded_chunks import Chunk, PayloadMissing
from sinks.release.ordered_merge import OrderedMerge
from sinks.release.recall import Removal, WentTo, decide, wanted_now
from sinks.release.removals import Removals
from state.cancel import asked_by
from state.message import empty_messages
from state.message_ids import Ids, among, ids_in, united, without

# Chunks whose ids are made known at a time, for the first request: a few milliseconds, so that nothing else is late.
_INDEXED_AT_A_TIME = 16
# How often other messages go first, if chunks must be read again to know their ids.
_MOST_DEFERRALS = 20


@dataclass(frozen=True)
class Outcome:
    """What the next transaction has of requests that are decided, beside their answers.

    - `passed_on`: requests for the next shard, if any
    - `recalled`: what was taken out
    - `beside`: how many messages count as released beyond those of the transaction
    """

    passed_on: pa.Table | None
    recalled: tuple[Removal, ...]
    beside: int


class RecallDesk:
    """Decides requests about the messages of `merge`, and notes what they take out in `removals`.

    The shard is released by this process since `started_ms` (epoch ms). `went_to` knows what it has released a short
    time ago.
    """

    def __init__(self, merge: OrderedMerge, removals: Removals, went_to: WentTo, started_ms: int) -> None:
        self._merge = merge
        self._removals = removals
        self._went_to = went_to
        self._started_ms = started_ms
        self._copies = Copies()
        # How often the next chunk of requests had to wait, since ids are not known and other messages are due.
        self._deferrals = 0
        # Of requests that are decided since the last transaction.
        self._passed_on: list[pa.Table] = []
        self._recalled: list[Removal] = []
        self._beside = 0

    @property
    def has_outcome(self) -> bool:
        """Whether `take_outcome` returns anything."""
        return bool(self._passed_on or self._beside)

    def take_outcome(self) -> Outcome:
        """Return what was decided since the last call, beside the answers."""
        passed_on = pa.concat_tables(self._passed_on) if self._passed_on else None
        outcome = Outcome(passed_on, tuple(self._recalled), self._beside)
        self._passed_on, self._recalled, self._beside = [], [], 0
        return outcome

    def may_decide(self, place: Place, requests: pa.Table, others_first: bool, others_due: bool) -> bool:
        """Return whether `requests`, of the next chunk, at `place`, can be decided now.

        Otherwise other messages go first: in any case if `others_first`, and for a while if `others_due`. Raises
        PayloadMissing if chunks must be read again for it, and nothing else goes first.
        """
        others_first = others_first or (others_due and self._deferrals < _MOST_DEFERRALS)
        may = self._knows_ids(others_first) and self._has_copies(place, requests, others_first)
        self._deferrals = 0 if may else self._deferrals + 1
        return may

    def wanted_now(self) -> pa.Table:
        """Return the messages that the requests which may be decided want now: what is decoded, and what was copied."""
        wanted = self._copies.wanted
        own = [wanted_of(each, wanted) for each in self._merge.decoded()] if wanted else []
        return pa.concat_tables([empty_messages(), *own, *map(self._copies.of, self._waiting_with(wanted))])

    def decide(
        self, place: Place, near_taken_in: int, requests: pa.Table, wanted: pa.Table, now_ms: int
    ) -> list[pa.Table]:
        """Decide the requests of the chunk at `place`, after the near log was taken in up to `near_taken_in`.

        Returns those that are answered, and what is `wanted` now.
        """
        asked, removed = asked_by(requests), self._removals.removed
        delivered = ids_in(wanted)
        found = self._remove(ids_in(asked.filter(pa.array(~among(asked, removed.certain)))))
        decided = decide(
            place, near_taken_in, requests, without(found, delivered), delivered, removed, self._went_to, now_ms,
            self._started_ms, self._removals.forget_ms,
        )  # fmt: skip
        for removal in decided.removals:
            self._removals.add(removal)
        self._recalled += [each for each in decided.removals if not each.delivers]
        self._passed_on += [decided.passed_on] if decided.passed_on.num_rows else []
        self._beside += decided.beside
        self._copies.begin()
        # A request is due by the clock of the job, which may be ahead: the shard would wait to end the transaction.
        answered = due_by(decided.answered, now_ms)
        return [each for each in (answered, due_now(wanted, now_ms)) if each.num_rows]

    def _remove(self, wanted: Ids) -> Ids:
        """Take the messages `wanted` out, and return the ids of those that wait here, decoded or not."""
        waiting = (part for chunk in self._merge.chunks.waiting for part in chunk.ids or ())
        return united([self._merge.waiting_ids.common(waiting, wanted), self._merge.remove(wanted)])

    def _knows_ids(self, others_first: bool) -> bool:
        """Make known which ids the waiting chunks have, some at a time; return whether all are known.

        Raises PayloadMissing for chunks that must be read again, but not if `others_first`.
        """
        unknown = [chunk for chunk in self._merge.chunks.waiting if chunk.ids is None]
        for chunk in [each for each in unknown if each.payload is not None][:_INDEXED_AT_A_TIME]:
            chunk.ids = (self._merge.ids_of(self._merge.messages_of(chunk)),)
            unknown.remove(chunk)
        if unknown and not others_first and all(chunk.payload is None for chunk in unknown):
            raise PayloadMissing(unknown)
        return not unknown

    def _has_copies(self, place: Place, requests: pa.Table, others_first: bool) -> bool:
        """Copy what `requests` want to be due at once from waiting chunks; return whether that is all of it.

        Raises PayloadMissing for chunks that must be read again, but not if `others_first`.
        """
        wanted = without(wanted_now(requests), self._removals.removed.certain)
        self._copies.begin(place, wanted)
        missing = []
        for chunk in self._waiting_with(wanted):
            if chunk.payload is not None:
                self._copies.search(chunk, self._merge.messages_of(chunk))
            elif not self._copies.has(chunk):
                missing.append(chunk)
        if missing and not others_first:
            raise PayloadMissing(missing)
        return not missing

    def _waiting_with(self, wanted: Ids) -> list[Chunk]:
        """Return the waiting chunks, whose ids are known, that have one of the messages `wanted`."""
        waiting = self._merge.chunks.waiting if wanted else ()
        return [chunk for chunk in waiting if self._merge.waiting_ids.common(chunk.ids or (), wanted)]
