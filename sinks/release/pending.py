"""What is handed over and not released: the pure core of the release stage, without Kafka and without a clock.

It takes in chunks in the order of the ready log, and plans transactions in delivery order. Each plan has the position
that is written with it (`Position`: offset `taken_in`, order key `below`). After a crash, a new `Pending` that begins
at the last committed position, and reads the log again from its offset `lowest`, plans exactly the rest.

Where a message is:

1. *Incoming*: in a chunk at or above `taken_in`.
2. *Waiting*: in a chunk below it that begins at or above the bound. A chunk stays encoded; without room for it in
   memory, only its summary stays, and it is read again when it is needed.
3. *Open*: in the rest of a decoded chunk, at or above the bound.
4. *Current*: below the bound, in order. Transactions are cut from here.

A message that arrives with an order key below `below` is *late*: it was handed over too late to be in order. Late
messages go out at once, by themselves, and the chunks that have them are taken in whole.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from sortedcontainers import SortedKeyList, SortedList

from sinks.internal_topics.position import Position
from sinks.ready_log.chunk import ChunkSummary
from sinks.release.records import bytes_at_most
from state.message import decode_chunk, empty_messages
from state.order import OrderKey, count_before, in_order, just_after, key_of

# How much due time is put in order at a time. Each time costs a little for every open chunk.
_WINDOW_MS = 200
# Decoded messages that are put in order at a time.
_MOST_ORDERED_BYTES = 8 * 1024 * 1024
# Missing chunks to read at a time.
_MOST_RELOADED_BYTES = 4 * 1024 * 1024


class PayloadMissing(Exception):
    """The chunks at `offsets` of the ready log, ascending, must be read again and given to `Pending.restore`."""

    def __init__(self, offsets: list[int]) -> None:
        super().__init__(f"{len(offsets)} chunks must be read again")
        self.offsets = offsets


@dataclass(frozen=True)
class Limits:
    """How a transaction is cut: messages, bytes, and the due time that it spans (ms). It has one message at least."""

    messages: int
    bytes: int
    slice_ms: int


@dataclass(frozen=True)
class Planned:
    """A transaction: its messages in delivery order, and the position after it."""

    messages: pa.Table
    position: Position
    largest_bytes: int

    @property
    def last_due_ms(self) -> int:
        """When its last message is due, epoch ms; 0 without messages."""
        if not self.messages.num_rows:
            return 0
        return int(self.messages.column("deliver_at_ms")[-1].as_py())


@dataclass
class _Chunk:
    """A chunk that is not decoded. Of its messages, those below `first` are released."""

    offset: int
    first: OrderKey
    summary: ChunkSummary
    payload: bytes | None

    def messages(self) -> pa.Table:
        assert self.payload is not None
        messages = decode_chunk(self.payload)
        return messages if self.first == self.summary.first else messages.slice(count_before(messages, self.first))


@dataclass
class _Open:
    """The rest of a decoded chunk. All of the chunk's memory, `nbytes`, is kept as long as a message is left."""

    offset: int
    messages: pa.Table
    nbytes: int
    first_ms: int


