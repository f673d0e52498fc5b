"""Messages that are staged and not released: the pure core of the release stage, without Kafka and without a clock.

It takes in the chunks of each of the two logs in their order, and plans transactions in delivery order. Each plan has
the position that is written with it (`Position`: an offset `taken_in` of each log, and an order key `below`). After a
crash, a new `Pending` that begins at the last committed position, and reads each log again from its offset `lowest`,
plans exactly the rest.

Where a message is (`encoded_chunks` for the first two, `open_chunks`, `ordered_merge`):

1. *Incoming*: in a chunk at or above `taken_in` of its log.
2. *Waiting*: in a chunk below it that begins at or above the bound. A chunk stays encoded; without room for it in
   memory, only its summary stays, and it is read again when it is needed.
3. *Open*: in the decoded part of a chunk, at or above the bound. Without room, only the first part of a chunk is open,
   and its rest waits.
4. *Current*: below the bound, in order. Transactions are cut from here.

A message that arrives with an order key below `below` is *late*: it was staged too late to be in order. Late
messages go out at once, by themselves, and the chunks that have them are taken in whole: as many at a time as the
limits allow, but one at least. Between two transactions of them, others that are due have their turn.

Requests about staged messages are decided when their chunk is taken in (`recall_desk`). Their answers go out with the
late messages, and so does a message that shall be due at once. `incoming` has the order in which chunks are taken in.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sinks.internal_topics.position import Log, Place, Position
from sinks.ready_log.chunk import ChunkSummary, messages_of
from sinks.release.encoded_chunks import Chunk, PayloadMissing
from sinks.release.incoming import Incoming
from sinks.release.open_chunks import OpenChunk
from sinks.release.ordered_merge import OrderedMerge, sizes_of
from sinks.release.planned import Planned
from sinks.release.recall import removed_before
from sinks.release.recall_desk import RecallDesk, WentTo
from sinks.release.removals import Removals
from sinks.release.room import Limits, Room
from state.kinds import requests_in
from state.message import empty_messages
from state.order import OrderKey, count_before, in_order, just_after, key_of


def _know_none(asked: pa.Table, _now_ms: int) -> list[None]:
    return [None] * asked.num_rows


class Pending:
    """The pending messages of one shard, from `position` on.

    `merge` has the messages, in about `merge.max_bytes` of memory, and `incoming` the chunks to take in next.
    """

    def __init__(self, position: Position, started_ms: int = 0, went_to: WentTo = _know_none) -> None:
        """The shard is released by this process since `started_ms` (epoch ms).

        `went_to` knows which messages it has released recently.
        """
        self.position = position
        self._removals = Removals()
        self.merge = OrderedMerge(self._removals, position.below)
        self._desk = RecallDesk(self.merge, self._removals, went_to, started_ms)
        self.incoming = Incoming(self.merge.chunks)
        # Whether the last transaction was of late messages.
        self._was_late = False

    @property
    def next_due_ms(self) -> int | None:
        """When there is something to plan (epoch ms): 0 for "now", None if more must be added first."""
        return self.merge.next_ms if self.incoming.next(self.position.below) is None else 0

    def add(self, place: Place, summary: ChunkSummary, payload: bytes) -> None:
        """Add the chunk at `place`. A chunk that comes again is ignored.

        The offsets of a log ascend, from `lowest` of its position on.
        """
        log, offset = place
        if offset < self.incoming.ends[log]:
            return
        self.incoming.reach({log: offset + 1})
        below, is_taken_in = self.position.below_at(place), offset < self.position.of(log).taken_in
        if summary.has_requests and is_taken_in:
            requests = requests_in(messages_of(payload, str(place)))
            self._removals.add(removed_before(place, self.position.near.taken_in, requests))
        if not is_taken_in:
            self.merge.chunks.add_incoming(Chunk(place, summary.first, summary.count, summary, payload))
        elif below is None or summary.last >= below:
            first = summary.first if below is None else max(summary.first, below)
            self.merge.chunks.add_waiting(Chunk(place, first, summary.count, summary, payload))

    def plan(self, now_ms: int, until_ms: int, limits: Limits) -> Planned | None:
        """Return the next transaction, or None if nothing is due until `until_ms` (epoch ms).

        Raises PayloadMissing if that needs chunks that were dropped. Chunks may be taken in by then, or opened, but
        nothing is planned.
        """
        merge = self.merge
        self._removals.go_on(now_ms, self.position.below)
        others_first, self._was_late = self._has_turn(max(now_ms, until_ms) + limits.slice_ms), False
        late = self._take_in(limits, now_ms, until_ms, others_first)
        if late or self._desk.has_outcome:
            self._was_late = True
            messages = in_order(pa.concat_tables([empty_messages(), *late]).combine_chunks())
            return self._planned(messages, sizes_of(messages), below=None)
        # If a chunk is read again, its first message that is not released may be due later than its `first`.
        while not merge.current.num_rows:
            next_ms = merge.next_ms
            if next_ms is None or next_ms > until_ms:
                return self._past_removals(now_ms, next_ms)
            merge.fill(now_ms, next_ms)
        dues = merge.current.column("deliver_at_ms").to_numpy()
        first_ms = int(dues[0])
        if first_ms > until_ms:
            return None
        end_ms = max(first_ms + limits.slice_ms, now_ms)
        count = min(int(np.searchsorted(dues, end_ms, side="right")), limits.messages)
        count = max(1, Room(limits).first_of(merge.current.slice(0, count), merge.current_sizes[:count]))
        messages, sizes = merge.cut(count)
        return self._planned(messages, sizes, just_after(key_of(messages, -1)))

    def past(self) -> Planned | None:
        """Return a transaction that only moves the position to the ends of the added records, which are all released.

        There may be records without messages: markers of transactions, and aborted records. Returns None if something
        is pending, or the position is there.
        """
        position = self.position
        for log, end in self.incoming.ends.items():
            if end > position.of(log).taken_in:
                position = position.taken_in_to(log, end)
        if not self.merge.is_empty or position is self.position:
            return None
        self.position = position
        return self._planned(empty_messages(), sizes_of(empty_messages()), below=None)

    def _planned(self, messages: pa.Table, sizes: npt.NDArray[np.int64], below: OrderKey | None) -> Planned:
        """Return a transaction after which all messages before `below` are released; None: no more than before.

        `sizes` has the bytes of each message.
        """
        outcome = self._desk.take_outcome()
        released = self.position.released + messages.num_rows + outcome.beside
        below = below or self.position.below
        self.position = self.position.moved(below, released, self._lowest(below))
        return Planned(messages, self.position, int(sizes.max(initial=0)), outcome.passed_on, outcome.recalled)

    def _past_removals(self, now_ms: int, next_ms: int | None) -> Planned | None:
        """Return a transaction that only moves the position past removed messages, if they would be released by now.

        Nothing else is due before `next_ms`. So the chunks that have them need not be read again.
        """
        below, highest = self.position.below, self._removals.passed(now_ms)
        if highest is None or (below is not None and below >= highest):
            return None
        if next_ms is not None and next_ms < highest.deliver_at_ms:
            return None
        self.merge.raise_bound(highest)
        return self._planned(empty_messages(), sizes_of(empty_messages()), highest)

    def _lowest(self, below: OrderKey | None) -> dict[Log, int]:
        """Return the lowest offset of each log that is needed after a crash, if all before `below` is released."""
        lowest = self.merge.lowest({log: self.position.of(log).taken_in for log in Log})
        for log, offset in self._removals.needed(below):
            lowest[log] = min(lowest[log], offset)
        return lowest

    def _has_turn(self, until_ms: int) -> bool:
        """Return whether messages that are due go out before late ones: answers to many requests come all at once.

        That is so after a transaction of late ones, and if nothing that is hidden behind them is due before `until_ms`
        (epoch ms), and would come out of order.
        """
        next_ms = self.merge.next_ms if self._was_late else None
        if next_ms is None or next_ms > until_ms:
            return False
        return not self.incoming.hides(self.position.below, until_ms)

    def _take_in(self, limits: Limits, now_ms: int, until_ms: int, late_waits: bool) -> list[pa.Table]:
        """Take in chunks until their late messages fill a transaction, and return these, with the answers to requests.

        If others go first (`late_waits`), only chunks that have messages which are not late. A chunk is taken in whole:
        only if its late messages are the first ones may they be more than `limits` allow.
        """
        late: list[pa.Table] = []
        room = Room(limits)
        arrived: list[OpenChunk] = []
        below, bound = self.position.below, self.merge.bound
        requests_wait = False
        while room.is_left and (chunk := self.incoming.next(below, requests_wait, late_waits)) is not None:
            log, offset = chunk.place
            if not chunk.summary.has_requests and (bound is None or chunk.first >= bound):
                self.merge.chunks.let_wait(log)
            elif chunk.payload is None and late:
                break
            elif chunk.payload is None:
                self.merge.settle(arrived)
                raise PayloadMissing(self.merge.chunks.incoming[log])
            else:
                requests = requests_in(chunk.decoded()) if chunk.summary.has_requests else empty_messages()
                if chunk.summary.has_requests:
                    # They may be about what has arrived with them.
                    self.merge.settle(arrived)
                    arrived = []
                    if not self._may_decide(chunk.place, requests, bool(late), until_ms):
                        requests_wait = True
                        continue
                messages = self.merge.messages_of(chunk)
                wanted = self._desk.wanted_now() if requests.num_rows else empty_messages()
                is_late = 0 if below is None else count_before(messages, below)
                # With the requests also those that are passed on.
                added = pa.concat_tables([requests, messages.slice(0, is_late), wanted])
                if not room.takes(added, sizes_of(added)):
                    break
                if requests.num_rows:
                    late += self._desk.decide(chunk.place, self.position.near.taken_in, requests, wanted, now_ms)
                if is_late:
                    late.append(messages.slice(0, is_late))
                self.merge.chunks.forget_incoming(log)
                if is_late < messages.num_rows:
                    arrived.append(OpenChunk(chunk, messages.slice(is_late), chunk.summary.nbytes, 0))
            self.position = self.position.taken_in_to(log, offset + 1)
            if log is Log.NEAR:
                self.position = replace(self.position, forwarded=self.position.forwarded + chunk.summary.count)
        self.merge.settle(arrived)
        return late

    def _may_decide(self, place: Place, requests: pa.Table, has_late: bool, until_ms: int) -> bool:
        """Return whether `requests`, of the next chunk, can be decided now: otherwise other messages go first.

        Raises PayloadMissing if chunks must be read again for it, and nothing else goes first.
        """
        next_ms = self.merge.next_ms
        others_due = next_ms is not None and next_ms <= until_ms
        return self._desk.may_decide(place, requests, others_first=has_late, others_due=others_due)
