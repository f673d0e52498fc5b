"""Decides the requests that come to a shard, chunk by chunk, about messages that wait in it.

`recall` has the rules. A decision needs the ids of the waiting chunks, and copies of the messages that shall be due at
once. Both may need chunks to be read again. Other messages do not have to wait for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sinks.internal_topics.position import Place
from sinks.release.copies import Copies, due_by, due_now
from sinks.release.encoded_chunks import Chunk, PayloadMissing
from sinks.release.ordered_merge import OrderedMerge
from sinks.release.recall import removal_by, terms_of, wanted_now
from sinks.release.removals import REMEMBERED_MS, Fate, Removal, Removals
from state.answers import OLD_MS, Output, Undecided, answered, answers_to
from state.cancel import asked_by
from state.kinds import Mask
from state.message import empty_messages
from state.message_ids import Ids, contains_mask, count_of, ids_in, union, without
from state.reasons import Reason, reasons_for

# Takes a table with the columns `ID`, and the present time (epoch ms). Returns where each message went, or None if the
# shard has not released it, or does not know it any more.
WentTo = Callable[[pa.Table, int], Sequence[Output | None]]
# How old a request may be, by the clocks of two hosts, so that all removals since then are remembered.
_FRESH_MS = REMEMBERED_MS // 2
# How many chunks get their ids known at a time, for the first request. It takes a few milliseconds, so that no other
# work is late.
_INDEXED_AT_A_TIME = 16
# How often other messages go first, if chunks must be read again to know their ids.
_MOST_DEFERRALS = 20


@dataclass(frozen=True)
class Outcome:
    """The results of decided requests that go into the next transaction, in addition to their answers.

    - `passed_on`: requests for the next shard, if any
    - `recalled`: the messages that were taken out
    - `beside`: how many more messages than the transaction has count as released
    """

    passed_on: pa.Table | None
    recalled: tuple[Removal, ...]
    beside: int


class RecallDesk:
    """Decides requests about the messages of `merge`, and notes what they take out in `removals`.

    The shard is released by this process since `started_ms` (epoch ms). `went_to` knows which messages it has released
    recently.
    """

    def __init__(self, merge: OrderedMerge, removals: Removals, went_to: WentTo, started_ms: int) -> None:
        self._merge = merge
        self._removals = removals
        self._went_to = went_to
        self._started_ms = started_ms
        self._copies = Copies()
        # How often the next chunk of requests had to wait, since ids are not known and other messages are due.
        self._deferrals = 0
        # The results of requests that were decided since the last transaction.
        self._passed_on: list[pa.Table] = []
        self._recalled: list[Removal] = []
        self._beside = 0

    @property
    def has_outcome(self) -> bool:
        """Whether `take_outcome` returns anything."""
        return bool(self._passed_on or self._beside)

    def take_outcome(self) -> Outcome:
        """Return the results of requests decided since the last call, without the answers."""
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
        """Return the messages wanted by the requests that may be decided now: decoded messages, and copies."""
        wanted = self._copies.wanted
        waiting = map(self._copies.of, self._waiting_with(wanted))
        return pa.concat_tables([empty_messages(), *self._merge.decoded(wanted), *waiting])

    def decide(
        self, place: Place, near_taken_in: int, requests: pa.Table, wanted: pa.Table, now_ms: int
    ) -> list[pa.Table]:
        """Decide the requests of the chunk at `place`, after the near log was taken in up to `near_taken_in`.

        Returns the answered requests, and the messages that are `wanted` now.
        """
        asked, terms = asked_by(requests), terms_of(requests)
        # 1. Take out the messages that are found.
        gone = contains_mask(asked, union(map(self._removals.ids_of, (Fate.CANCELLED, Fate.MADE_DUE))))
        found, made_due = self._remove(ids_in(asked.filter(pa.array(~gone)))), ids_in(wanted)
        cancelled = without(found, made_due)
        removals = [
            removal_by(terms, place, near_taken_in, ids, fate, self._removals.forget_ms)
            for fate, ids in ((Fate.CANCELLED, cancelled), (Fate.MADE_DUE, made_due))
            if ids
        ]
        for removal in removals:
            self._removals.add(removal)
        self._recalled += [each for each in removals if each.fate is Fate.CANCELLED]
        # 2. Find out what became of each message.
        is_cancelled, is_made_due, is_uncertain = (
            contains_mask(asked, self._removals.ids_of(fate))
            for fate in (Fate.CANCELLED, Fate.MADE_DUE, Fate.UNCERTAIN)
        )
        is_open = ~is_cancelled & ~is_made_due
        unknown = np.flatnonzero(is_open)
        went_to = self._went_to(asked.take(pa.array(unknown)), now_ms)
        outputs = {row: each for row, each in zip(unknown.tolist(), went_to, strict=True) if each is not None}
        is_open[list(outputs)] = False
        asked_ms = np.array([each.asked_ms for each in terms])
        # Before that, another process may have recalled the message for another request, or this one may have forgotten
        # it.
        is_fresh = (asked_ms >= self._started_ms) & (asked_ms > now_ms - _FRESH_MS) & ~is_uncertain
        # 3. Pass on the requests for messages that another shard may have, and answer the others.
        goes_on = is_open & np.array([each.left > 0 for each in terms])
        if goes_on.any():
            self._passed_on.append(_passed_on(requests, terms, goes_on, is_fresh))
        reasons = _reasons(terms, is_cancelled, is_made_due, is_open, is_fresh)
        answers = _answers(asked, terms, reasons, outputs, np.flatnonzero(~goes_on))
        # A request counts where it was staged: in the first shard that it comes to.
        is_first = np.array([each.left == each.shards - 1 for each in terms])
        self._beside += count_of(cancelled) + int((goes_on & is_first).sum()) - int((~goes_on & ~is_first).sum())
        self._copies.begin()
        # A request is due by the clock of the job, which may be ahead: the shard would wait to end the transaction.
        decided = due_by(answered(requests.filter(pa.array(~goes_on)), answers), now_ms)
        return [each for each in (decided, due_now(wanted, now_ms)) if each.num_rows]

    def _remove(self, wanted: Ids) -> Ids:
        """Take the messages `wanted` out, and return the ids of those that wait here, decoded or not."""
        waiting = (part for chunk in self._merge.chunks.waiting for part in chunk.ids or ())
        return union([self._merge.waiting_ids.common(waiting, wanted), self._merge.remove(wanted)])

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
        """Copy the messages that `requests` make due at once from waiting chunks; return whether all are copied.

        Raises PayloadMissing for chunks that must be read again, but not if `others_first`.
        """
        wanted = wanted_now(requests)
        for fate in (Fate.CANCELLED, Fate.MADE_DUE):
            wanted = without(wanted, self._removals.ids_of(fate))
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
        """Return the waiting chunks that have one of the `wanted` messages. The ids of these chunks are known."""
        ids = self._merge.waiting_ids
        waiting = self._merge.chunks.waiting if wanted else ()
        parts = [(chunk, part) for chunk in waiting for part in chunk.ids or ()]
        may = dict.fromkeys(parts[at][0] for at in ids.may_have([part for _, part in parts], wanted))
        return [chunk for chunk in may if ids.common(chunk.ids or (), wanted)]


def _reasons(
    terms: Sequence[Undecided], is_cancelled: Mask, is_made_due: Mask, is_open: Mask, is_fresh: Mask
) -> npt.NDArray[Any]:
    """Return the reason of each answer: if `is_open`, the reason of the last shard that looks for the message."""
    # The last shard gives the same answer as one that has released the message, if no shard has it.
    reasons = np.full(len(terms), Reason.RELEASED, dtype=object)
    reasons[is_cancelled] = Reason.RECALLED
    reasons[is_made_due] = Reason.MADE_DUE
    reasons[is_open & ~is_fresh] = Reason.UNDECIDED
    reasons[is_open & np.array([each.asked_ms == OLD_MS for each in terms])] = Reason.RECORD_DELETED
    return reasons_for(reasons, np.array([each.delivers for each in terms]), np.zeros(len(terms), dtype=bool))


def _answers(
    asked: pa.Table,
    terms: Sequence[Undecided],
    reasons: npt.NDArray[Any],
    outputs: Mapping[int, Output],
    rows: npt.NDArray[np.int64],
) -> pa.Table:
    """Return the answers to the requests of these `rows`, a table of `ANSWER_SCHEMA`.

    `outputs` says where released messages went, by the row of the request.
    """
    comes_with_message = np.array([each.replaces for each in terms])[rows]
    return answers_to(
        asked.take(pa.array(rows)),
        reasons[rows],
        pa.array(comes_with_message, mask=~comes_with_message),
        [outputs[row].field() if row in outputs else {} for row in rows.tolist()],
    )


def _passed_on(requests: pa.Table, terms: Sequence[Undecided], goes_on: Mask, is_fresh: Mask) -> pa.Table:
    """Return the `requests` that go on, with their terms for the next shard."""
    values = [
        each._replace(left=each.left - 1, asked_ms=each.asked_ms if fresh else min(each.asked_ms, 0)).to_bytes()
        for each, goes, fresh in zip(terms, goes_on.tolist(), is_fresh.tolist(), strict=True)
        if goes
    ]
    passed_on = requests.filter(pa.array(goes_on))
    field = passed_on.schema.get_field_index("value")
    return passed_on.set_column(field, passed_on.schema.field(field), pa.array(values, pa.large_binary()))
