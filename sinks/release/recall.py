"""Recalls staged messages that are not released: the effect of a request in a shard.

The shard of a message does not follow from its id. So a request that the job cannot decide goes from shard to shard, as
a chunk in the ready log of each, until one has the message. That one removes it and answers `cancelled`. A shard that
has released it a short time ago answers `too-late`, and so does the last one. Each step is part of a transaction of the
shard that takes it. A request that the message be due at once goes the same way. The shard that has the message
releases it in the transaction of the answer, which is `due-now`.

A recalled message is still in the ready log. It is left out when its chunk is decoded, and after a crash because of the
request, which is read again: until everything is released that was due before the messages that the request may have
recalled, `LogPosition.lowest` is not above it. Chunks that are taken in after the request are not concerned: an input
topic that was created again gives ids a second time.

The same message may be requested twice. So a shard remembers for `REMEMBERED_MS` which messages it has recalled. After
that, the job knows them from the recalled topic (`state.recalled`). A shard that may have forgotten answers `unknown`,
never a wrong `too-late`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sinks.internal_topics.position import Log, Place
from state.answers import OLD_MS, Output, Undecided, answered, answers_to
from state.cancel import asked_by, first_delivered
from state.kinds import requests_in
from state.message_ids import NO_IDS, Ids, among, count_of, ids_in, united
from state.order import OrderKey
from state.reasons import Reason, reasons_for

# More than the time from the commit of a release process until the job has read what it has recalled, by far.
REMEMBERED_MS = 120_000
# Of that, how old a request may be by the clocks of two hosts.
_FRESH_MS = 60_000
Mask = npt.NDArray[np.bool_]
# Takes a table with the columns `ID`, and the present time (epoch ms). Returns where each message went, or None if the
# shard has not released it, or does not know it any more.
WentTo = Callable[[pa.Table, int], Sequence[Output | None]]


@dataclass(frozen=True)
class Removal:
    """The messages that the requests of a chunk have recalled, or may have.

    - `place`: of the chunk
    - `near_taken_in`: up to which offset the near log was taken in by then; after a crash the least bound that is known
    - `until`: all these messages come before this in the delivery order
    - `epoch`: of the checkpoint whose requests they are
    - `ids`: the recalled messages; if it is not `certain`, the messages that were requested before a crash
    - `forget_ms`: until when it is remembered, by a clock that stands still while the shard does
    - `delivers`: whether they were released then, and not cancelled; not known if it is not `certain`
    """

    place: Place
    near_taken_in: int
    until: OrderKey
    epoch: int
    ids: Ids
    certain: bool
    forget_ms: int
    delivers: bool = False

    def end(self, log: Log) -> int:
        """Return the offset of `log` below which chunks were taken in before it: only these have its messages."""
        return self.place.offset if log is Log.READY else self.near_taken_in


@dataclass(frozen=True)
class Decided:
    """What becomes of the requests of a chunk, as messages: answered, or passed on to the next shard.

    `removals` has the messages that they recall. `beside` is how many messages count as released in addition to the
    answers, and to messages that go out with them because they are due at once.
    """

    answered: pa.Table
    passed_on: pa.Table
    removals: tuple[Removal, ...]
    beside: int


def removed_before(place: Place, near_taken_in: int, requests: pa.Table) -> Removal:
    """Return what `requests`, of the chunk at `place`, may have taken out before a crash.

    The near log was taken in up to `near_taken_in` by then.
    """
    terms = _terms(requests)
    ids = ids_in(asked_by(requests))
    return Removal(place, near_taken_in, _until(terms), _epoch(terms), ids, certain=False, forget_ms=0)


class Removed(NamedTuple):
    """The ids of messages that a shard has recalled, to be `cancelled` or `delivered`, or may have recalled."""

    cancelled: Ids
    delivered: Ids
    doubtful: Ids

    @staticmethod
    def of(removals: Sequence[Removal]) -> Removed:
        """Return the ids that `removals` have."""
        certain = [each for each in removals if each.certain]
        cancelled, delivered = (
            united(each.ids for each in certain if each.delivers == delivers) for delivers in (False, True)
        )
        return Removed(cancelled, delivered, united(each.ids for each in removals if not each.certain))

    @property
    def certain(self) -> Ids:
        """The ids that it has taken out, without those of which it only may have."""
        return united([self.cancelled, self.delivered])


def wanted_now(requests: pa.Table) -> Ids:
    """Return the messages to be due at once, by the first of several `requests` for each."""
    delivers = [each.delivers for each in _terms(requests)]
    # Mostly there are no such requests, and to read the ids takes longer than to look.
    if not any(delivers):
        return NO_IDS
    return first_delivered(asked_by(requests).append_column("delivers", pa.array(delivers, pa.bool_())))


def decide(
    place: Place,
    near_taken_in: int,
    requests: pa.Table,
    cancelled: Ids,
    delivered: Ids,
    removed: Removed,
    went_to: WentTo,
    now_ms: int,
    started_ms: int,
    forget_ms: int,
) -> Decided:
    """Decide the requests of the chunk at `place`, after the near log was taken in up to `near_taken_in`.

    `cancelled` and `delivered` are the messages that the shard has taken out for them, and `removed` those that it has
    before; `went_to` knows those that it has released. It has been released by this process since `started_ms` (epoch
    ms). What is taken out is remembered until `forget_ms`.
    """
    asked, terms = asked_by(requests), _terms(requests)
    is_cancelled = among(asked, united([cancelled, removed.cancelled]))
    is_delivered = among(asked, united([delivered, removed.delivered]))
    is_known = is_cancelled | is_delivered
    released_to = dict(
        zip(np.flatnonzero(~is_known).tolist(), went_to(asked.filter(pa.array(~is_known)), now_ms), strict=True)
    )
    is_released = np.array([released_to.get(row) is not None for row in range(requests.num_rows)], dtype=bool)
    is_open = ~is_known & ~is_released
    left, asked_ms = (np.array([getattr(each, name) for each in terms]) for name in ("left", "asked_ms"))
    is_kept = asked_ms != OLD_MS
    # Before that, another process may have recalled the message for another request, or this one may have forgotten it.
    is_fresh = (asked_ms >= started_ms) & (asked_ms > now_ms - _FRESH_MS)
    is_fresh &= ~among(asked, removed.doubtful)
    goes_on = is_open & (left > 0)
    is_last = is_open & ~goes_on
    delivers = np.array([each.delivers for each in terms])
    # The last shard that looks for it gives the same answer, if no shard has it.
    reasons = np.full(requests.num_rows, Reason.RELEASED, dtype=object)
    reasons[is_cancelled] = Reason.RECALLED
    reasons[is_delivered] = Reason.MADE_DUE
    reasons[is_last & ~is_fresh & is_kept] = Reason.UNDECIDED
    reasons[is_last & ~is_kept] = Reason.RECORD_DELETED
    reasons = reasons_for(reasons, delivers, np.zeros(requests.num_rows, dtype=bool))
    ends = ~goes_on
    comes_with_message = np.array([each.replaces for each in terms])[ends]
    answers = answers_to(
        asked.filter(pa.array(ends)),
        reasons[ends],
        pa.array(comes_with_message, mask=~comes_with_message),
        [{} if (to := released_to.get(row)) is None else to.field() for row in np.flatnonzero(ends).tolist()],
    )
    decided = answered(requests.filter(pa.array(ends)), answers)
    values = [
        each._replace(left=each.left - 1, asked_ms=each.asked_ms if fresh else min(each.asked_ms, 0)).to_bytes()
        for each, goes, fresh in zip(terms, goes_on.tolist(), is_fresh.tolist(), strict=True)
        if goes
    ]
    passed_on = requests.filter(pa.array(goes_on))
    field = passed_on.schema.get_field_index("value")
    passed_on = passed_on.set_column(field, passed_on.schema.field(field), pa.array(values, pa.large_binary()))
    removals = tuple(
        Removal(place, near_taken_in, _until(terms), _epoch(terms), ids, True, forget_ms, now)
        for ids, now in ((cancelled, False), (delivered, True))
        if ids
    )
    # A request counts where it was staged: in the first shard that it comes to.
    is_first = np.array([each.left == each.shards - 1 for each in terms])
    beside = count_of(cancelled) + int((goes_on & is_first).sum()) - int((~goes_on & ~is_first).sum())
    return Decided(decided, passed_on, removals, beside)


def uncounted(messages: pa.Table, taken_in: bool) -> int:
    """Return how many of `messages`, of one chunk, are requests that do not count as staged in this shard and waiting.

    These are all requests if the chunk is `taken_in`; otherwise those that another shard has passed on.
    """
    requests = requests_in(messages)
    return requests.num_rows if taken_in else sum(each.left < each.shards - 1 for each in _terms(requests))


def next_shards(passed_on: pa.Table, shard: int) -> Iterable[tuple[int, pa.Table]]:
    """Yield the shards that requests are passed on to from `shard`, and the requests."""
    following = np.array([(shard + 1) % each.shards for each in _terms(passed_on)])
    for number in np.unique(following).tolist():
        yield number, passed_on.filter(pa.array(following == number))


def _terms(requests: pa.Table) -> list[Undecided]:
    # The terms of a batch are all the same.
    known: dict[bytes, Undecided] = {}
    values = requests.column("value").to_pylist()
    for value in values:
        if value not in known:
            known[value] = Undecided.from_bytes(value)
    return [known[value] for value in values]


def _epoch(terms: list[Undecided]) -> int:
    # After a fresh start, requests of the checkpoint before may be passed on with the others.
    return max(each.epoch for each in terms)


def _until(terms: list[Undecided]) -> OrderKey:
    return OrderKey(max(each.due_before_ms for each in terms), "", 0, 0)
