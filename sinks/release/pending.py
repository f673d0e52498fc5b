"""What is handed over and not released: the pure core of the release stage, without Kafka and without a clock.

It takes in the chunks of each of the two logs in their order, and plans transactions in delivery order. Each plan has
the position that is written with it (`Position`: an offset `taken_in` of each log, and an order key `below`). After a
crash, a new `Pending` that begins at the last committed position, and reads each log again from its offset `lowest`,
plans exactly the rest.

Where a message is (the first two in `encoded_chunks`):

1. *Incoming*: in a chunk at or above `taken_in` of its log.
2. *Waiting*: in a chunk below it that begins at or above the bound. A chunk stays encoded; without room for it in
   memory, only its summary stays, and it is read again when it is needed.
3. *Open*: in what is decoded of a chunk, at or above the bound. Without room, only the first part of a chunk is open:
   its rest waits.
4. *Current*: below the bound, in order. Transactions are cut from here.

A message that arrives with an order key below `below` is *late*: it was handed over too late to be in order. Late
messages go out at once, by themselves, and the chunks that have them are taken in whole: as many at a time as the
limits allow, but one at least. Between two transactions of them, others that are due have their turn.

Asks for what is handed over are decided when their chunk is taken in (`sinks.release.recall`), and go out with the
late messages. So does a message that they want to be due at once (`sinks.release.copies`). They come by the ready log,
and a message that they ask for may lie in the near log, which it was written to before. So their chunk is taken in only
after all that the near log had when it was read.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, dropwhile

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from sortedcontainers import SortedList

from sinks.internal_topics.position import Log, Place, Position
from sinks.ready_log.chunk import ChunkSummary
from sinks.release.closed_topics import needs_of, united_needs
from sinks.release.copies import Copies, due_now, wanted_of
from sinks.release.encoded_chunks import Chunk, EncodedChunks, PayloadMissing
from sinks.release.recall import REMEMBERED_MS, Removal, Removed, WentTo, decide, removed_before, wanted_now
from sinks.release.records import bytes_at_most
from sinks.release.room import Limits, Room
from sinks.release.waiting_ids import ChunkIds, WaitingIds
from state.cancel import asked_by, without_cancelled
from state.kinds import REQUEST, is_message, kinds_of, requests_in
from state.message import decode_chunk, empty_messages
from state.message_ids import NO_IDS, Ids, among, ids_in, united, without
from state.order import OrderKey, count_before, in_order, just_after, key_of

# How much due time is put in order at a time. Each time costs a little for every open chunk: with many of these, as
# where delays are spread, more is taken at a time, so that they cost no more in all.
_LEAST_WINDOW_MS, _MOST_WINDOW_MS = 200, 2_000
_WINDOW_MS_A_CHUNK = 10
# Chunks that are decoded at a time, to put messages in order; where memory is short, only this share of it.
_MOST_ORDERED_BYTES = 8 * 1024 * 1024
_SHARE_OF_ORDERED = 8
# Of the memory, what open messages may have. The rest is for chunks, and for what is in order.
_SHARE_OF_OPEN = 2
# Chunks whose ids are made known at a time, for the first ask: a few milliseconds, so that nothing else is late.
_INDEXED_AT_A_TIME = 16
# A shard plans each second at the least, unless it waits for something else.
_MOST_STEP_MS = 1_000
# How often other messages go first, if chunks must be read again to know their ids.
_MOST_DEFERRALS = 20


def _know_none(asked: pa.Table, _now_ms: int) -> list[None]:
    return [None] * asked.num_rows


@dataclass(frozen=True)
class Planned:
    """A transaction: its messages in delivery order, and the position after it.

    Also asks for the next shard, if any, and what was recalled for those that it answers.
    """

    messages: pa.Table
    position: Position
    largest_bytes: int
    passed_on: pa.Table | None = None
    recalled: tuple[Removal, ...] = ()

    @cached_property
    def topics(self) -> frozenset[str]:
        """The output topics of its messages."""
        return frozenset(self.messages.column("output_topic").unique().to_pylist())

    @property
    def last_due_ms(self) -> int:
        """When its last message is due, epoch ms; 0 without messages."""
        if not self.messages.num_rows:
            return 0
        return int(self.messages.column("deliver_at_ms")[-1].as_py())


@dataclass
class _Open:
    """What is decoded of `chunk`, at or above the bound; the chunk waits if that is not all.

    All of its memory, `nbytes`, is kept as long as a message is left.
    """

    chunk: Chunk
    messages: pa.Table
    nbytes: int
    first_ms: int

    @property
    def place(self) -> Place:
        return self.chunk.place


class Pending:
    """What is pending in one shard, from `position` on, in about `max_bytes` of memory."""

    def __init__(self, position: Position, started_ms: int = 0, went_to: WentTo = _know_none) -> None:
        """The shard is released by this process since `started_ms` (epoch ms).

        `went_to` knows what it has released a short time ago.
        """
        self.position = position
        self.max_bytes = sys.maxsize
        self._started_ms = started_ms
        self._went_to = went_to
        self._removals: list[Removal] = []
        # For how long the shard has planned, and when it did last (epoch ms).
        self._planning_ms, self._planned_ms = 0, 0
        # The ids of all removals.
        self._removed: Ids = NO_IDS
        # Of asks that are decided since the last transaction: those for the next shard, what they have recalled, and
        # what counts as released.
        self._passed_on: list[pa.Table] = []
        self._recalled: list[Removal] = []
        self._released_beside = 0
        # How often the next chunk of asks had to wait, since ids are not known and other messages are due.
        self._deferrals = 0
        # Whether the last transaction was of late messages.
        self._was_late = False
        # The offset below which all of each log is added.
        self._ends = dict.fromkeys(Log, 0)
        # Where the near log ended when all asks below an offset of the ready log were read, and that offset.
        self._near_end = self._asked_below = 0
        self._bound: OrderKey | None = position.below
        self._chunks = EncodedChunks()
        self._open: dict[Place, _Open] = {}
        self._open_bytes = 0
        # The offsets of the open chunks of each log.
        self._open_offsets: dict[Log, SortedList[int]] = {log: SortedList() for log in Log}
        self._current = empty_messages()
        # Of each of these, `bytes_at_most`: it costs as much for a slice as for all of them.
        self._current_sizes = _sizes(self._current)
        # The lowest offset in each log of a chunk with messages in `_current`.
        self._current_from: dict[Log, int] = {}
        self._waiting_ids = WaitingIds()
        self._copies = Copies()

    @property
    def nbytes(self) -> int:
        """The bytes of the messages in memory."""
        return int(self._chunks.nbytes + self._open_bytes + self._current.nbytes)

    @property
    def messages(self) -> int:
        """How many messages there are; those of a chunk that is released in part count whole until it is decoded."""
        opened = sum(each.messages.num_rows for each in self._open.values())
        return int(self._chunks.messages + opened + self._current.num_rows)

    @property
    def next_due_ms(self) -> int | None:
        """When there is something to plan, epoch ms: 0 for "now", None if that takes what is not added yet."""
        return self._next_ms() if self._next_incoming() is None else 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing is pending."""
        return not (self._chunks or self._open or self._current.num_rows)

    @property
    def needs_near_end(self) -> bool:
        """Whether asks wait for `learn_near_end`."""
        incoming = self._chunks.incoming[Log.READY]
        return bool(incoming) and incoming[0].summary.asks and incoming[0].place.offset >= self._asked_below

    def learn_near_end(self, end: int, asked_below: int) -> None:
        """Take note that no record at or above offset `end` was in the near log, committed or not, at a certain time.

        All records of the ready log below offset `asked_below` were read before.
        """
        self._near_end, self._asked_below = end, asked_below

    def end(self, log: Log) -> int:
        """Return the offset below which all of `log` is added."""
        return self._ends[log]

    def reach(self, ends: Mapping[Log, int]) -> None:
        """Take note that all chunks are added that lie below the offset `ends` of each log."""
        for log, end in ends.items():
            self._ends[log] = max(self._ends[log], end)

    def _next_ms(self) -> int | None:
        """Return when the next message that is taken in is due, epoch ms, or None."""
        if self._current.num_rows:
            return _first_ms(self._current)
        dues = [each.first_ms for each in self._open.values()]
        dues += [self._chunks.waiting[0].first.deliver_at_ms] if self._chunks.waiting else []
        return min(dues, default=None)

    def needs(self) -> dict[str, int]:
        """Return the output topics of what is in memory, and how many partitions of each it needs.

        It decodes all that is waiting: a tenth of a second for 20 MB.
        """
        opened, encoded = (each.messages for each in self._open.values()), map(Chunk.decoded, self._chunks.in_memory())
        return united_needs(needs_of(each) for each in chain([self._current], opened, encoded))

    def add(self, place: Place, summary: ChunkSummary, payload: bytes) -> None:
        """Add the chunk at `place`; what comes again is ignored.

        The offsets of a log ascend, from `lowest` of its position on.
        """
        log, offset = place
        if offset < self._ends[log]:
            return
        self._ends[log] = offset + 1
        below, is_taken_in = self.position.below_at(place), offset < self.position.of(log).taken_in
        if summary.asks and is_taken_in:
            self._remember(removed_before(place, requests_in(decode_chunk(payload))))
        if not is_taken_in:
            self._chunks.add_incoming(Chunk(place, summary.first, summary.count, summary, payload))
        elif below is None or summary.last >= below:
            first = summary.first if below is None else max(summary.first, below)
            self._chunks.add_waiting(Chunk(place, first, summary.count, summary, payload))

    def restore(self, place: Place, payload: bytes) -> None:
        """Give the payload of a chunk that was dropped."""
        self._chunks.restore(place, payload)

    def shrink(self) -> None:
        """Drop the payloads of the chunks that are needed last, until no more than `max_bytes` are in memory.

        What is in order stays, and of each open chunk one message at least.
        """
        self._bound_open()
        self._chunks.shrink(self.max_bytes - self._open_bytes - self._current.nbytes)

    def plan(self, now_ms: int, until_ms: int, limits: Limits) -> Planned | None:
        """Return the next transaction, or None if nothing is due until `until_ms` (epoch ms).

        Raises PayloadMissing if that needs chunks that were dropped. Chunks may be taken in by then, or opened, but
        nothing is planned.
        """
        self._forget_removals(now_ms)
        others_first, self._was_late = self._has_turn(max(now_ms, until_ms) + limits.slice_ms), False
        late = self._take_in(limits, now_ms, until_ms, others_first)
        if late or self._passed_on or self._released_beside:
            self._was_late = True
            messages = in_order(pa.concat_tables([empty_messages(), *late]).combine_chunks())
            return self._planned(messages, _sizes(messages), below=None)
        # Of a chunk that is read again, the first message that is not released may be due later than its `first`.
        while not self._current.num_rows:
            next_ms = self._next_ms()
            if next_ms is None or next_ms > until_ms:
                return self._past_removals(now_ms, next_ms)
            window_ms = min(max(_LEAST_WINDOW_MS, _WINDOW_MS_A_CHUNK * len(self._open)), _MOST_WINDOW_MS)
            self._order(max(next_ms, now_ms) + window_ms)
        dues = self._current.column("deliver_at_ms").to_numpy()
        first_ms = int(dues[0])
        if first_ms > until_ms:
            return None
        end_ms = max(first_ms + limits.slice_ms, now_ms)
        count = min(int(np.searchsorted(dues, end_ms, side="right")), limits.messages)
        count = max(1, Room(limits).first_of(self._current.slice(0, count), self._current_sizes[:count]))
        count = self._whole_keys(count)
        messages, sizes = self._current.slice(0, count), self._current_sizes[:count]
        self._current, self._current_sizes = self._current.slice(count), self._current_sizes[count:]
        if not self._current.num_rows:
            # Not the slice, which would keep all of the memory.
            self._current, self._current_from = empty_messages(), {}
        return self._planned(messages, sizes, just_after(key_of(messages, -1)))

    def past(self) -> Planned | None:
        """Return a transaction that only moves the position to the ends of what is added, all of which is released.

        Records without messages lie there: markers of transactions, and what was aborted. None if something is pending,
        or the position is there.
        """
        position = self.position
        for log, end in self._ends.items():
            if end > position.of(log).taken_in:
                position = position.taken_in_to(log, end)
        if not self.is_empty or position is self.position:
            return None
        self.position = position
        return self._planned(empty_messages(), _sizes(empty_messages()), below=None)

    def _whole_keys(self, count: int) -> int:
        """Return about `count`, so that a transaction of so many current messages has all that have the last one's key.

        Several have it where an input topic was made anew. A position cannot lie between them.
        """
        if count == self._current.num_rows or key_of(self._current, count) != (
            last := key_of(self._current, count - 1)
        ):
            return count
        return count_before(self._current, last) or count_before(self._current, just_after(last))

    def _planned(self, messages: pa.Table, sizes: npt.NDArray[np.int64], below: OrderKey | None) -> Planned:
        """Return a transaction, after which what comes before `below` is released; None: no more than before.

        `sizes` has the bytes of each message.
        """
        released = self.position.released + messages.num_rows + self._released_beside
        below = below or self.position.below
        self.position = self.position.moved(below, released, self._lowest(below))
        passed_on = pa.concat_tables(self._passed_on) if self._passed_on else None
        recalled = tuple(self._recalled)
        self._passed_on, self._recalled, self._released_beside = [], [], 0
        return Planned(messages, self.position, int(sizes.max(initial=0)), passed_on, recalled)

    def _past_removals(self, now_ms: int, next_ms: int | None) -> Planned | None:
        """Return a transaction that only moves the position past removed messages, if they would be released by now.

        Nothing else is due before `next_ms`. So the chunks that have them need not be read again.
        """
        below = self.position.below
        passed = [each.until for each in self._removals if each.until.deliver_at_ms <= now_ms]
        highest = max(passed, default=None)
        if highest is None or (below is not None and below >= highest):
            return None
        if next_ms is not None and next_ms < highest.deliver_at_ms:
            return None
        self._bound = highest if self._bound is None else max(self._bound, highest)
        return self._planned(empty_messages(), _sizes(empty_messages()), highest)

    def _lowest(self, below: OrderKey | None) -> dict[Log, int]:
        """Return the lowest offset of each log that a crash makes needed, if what comes before `below` is released."""
        lowest = {log: self.position.of(log).taken_in for log in Log} | self._current_from
        places = [Place(log, offsets[0]) for log, offsets in self._open_offsets.items() if offsets]
        places += self._chunks.first_waiting
        places += [each.place for each in self._removals if below is None or below < each.until]
        for log, offset in places:
            lowest[log] = min(lowest[log], offset)
        return lowest

    def _next_incoming(self, asks_wait: bool = False, late_waits: bool = False) -> Chunk | None:
        """Return the chunk to take in next: of the first ones of the logs, the one that is due first.

        None if there is none, or it has asks that must wait for the near log, or for something else (`asks_wait`), or
        nothing but late messages, which must wait (`late_waits`).
        """
        firsts = (chunks[0] for chunks in self._chunks.incoming.values() if chunks)
        may_come = (
            chunk
            for chunk in firsts
            if (not chunk.summary.asks or not (asks_wait or self._waits_for_near(chunk)))
            and not (late_waits and self._is_late(chunk))
        )
        return min(may_come, key=lambda chunk: chunk.need, default=None)

    def _is_late(self, chunk: Chunk) -> bool:
        return self.position.below is not None and chunk.summary.last < self.position.below

    def _has_turn(self, until_ms: int) -> bool:
        """Return whether messages that are due go out before late ones: answers to many asks come all at once.

        That is so after a transaction of late ones, and if nothing that is hidden behind them is due before `until_ms`
        (epoch ms), and would come out of order.
        """
        next_ms = self._next_ms() if self._was_late else None
        if next_ms is None or next_ms > until_ms:
            return False
        for chunks in self._chunks.incoming.values():
            hidden = dropwhile(lambda chunk: not self._is_late(chunk), chunks)
            if any(not self._is_late(chunk) and chunk.first.deliver_at_ms <= until_ms for chunk in hidden):
                return False
        return True

    def _waits_for_near(self, asks: Chunk) -> bool:
        """Return whether the near log is not taken in up to where it ended when the chunk `asks` was read."""
        near = self._chunks.incoming[Log.NEAR]
        taken_in = near[0].place.offset if near else self._ends[Log.NEAR]
        return asks.place.offset >= self._asked_below or taken_in < self._near_end

    def _take_in(self, limits: Limits, now_ms: int, until_ms: int, late_waits: bool) -> list[pa.Table]:
        """Take in chunks until their late messages fill a transaction, and return these, with the answers to asks.

        If others go first (`late_waits`), only chunks that have messages which are not late. A chunk is taken in whole:
        only if its late messages are the first ones may they be more than `limits` allow.
        """
        late: list[pa.Table] = []
        room = Room(limits)
        arrived: list[_Open] = []
        below, bound = self.position.below, self._bound
        asks_wait = False
        while room.is_left and (chunk := self._next_incoming(asks_wait, late_waits)) is not None:
            log, offset = chunk.place
            if not chunk.summary.asks and (bound is None or chunk.first >= bound):
                self._chunks.let_wait(log)
            elif chunk.payload is None and late:
                break
            elif chunk.payload is None:
                self._settle(arrived)
                raise PayloadMissing(self._chunks.incoming[log])
            else:
                asks = requests_in(chunk.decoded()) if chunk.summary.asks else empty_messages()
                if chunk.summary.asks:
                    # Also what has arrived with it may be asked for.
                    self._settle(arrived)
                    arrived = []
                    if not self._may_decide(chunk.place, asks, has_late=bool(late), until_ms=until_ms):
                        asks_wait = True
                        continue
                messages = self._messages(chunk)
                wanted = self._wanted_now() if asks.num_rows else empty_messages()
                is_late = 0 if below is None else count_before(messages, below)
                # With the asks also those that are passed on.
                added = pa.concat_tables([asks, messages.slice(0, is_late), wanted])
                if not room.takes(added, _sizes(added)):
                    break
                if asks.num_rows:
                    late += self._decide(chunk.place, asks, wanted, now_ms)
                if is_late:
                    late.append(messages.slice(0, is_late))
                self._chunks.forget_incoming(log)
                if is_late < messages.num_rows:
                    arrived.append(_Open(chunk, messages.slice(is_late), chunk.summary.nbytes, 0))
            self.position = self.position.taken_in_to(log, offset + 1)
            if log is Log.NEAR:
                self.position = replace(self.position, forwarded=self.position.forwarded + chunk.summary.count)
        self._settle(arrived)
        return late

    def _may_decide(self, place: Place, asks: pa.Table, has_late: bool, until_ms: int) -> bool:
        """Return whether `asks`, of the next chunk, can be decided now: otherwise other messages go first.

        Raises PayloadMissing if chunks must be read again for it, and nothing else goes first.
        """
        next_ms = self._next_ms()
        is_due = next_ms is not None and next_ms <= until_ms
        others_first = has_late or (is_due and self._deferrals < _MOST_DEFERRALS)
        may = self._knows_ids(others_first) and self._has_copies(place, asks, others_first)
        self._deferrals = 0 if may else self._deferrals + 1
        return may

    def _settle(self, opened: list[_Open]) -> None:
        """Put messages of decoded chunks into `_current` if they are below the bound, and else into `_open`."""
        parts = []
        for each in opened:
            count = 0 if self._bound is None else count_before(each.messages, self._bound)
            if count:
                parts.append(each.messages.slice(0, count))
                log, offset = each.place
                self._current_from[log] = min(offset, self._current_from.get(log, offset))
            if count < each.messages.num_rows:
                self._keep_open(each.chunk, each.messages.slice(count), each.nbytes)
        if parts:
            self._current = in_order(pa.concat_tables([self._current, *parts]).combine_chunks())
            self._current_sizes = _sizes(self._current)

    def _keep_open(self, chunk: Chunk, messages: pa.Table, nbytes: int) -> None:
        """Keep `messages` of `chunk` open, which take `nbytes`, and make room if it is too much."""
        self._open[chunk.place] = _Open(chunk, messages, nbytes, _first_ms(messages))
        self._open_bytes += nbytes
        self._open_offsets[chunk.place.log].add(chunk.place.offset)
        self._bound_open()

    def _close(self, each: _Open) -> None:
        del self._open[each.place]
        self._open_bytes -= each.nbytes
        self._open_offsets[each.place.log].remove(each.place.offset)

    def _bound_open(self) -> None:
        """If open messages take more than their share of the memory, let them wait again until they take half of it.

        That is the later half of what is largest, again and again: all chunks are left with about as much.
        """
        most_bytes = self.max_bytes // _SHARE_OF_OPEN
        if self._open_bytes <= most_bytes:
            return
        largest = [(-each.nbytes, each.place) for each in self._open.values()]
        heapq.heapify(largest)
        while self._open_bytes > most_bytes // 2 and largest:
            each = self._open[heapq.heappop(largest)[1]]
            count = each.messages.num_rows
            # Of a chunk that is released for the most part, a copy of the rest is enough.
            if each.nbytes < 2 * each.messages.nbytes:
                # Not between two with one key, as they are where an input topic was made anew: the bound may be that.
                count = count_before(each.messages, key_of(each.messages, count // 2))
                if not count:
                    continue
                self._wait_for_rest(each.chunk, each.messages.slice(count))
            kept = each.messages.take(np.arange(count))
            self._open_bytes += kept.nbytes - each.nbytes
            each.messages, each.nbytes = kept, kept.nbytes
            heapq.heappush(largest, (-each.nbytes, each.place))

    def _wait_for_rest(self, chunk: Chunk, messages: pa.Table) -> None:
        """Let `chunk` wait for its `messages`, which were open, and for what waits of it already."""
        # They are at hand now, and later the chunk would be read again for the next ask.
        known = (chunk.ids if chunk.place in self._chunks else ()) if self._waiting_ids.is_used else None
        chunk.ids = None if known is None else (*known, self._ids_of(messages))
        self._chunks.wait_from(chunk, key_of(messages), messages.num_rows)

    def _order(self, until_ms: int) -> None:
        """Put the messages due up to `until_ms` in order, as many as there is room for, and raise the bound."""
        target = OrderKey(until_ms + 1, "", 0, 0)
        most_bytes = min(_MOST_ORDERED_BYTES, self.max_bytes // _SHARE_OF_ORDERED)
        nbytes = 0
        waiting = self._chunks.waiting
        lowest = waiting[0].first if waiting else target
        while waiting and (first := waiting[0].first) < target:
            chunk = waiting[0]
            # What is open of it comes before.
            is_rest = chunk.place in self._open
            # The bound must rise, so that all chunks that begin at the lowest key are needed at once.
            if is_rest or (first > lowest and (nbytes >= most_bytes or (nbytes and chunk.payload is None))):
                target = first
                break
            if chunk.payload is None:
                needed = self._chunks.waiting_before(target)
                raise PayloadMissing(each for each in needed if each.place not in self._open)
            messages = self._messages(chunk)
            self._chunks.forget_waiting()
            nbytes += chunk.summary.nbytes
            # None if all of it is removed.
            if messages.num_rows:
                self._keep_open(chunk, messages, chunk.summary.nbytes)
        self._bound = target
        opened = [each for each in self._open.values() if each.first_ms <= target.deliver_at_ms]
        for each in opened:
            self._close(each)
        self._settle(opened)

    def _messages(self, chunk: Chunk) -> pa.Table:
        """Return what is left of a chunk: asks that a release process decides are decided when it is taken in."""
        messages = chunk.decoded()
        if chunk.summary.asks:
            messages = messages.filter(pa.array(kinds_of(messages) != REQUEST))
        return without_cancelled(messages, self._removed)

    def _decide(self, place: Place, asks: pa.Table, wanted: pa.Table, now_ms: int) -> list[pa.Table]:
        """Decide the asks of the chunk at `place`, and return those that are answered, and what is `wanted` now."""
        asked, removed = asked_by(asks), Removed.of(self._removals)
        delivered = ids_in(wanted)
        found = self._remove(ids_in(asked.filter(pa.array(~among(asked, removed.certain)))))
        decided = decide(
            place, asks, without(found, delivered), delivered, removed, self._went_to, now_ms, self._started_ms,
            self._planning_ms + REMEMBERED_MS,
        )  # fmt: skip
        for removal in decided.removals:
            self._remember(removal)
        self._recalled += [each for each in decided.removals if not each.delivers]
        self._passed_on += [decided.passed_on] if decided.passed_on.num_rows else []
        self._released_beside += decided.beside
        self._copies.begin()
        return [each for each in (decided.answered, due_now(wanted, now_ms)) if each.num_rows]

    def _has_copies(self, place: Place, asks: pa.Table, others_first: bool) -> bool:
        """Copy what `asks` at `place` want to be due at once from waiting chunks; return whether that is all of it.

        Raises PayloadMissing for chunks that must be read again, but not if `others_first`.
        """
        wanted = without(wanted_now(asks), Removed.of(self._removals).certain)
        self._copies.begin(place, wanted)
        missing = []
        for chunk in self._waiting_with(wanted):
            if chunk.payload is not None:
                self._copies.search(chunk, self._messages(chunk))
            elif not self._copies.has(chunk):
                missing.append(chunk)
        if missing and not others_first:
            raise PayloadMissing(missing)
        return not missing

    def _waiting_with(self, wanted: Ids) -> list[Chunk]:
        """Return the waiting chunks, whose ids are known, that have one of the messages `wanted`."""
        waiting = self._chunks.waiting if wanted else ()
        return [chunk for chunk in waiting if self._waiting_ids.common(chunk.ids or (), wanted)]

    def _wanted_now(self) -> pa.Table:
        """Return the messages that the asks which may be decided want now: what is decoded, and what was copied."""
        wanted = self._copies.wanted
        decoded = (self._current, *(each.messages for each in self._open.values())) if wanted else ()
        own = [wanted_of(each, wanted) for each in decoded]
        return pa.concat_tables([empty_messages(), *own, *map(self._copies.of, self._waiting_with(wanted))])

    def _remove(self, wanted: Ids) -> Ids:
        """Take the messages `wanted` out of what is decoded, and return their ids and those of waiting chunks."""
        waiting = (part for chunk in self._chunks.waiting for part in chunk.ids or ())
        found = [self._waiting_ids.common(waiting, wanted)]
        for table in (self._current, *(each.messages for each in self._open.values())):
            found.append(ids_in(wanted_of(table, wanted)))
        self._current = without_cancelled(self._current, wanted)
        self._current_sizes = _sizes(self._current)
        if not self._current.num_rows:
            self._current_from = {}
        for each in list(self._open.values()):
            each.messages = without_cancelled(each.messages, wanted)
            if each.messages.num_rows:
                each.first_ms = _first_ms(each.messages)
            else:
                self._close(each)
        return united(found)

    def _knows_ids(self, others_first: bool) -> bool:
        """Make known which ids the waiting chunks have, some at a time; return whether all are known.

        Raises PayloadMissing for chunks that must be read again, but not if `others_first`.
        """
        unknown = [chunk for chunk in self._chunks.waiting if chunk.ids is None]
        for chunk in [each for each in unknown if each.payload is not None][:_INDEXED_AT_A_TIME]:
            chunk.ids = (self._ids_of(self._messages(chunk)),)
            unknown.remove(chunk)
        if unknown and not others_first and all(chunk.payload is None for chunk in unknown):
            raise PayloadMissing(unknown)
        return not unknown

    def _ids_of(self, messages: pa.Table) -> ChunkIds:
        """Return the ids of those of `messages`, of one chunk, that may be recalled."""
        return self._waiting_ids.of_chunk(ids_in(messages.filter(pa.array(is_message(messages)))))

    def _remember(self, removal: Removal) -> None:
        self._removals.append(removal)
        self._removed = united([self._removed, removal.ids])

    def _forget_removals(self, now_ms: int) -> None:
        """Forget removals that no chunk has any more which might be read again, and that nobody asks for again."""
        # While a broker does not answer, nothing is planned. The job may not know yet what was recalled before that.
        self._planning_ms += min(max(0, now_ms - self._planned_ms), _MOST_STEP_MS)
        self._planned_ms, below = now_ms, self.position.below
        kept = [
            each for each in self._removals if below is None or below < each.until or each.forget_ms > self._planning_ms
        ]
        if len(kept) < len(self._removals):
            self._removals = kept
            self._removed = united(each.ids for each in kept)


def _first_ms(messages: pa.Table) -> int:
    """Return when the first of `messages` is due, epoch ms."""
    return int(messages.column("deliver_at_ms")[0].as_py())


def _sizes(messages: pa.Table) -> npt.NDArray[np.int64]:
    return np.concatenate([bytes_at_most(batch) for batch in messages.to_batches()] or [np.zeros(0, np.int64)])