class Pending:
    """What is pending in one shard, from `position` on."""

    def __init__(self, position: Position) -> None:
        self.position = position
        self._next_offset = 0
        self._bound: OrderKey | None = position.below
        self._incoming: deque[_Chunk] = deque()
        self._waiting: SortedKeyList[_Chunk, tuple[OrderKey, int]] = SortedKeyList(key=_need)
        self._open: list[_Open] = []
        self._current = empty_messages()
        # The lowest offset of a chunk with messages in `_current`.
        self._current_from: int | None = None
        # The offsets of waiting and open chunks.
        self._live: SortedList[int] = SortedList()
        # Those of the waiting chunks whose payload is in memory.
        self._loaded: SortedKeyList[_Chunk, tuple[OrderKey, int]] = SortedKeyList(key=_need)
        self._encoded_bytes = self._open_bytes = 0
        self._by_offset: dict[int, _Chunk] = {}

    @property
    def nbytes(self) -> int:
        """The bytes of the messages in memory."""
        return int(self._encoded_bytes + self._open_bytes + self._current.nbytes)

    @property
    def next_due_ms(self) -> int | None:
        """When there is something to plan, epoch ms: 0 for "now", None for "nothing is pending"."""
        if self._incoming:
            return 0
        if self._current.num_rows:
            return int(self._current.column("deliver_at_ms")[0].as_py())
        dues = [each.first_ms for each in self._open]
        dues += [self._waiting[0].first.deliver_at_ms] if self._waiting else []
        return min(dues, default=None)

    def add(self, offset: int, summary: ChunkSummary, payload: bytes) -> None:
        """Add the chunk at `offset`. Offsets ascend, from `position.lowest` on; what comes again is ignored."""
        if offset < self._next_offset:
            return
        self._next_offset = offset + 1
        below = self.position.below
        if offset >= self.position.taken_in:
            chunk = _Chunk(offset, summary.first, summary, payload)
            self._incoming.append(chunk)
        elif below is None or summary.last >= below:
            chunk = _Chunk(offset, summary.first if below is None else max(summary.first, below), summary, payload)
            self._wait(chunk)
        else:
            return
        self._by_offset[offset] = chunk
        self._encoded_bytes += len(payload)

    def restore(self, offset: int, payload: bytes) -> None:
        """Give the payload of a chunk that was dropped."""
        chunk = self._by_offset.get(offset)
        if chunk is not None and chunk.payload is None:
            chunk.payload = payload
            self._encoded_bytes += len(payload)
            if offset < self.position.taken_in:
                self._loaded.add(chunk)

    def shrink(self, max_bytes: int) -> None:
        """Drop the payloads of the chunks that are needed last, until no more than `max_bytes` are in memory."""
        decoded = self._open_bytes + self._current.nbytes
        while self._loaded and self._encoded_bytes + decoded > max_bytes:
            self._drop(self._loaded.pop())
        for chunk in reversed(self._incoming):
            if self._encoded_bytes + decoded <= max_bytes:
                break
            if chunk.payload is not None:
                self._drop(chunk)

    def plan(self, now_ms: int, until_ms: int, limits: Limits) -> Planned | None:
        """Return the next transaction, or None if nothing is due until `until_ms` (epoch ms).

        Raises PayloadMissing if that needs chunks that were dropped; nothing has changed then, but that chunks are
        taken in.
        """
        late = self._take_in(limits)
        if late:
            return self._planned(in_order(pa.concat_tables(late).combine_chunks()), self.position.below)
        # Of a chunk that is read again, the first message that is not released may be due later than its `first`.
        while not self._current.num_rows:
            next_ms = self.next_due_ms
            if next_ms is None or next_ms > until_ms:
                return None
            self._order(max(next_ms, now_ms) + _WINDOW_MS)
        dues = self._current.column("deliver_at_ms").to_numpy()
        first_ms = int(dues[0])
        if first_ms > until_ms:
            return None
        end_ms = max(first_ms + limits.slice_ms, now_ms)
        count = min(int(np.searchsorted(dues, end_ms, side="right")), limits.messages)
        sizes = np.cumsum(_sizes(self._current.slice(0, count)))
        count = max(1, int(np.searchsorted(sizes, limits.bytes, side="right")))
        messages = self._current.slice(0, count)
        self._current = self._current.slice(count)
        if not self._current.num_rows:
            # Not the slice, which would keep all of the memory.
            self._current, self._current_from = empty_messages(), None
        return self._planned(messages, just_after(key_of(messages, -1)))

    def _planned(self, messages: pa.Table, below: OrderKey | None) -> Planned:
        released = self.position.released + messages.num_rows
        self.position = replace(self.position, below=below, lowest=self._lowest(), released=released)
        return Planned(messages, self.position, int(_sizes(messages).max()))

    def _lowest(self) -> int:
        lowest = [self.position.taken_in]
        lowest += [] if self._current_from is None else [self._current_from]
        lowest += [self._live[0]] if self._live else []
        return min(lowest)

    def _take_in(self, limits: Limits) -> list[pa.Table]:
        """Take in chunks until their late messages fill a transaction, and return these."""
        late: list[pa.Table] = []
        count = nbytes = 0
        arrived: list[_Open] = []
        below, bound = self.position.below, self._bound
        while self._incoming and count < limits.messages and nbytes < limits.bytes:
            chunk = self._incoming[0]
            if bound is None or chunk.first >= bound:
                self._wait(chunk)
            elif chunk.payload is None and late:
                break
            elif chunk.payload is None:
                self._settle(arrived)
                raise PayloadMissing(self._missing(list(self._incoming)))
            else:
                messages = chunk.messages()
                is_late = 0 if below is None else count_before(messages, below)
                if is_late:
                    late.append(messages.slice(0, is_late))
                    count += is_late
                    nbytes += int(_sizes(late[-1]).sum())
                self._forget(chunk)
                arrived.append(_Open(chunk.offset, messages.slice(is_late), chunk.summary.nbytes, 0))
            self._incoming.popleft()
            self.position = replace(self.position, taken_in=chunk.offset + 1)
        self._settle(arrived)
        return late

    def _settle(self, opened: list[_Open]) -> None:
        """Put messages of decoded chunks into `_current` if they are below the bound, and else into `_open`."""
        parts = []
        for each in opened:
            count = 0 if self._bound is None else count_before(each.messages, self._bound)
            if count:
                parts.append(each.messages.slice(0, count))
                self._current_from = min(each.offset, each.offset if self._current_from is None else self._current_from)
            if count < each.messages.num_rows:
                rest = each.messages.slice(count)
                self._open.append(_Open(each.offset, rest, each.nbytes, key_of(rest).deliver_at_ms))
                self._open_bytes += each.nbytes
                self._live.add(each.offset)
        if parts:
            self._current = in_order(pa.concat_tables([self._current, *parts]).combine_chunks())

    def _order(self, until_ms: int) -> None:
        """Put the messages due up to `until_ms` in order, as many as there is room for, and raise the bound."""
        target = OrderKey(until_ms + 1, "", 0, 0)
        nbytes = 0
        lowest = self._waiting[0].first if self._waiting else target
        while self._waiting and (first := self._waiting[0].first) < target:
            chunk = self._waiting[0]
            # The bound must rise, so that all chunks that begin at the lowest key are needed at once.
            if first > lowest and (nbytes >= _MOST_ORDERED_BYTES or (nbytes and chunk.payload is None)):
                target = first
                break
            if chunk.payload is None:
                raise PayloadMissing(self._missing(list(self._waiting.irange_key(max_key=(target, 0)))))
            messages = chunk.messages()
            self._waiting.pop(0)
            self._loaded.remove(chunk)
            self._forget(chunk)
            self._open.append(_Open(chunk.offset, messages, chunk.summary.nbytes, key_of(messages).deliver_at_ms))
            self._open_bytes += chunk.summary.nbytes
            nbytes += chunk.summary.nbytes
        self._bound = target
        opened, self._open, self._open_bytes = self._open, [], 0
        for each in opened:
            self._live.remove(each.offset)
        self._settle(opened)

    def _wait(self, chunk: _Chunk) -> None:
        self._waiting.add(chunk)
        self._live.add(chunk.offset)
        if chunk.payload is not None:
            self._loaded.add(chunk)

    def _drop(self, chunk: _Chunk) -> None:
        assert chunk.payload is not None
        self._encoded_bytes -= len(chunk.payload)
        chunk.payload = None

    def _forget(self, chunk: _Chunk) -> None:
        assert chunk.payload is not None
        self._encoded_bytes -= len(chunk.payload)
        del self._by_offset[chunk.offset]

    @staticmethod
    def _missing(chunks: list[_Chunk]) -> list[int]:
        """Return the offsets of the first chunks without payload, up to a few megabytes."""
        offsets: list[int] = []
        nbytes = 0
        for chunk in chunks:
            if chunk.payload is None and (not offsets or nbytes < _MOST_RELOADED_BYTES):
                offsets.append(chunk.offset)
                nbytes += chunk.summary.nbytes
        return sorted(offsets)


def _need(chunk: _Chunk) -> tuple[OrderKey, int]:
    """Return the order in which waiting chunks are needed."""
    return chunk.first, chunk.offset


def _sizes(messages: pa.Table) -> np.ndarray:
    return np.concatenate([bytes_at_most(batch) for batch in messages.to_batches()] or [np.zeros(0, np.int64)])
