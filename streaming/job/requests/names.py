"""Looks names up: which message each request by a name is for, and which messages are dropped.

In the order of their ids, each record with a name is a request for the message before it. That is the last message of
the name in its batch, or else the one that got the name in an earlier batch, by the table. The request is decided like
any other (`streaming.job.requests.decision`). A message is never staged if another message, or a cancel, of its own
batch requests it.

A message that was accepted in the mode `KEEP` or `KEEP_TIME` *keeps its name* and its due time. As long as it does, a
later message of the name in the mode `KEEP` is dropped and requests nothing. One in the mode `KEEP_TIME` replaces it,
and takes over its due time, whether that is sooner or later than its own. It was first placed by its own due time, and
is then moved (`state.buckets.moves`). The batch does not wait for the release processes here: if a staged message comes
out, its replacement comes out at the same time.

A message keeps its name until it is due, or until there is a request for it, by its name or its id. The kind and the
outcome of the request do not matter: at a replay, release processes may have recalled other messages, and a message
must not be dropped in favour of one that does not come out. From then on it is replaced like any other. A deliver-now
request has no effect on a waiting message that repeats. That is known here, so such a request does not count.

A message has its name until it is due, or until a request has made it due at once. After an outage it has its name
until it is staged: messages that fell due meanwhile wait in the table, and are cancelled like any waiting message.

A replay finds the same: it leaves out the names that its own batch has stored. So does the first batch after a rebuild:
a lost batch may have stored names of messages that are now read again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from state.buckets.cancelled import CANCELLED_SCHEMA
from state.buckets.retimed import RETIMED_SCHEMA
from state.cancel import ALWAYS, NOTHING, REQUEST_SCHEMA, MessageId, Request, requests_of
from state.checkpoint.progress import BatchSpan
from state.message_ids import NO_IDS, Ids, has_id, ids_in, ids_of, table_from, to_set
from state.names import KEEP, KEEP_TIME, NAMED_SCHEMA
from state.order import request_due_ms


class StoredNames(Protocol):
    """The names that earlier batches have stored: `streaming.job.requests.stored_ids.StoredIds` has the methods."""

    def named_among(self, names: Iterable[bytes], from_ms: int) -> pa.Table:
        """Return which messages have one of `names`, without rows that are useless since `from_ms`."""

    def keeping_among(self, ids: Ids) -> pa.Table:
        """Return which messages among `ids` keep their names."""

    def moved_among(self, ids: Ids) -> Ids:
        """Return the messages among `ids` that a batch has moved and staged."""


class Holder(NamedTuple):
    """The last message that got a name: its id, its due time, and until when its row is needed, both epoch ms.

    `keeps` says whether it keeps its name and its due time.
    """

    id: MessageId
    deliver_at_ms: int
    until_ms: int
    keeps: bool = False


class _Turn(NamedTuple):
    """The state of a name for its next record: the message that has the name, and whether it keeps it.

    `request` is set for a message of the batch that no request was for yet. The message keeps the name from records
    that were published by `until_ms` (epoch ms), or from all records if that is None. A message of the batch keeps it
    until it is due: if the earlier checkpoint was lost, the message may have come out then. A message that repeats
    keeps it from all records, because another occurrence follows. `deliver_at_ms` is its due time, epoch ms.
    """

    id: MessageId = NOTHING
    keeps: bool = False
    request: Request | None = None
    until_ms: int | None = None
    deliver_at_ms: int = 0

    def keeps_from(self, request: Request) -> bool:
        """Return whether the message of `request` is dropped in its favour."""
        return request.condition == KEEP and self.keeps and not self._is_over(request)

    def leaves_to(self, request: Request) -> bool:
        """Return whether it no longer keeps its name, as it is due by the time of `request`. Then it comes out too.

        Otherwise a publisher with a clock that is ahead would have each message recalled for the next one. A message of
        the batch gives its due time to the next one even then.
        """
        modes = (KEEP, KEEP_TIME) if self.request is None else (KEEP,)
        return request.condition in modes and self.keeps and self._is_over(request)

    def gives_time_to(self, request: Request) -> bool:
        """Return whether the message of `request` takes over its due time, unless it `leaves_to` that message.

        All messages of the batch count as waiting, also if they are due, as they do for any other message that replaces
        them.
        """
        return request.condition == KEEP_TIME and self.keeps

    def _is_over(self, request: Request) -> bool:
        return self.until_ms is not None and (request.published_ms or 0) > self.until_ms


_NOBODY = _Turn()


@dataclass(frozen=True)
class LookedUp:
    """The requests by a name of one batch, once the names are looked up.

    - `requests`: the requests, each with the id of its message; `NOTHING` if no message has the name (`REQUEST_SCHEMA`)
    - `dropped`: the requests of messages that are dropped, each with the id of the message that keeps the name
      (`REQUEST_SCHEMA`)
    - `superseded`: messages of the batch that a later record of the batch requests by name (`CANCELLED_SCHEMA`)
    - `retimed`: messages of the batch that take over another due time (`RETIMED_SCHEMA`)
    - `names`: the messages that have the names from now on, waiting or cancelled by name, as far as that is new
      (`NAMED_SCHEMA`)
    - `earlier`: messages of earlier batches that got the names (`CANCELLED_SCHEMA`). Each is staged or cancelled, or
      waits in the table: a message with a name is never in a mutable bucket.
    """

    requests: pa.Table
    dropped: pa.Table
    superseded: pa.Table
    retimed: pa.Table
    names: pa.Table
    earlier: pa.Table


def look_up(
    requests: pa.Table,
    by_id: Ids,
    stored: StoredNames,
    span: BatchSpan,
    clock_ms: int,
    waiting: Callable[[Ids], pa.Table],
) -> LookedUp:
    """Look up the names of `requests` for the batch of `span`.

    Args:
        requests: the requests by a name (`REQUEST_SCHEMA`).
        by_id: the messages that requests by id are for, without requests that have no effect.
        stored: the rows of earlier batches.
        span: the batch.
        clock_ms: its clock, epoch ms.
        waiting: returns which of some messages wait in the table (`CANCELLED_SCHEMA`).
    """
    previous_ms = span.staged_below_ms
    # A waiting message has its name even if it is due.
    free_ms = min(clock_ms, previous_ms)
    # An earlier checkpoint may have left messages that are due before its last cutoff: the first batch stages them.
    may_be_left = not span.batch_id
    rows = stored.named_among(requests.column("name").to_pylist(), 0 if may_be_left else free_ms)
    known = _holders(rows)
    delivered = to_set(stored.moved_among(ids_of(holder.id for holder in known.values())))
    early = ids_of(holder.id for holder in known.values() if may_be_left and holder.deliver_at_ms < free_ms)
    overdue = to_set(ids_in(waiting(early))) if early else ()
    found = in_turn(requests, known, previous_ms, free_ms, overdue, by_id, delivered, clock_ms)
    # Also the names that no request uses, if there is a request for their messages by id.
    others = _holders(stored.keeping_among(by_id)).items()
    lost = {name: holder._replace(keeps=False) for name, holder in others if name not in known}
    names = pa.concat_tables([found.names, _rows_of(lost)])
    # Later batches look up only rows that are needed from here on (`useful_from_ms`).
    return replace(found, names=names.filter(pc.field("until_ms") >= useful_from_ms(span, clock_ms)))


def useful_from_ms(span: BatchSpan, clock_ms: int) -> int:
    """Return the instant, epoch ms, before which rows of names are useless once the batch of `span` is over.

    By then all messages that are due before it are staged. `clock_ms` is what the clock reads now.
    """
    return min(clock_ms, span.cutoff_ms)


def in_turn(
    requests: pa.Table,
    known: Mapping[bytes, Holder],
    previous_ms: int,
    free_ms: int,
    overdue: Collection[MessageId] = (),
    by_id: Ids = NO_IDS,
    delivered: Collection[MessageId] = (),
    clock_ms: int = 0,
) -> LookedUp:
    """Return the message that each of `requests` is for.

    `known` are the messages of earlier batches, by name. Messages due before `free_ms` are delivered, or about to be,
    and their names are free, except for the `overdue` messages. The names of messages that a request has `delivered`
    are free too. Messages due before `previous_ms` are staged. The messages `by_id`, for which there are requests by
    id, do not keep their names. `clock_ms` is the clock of the batch. All times are epoch ms.
    """
    turns: dict[bytes, _Turn] = {}
    # Includes messages that a cancel has taken: a repeated cancel in a later batch gets the same answer.
    newest: dict[bytes, Holder] = {}
    for name, holder in known.items():
        waits = holder.deliver_at_ms >= previous_ms or holder.id in overdue
        if (waits or holder.deliver_at_ms >= free_ms) and holder.id not in delivered:
            keeps = holder.keeps and not has_id(by_id, holder.id)
            until_ms = None if waits else holder.deliver_at_ms
            turns[name] = _Turn(holder.id, keeps, None, until_ms, holder.deliver_at_ms)
    asked: list[Request] = []
    dropped: list[Request] = []
    superseded: list[tuple[object, ...]] = []
    # The new due time of each, and the later one of the new and its own.
    retimed: dict[MessageId, tuple[int, int]] = {}
    for request in sorted(requests_of(requests), key=lambda request: request.id):
        assert request.name is not None
        turn = turns.get(request.name, _NOBODY)
        # A message with the same id is another one, of an input topic that was created again. A cancel would cancel
        # both.
        if turn.id == request.id or turn.leaves_to(request):
            turn = _NOBODY
        if turn.keeps_from(request):
            dropped.append(request._replace(asked=turn.id))
            continue
        asked.append(request._replace(asked=turn.id, condition=request.condition and ALWAYS))
        if turn.request is not None:
            own_ms = turn.request.deliver_at_ms
            # Its name leads to it until the due time that it had taken over.
            _, until_ms = retimed.pop(turn.id, (own_ms, own_ms))
            superseded.append((*turn.id, own_ms, until_ms))
        if request.deliver_at_ms is None:
            turns[request.name] = _Turn(turn.id)
            continue
        keeps = request.condition in (KEEP, KEEP_TIME) and not has_id(by_id, request.id)
        due_ms = request.deliver_at_ms
        if keeps and turn.gives_time_to(request):
            # Avoid the due time of the request with the same id: no two messages may have the same order key.
            request_ms = int(request_due_ms(request.published_ms or 0, clock_ms, request.deliver_at_ms))
            due_ms = turn.deliver_at_ms + (turn.deliver_at_ms == request_ms)
            retimed[request.id] = due_ms, max(due_ms, request.deliver_at_ms)
        turns[request.name] = _Turn(
            request.id, keeps, request, None if request.repeats else request.deliver_at_ms, due_ms
        )
        # Its row is needed for as long as the row of the message before, which would otherwise be found in its place.
        before = known.get(request.name)
        newest[request.name] = Holder(request.id, due_ms, due_ms if before is None else max(due_ms, before.until_ms))
    # Later batches must know that these no longer keep their names.
    lost = {name: each for name, each in known.items() if each.keeps and name in turns and not turns[name].keeps}
    names = {name: each._replace(keeps=turns[name].keeps) for name, each in {**lost, **newest}.items()}
    return LookedUp(
        _request_table(asked),
        _request_table(dropped),
        table_from(superseded, CANCELLED_SCHEMA),
        table_from([(*identity, *dues) for identity, dues in retimed.items()], RETIMED_SCHEMA),
        _rows_of(names),
        _messages(known.values()),
    )


def _holders(names: pa.Table) -> dict[bytes, Holder]:
    """Return the messages of `names` (`NAMED_SCHEMA`), by name."""
    rows = zip(*(column.to_pylist() for column in names.columns), strict=True)
    return {name: Holder((topic, partition, offset), *terms) for name, topic, partition, offset, *terms in rows}


def _rows_of(holders: Mapping[bytes, Holder]) -> pa.Table:
    """Return the rows of `NAMED_SCHEMA` for `holders`."""
    return table_from([(name, *each.id, *each[1:]) for name, each in holders.items()], NAMED_SCHEMA)


def _request_table(requests: Iterable[Request]) -> pa.Table:
    rows = [(*request.asked, *request.id, *request[2:]) for request in requests]
    return table_from(rows, REQUEST_SCHEMA)


def _messages(several: Iterable[Holder]) -> pa.Table:
    return table_from([(*each.id, each.deliver_at_ms, each.deliver_at_ms) for each in several], CANCELLED_SCHEMA)
