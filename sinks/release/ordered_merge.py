"""The messages of a shard's chunks in delivery order: chunks are decoded when their messages are needed, and merged.

`pending` describes the states of a chunk. The bound is the order key below which everything is in order.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sinks.internal_topics.position import Log
from sinks.release.copies import wanted_of
from sinks.release.encoded_chunks import Chunk, EncodedChunks, PayloadMissing
from sinks.release.open_chunks import OpenChunk, OpenChunks, first_ms
from sinks.release.partition_needs import needs_of, united_needs
from sinks.release.records import bytes_at_most
from sinks.release.removals import Removals
from sinks.release.waiting_ids import ChunkIds, WaitingIds
from state.cancel import without_cancelled
from state.kinds import REQUEST, is_message, kinds_of
from state.message import empty_messages
from state.message_ids import Ids, ids_in, union
from state.order import OrderKey, count_before, in_order, just_after, key_of

# How much due time is put in order at a time. Each time costs a little for every open chunk: with many of these, as
# where delays are spread, more is taken at a time, so that they cost no more in all.
_LEAST_WINDOW_MS, _MOST_WINDOW_MS = 200, 2_000
_WINDOW_MS_A_CHUNK = 10
# Chunks that are decoded at a time, to put messages in order; where memory is short, only this share of it.
_MOST_ORDERED_BYTES = 8 * 1024 * 1024
_SHARE_OF_ORDERED = 8
# The share of the memory for open messages (a half). The rest is for chunks, and for messages in order.
_SHARE_OF_OPEN = 2


class OrderedMerge:
    """Merges the messages of `chunks` from the order key `bound` on, in about `max_bytes` of memory.

    `current` has the messages below the bound, in order, and `current_sizes` the bytes of each. Messages that a request
    has removed (`removals`) are left out.
    """

    def __init__(self, removals: Removals, bound: OrderKey | None) -> None:
        self.max_bytes = sys.maxsize
        self.chunks = EncodedChunks()
        self.opened = OpenChunks()
        self.bound = bound
        self.current = empty_messages()
        # `bytes_at_most` of each current message. Computing it for a slice costs as much as for all of them.
        self.current_sizes = sizes_of(self.current)
        # The ids of waiting chunks, once a request needs them.
        self.waiting_ids = WaitingIds()
        self._removals = removals
        # The lowest offset in each log of a chunk with messages in `current`.
        self._current_from: dict[Log, int] = {}

    @property
    def nbytes(self) -> int:
        """The bytes of the messages in memory."""
        return int(self.chunks.nbytes + self.opened.nbytes + self.current.nbytes)

    @property
    def messages(self) -> int:
        """The number of messages. All messages of a chunk count until it is decoded, even if it is released in part."""
        opened = sum(each.messages.num_rows for each in self.opened)
        return int(self.chunks.messages + opened + self.current.num_rows)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing."""
        return not (self.chunks or len(self.opened) or self.current.num_rows)

    @property
    def next_ms(self) -> int | None:
        """When the next message that is taken in is due, epoch ms, or None."""
        if self.current.num_rows:
            return first_ms(self.current)
        dues = [each.first_ms for each in self.opened]
        dues += [self.chunks.waiting[0].first.deliver_at_ms] if self.chunks.waiting else []
        return min(dues, default=None)

    def needs(self) -> dict[str, int]:
        """Return the output topics of the messages in memory, and how many partitions of each they need.

        Decodes all waiting messages: a tenth of a second for 20 MB.
        """
        opened, encoded = (each.messages for each in self.opened), map(Chunk.decoded, self.chunks.in_memory())
        return united_needs(needs_of(each) for each in chain([self.current], opened, encoded))

    def lowest(self, lowest: dict[Log, int]) -> dict[Log, int]:
        """Return the offset of each log from which on it must be read again after a crash, `lowest` at the most."""
        lowest = lowest | self._current_from
        for log, offset in (*self.opened.first, *self.chunks.first_waiting):
            lowest[log] = min(lowest[log], offset)
        return lowest

    def shrink(self) -> None:
        """Drop the payloads of the chunks that are needed last, until no more than `max_bytes` are in memory.

        Messages in order stay, and at least one message of each open chunk.
        """
        self._shrink_open()
        self.chunks.shrink(self.max_bytes - self.opened.nbytes - self.current.nbytes)

    def messages_of(self, chunk: Chunk) -> pa.Table:
        """Return the messages left of a chunk, without requests: these are decided when it is taken in."""
        messages = chunk.decoded()
        if chunk.summary.has_requests:
            messages = messages.filter(pa.array(kinds_of(messages) != REQUEST))
        return without_cancelled(messages, self._removals.ids_at(chunk.place))

    def ids_of(self, messages: pa.Table) -> ChunkIds:
        """Return the ids of the `messages` of one chunk that may be recalled."""
        return self.waiting_ids.of_chunk(ids_in(messages.filter(pa.array(is_message(messages)))))

    def settle(self, opened: Iterable[OpenChunk]) -> None:
        """Put messages of decoded chunks into `current` if they are below the bound, and else keep them open."""
        parts = []
        for each in opened:
            count = 0 if self.bound is None else count_before(each.messages, self.bound)
            if count:
                parts.append(each.messages.slice(0, count))
                log, offset = each.place
                self._current_from[log] = min(offset, self._current_from.get(log, offset))
            if count < each.messages.num_rows:
                self._keep_open(each.chunk, each.messages.slice(count), each.nbytes)
        if parts:
            self.current = in_order(pa.concat_tables([self.current, *parts]).combine_chunks())
            self.current_sizes = sizes_of(self.current)

    def fill(self, now_ms: int, next_ms: int) -> None:
        """Put messages in order that are due soon after `now_ms`, and after `next_ms`, the next due time (epoch ms).

        Raises PayloadMissing.
        """
        window_ms = min(max(_LEAST_WINDOW_MS, _WINDOW_MS_A_CHUNK * len(self.opened)), _MOST_WINDOW_MS)
        self._order(max(next_ms, now_ms) + window_ms)

    def raise_bound(self, bound: OrderKey) -> None:
        """Let no message before `bound` wait."""
        self.bound = bound if self.bound is None else max(self.bound, bound)

    def cut(self, count: int) -> tuple[pa.Table, npt.NDArray[np.int64]]:
        """Take the first `count` current messages, or more if the next ones have the key of the last of them.

        Several messages have the same key if an input topic was recreated. A position cannot lie between them. Returns
        the messages, and the bytes of each.
        """
        count = self._whole_keys(count)
        messages, sizes = self.current.slice(0, count), self.current_sizes[:count]
        self.current, self.current_sizes = self.current.slice(count), self.current_sizes[count:]
        if not self.current.num_rows:
            # Not the slice, which would keep all of the memory.
            self.current, self._current_from = empty_messages(), {}
        return messages, sizes

    def remove(self, wanted: Ids) -> Ids:
        """Take the `wanted` messages out of the decoded ones, and return their ids."""
        opened = self._opened_with(wanted)
        found = [ids_in(wanted_of(table, wanted)) for table in (self.current, *(each.messages for each in opened))]
        if found[0]:
            self.current = without_cancelled(self.current, wanted)
            self.current_sizes = sizes_of(self.current)
        if not self.current.num_rows:
            self._current_from = {}
        self.opened.remove(wanted, opened)
        return union(found)

    def decoded(self, wanted: Ids) -> list[pa.Table]:
        """Return the decoded messages that have one of the `wanted` ids."""
        opened = (each.messages for each in self._opened_with(wanted))
        return [wanted_of(each, wanted) for each in (self.current, *opened)] if wanted else []

    def _opened_with(self, wanted: Ids) -> list[OpenChunk]:
        """Return the open chunks that may have messages with one of the `wanted` ids."""
        opened = list(self.opened) if wanted else []
        ids = []
        for each in opened:
            each.ids = each.ids or self.ids_of(each.messages)
            ids.append(each.ids)
        return [opened[at] for at in self.waiting_ids.may_have(ids, wanted)]

    def _whole_keys(self, count: int) -> int:
        if count == self.current.num_rows or key_of(self.current, count) != (last := key_of(self.current, count - 1)):
            return count
        return count_before(self.current, last) or count_before(self.current, just_after(last))

    def _keep_open(self, chunk: Chunk, messages: pa.Table, nbytes: int) -> None:
        """Keep `messages` of `chunk` open, which take `nbytes`, and make room if it is too much."""
        self.opened.keep(chunk, messages, nbytes)
        self._shrink_open()

    def _shrink_open(self) -> None:
        """Let open messages wait again if they take more than their share of the memory."""
        for chunk, messages in self.opened.shrink(self.max_bytes // _SHARE_OF_OPEN):
            # Their ids are at hand now, and later the chunk would be read again for the next request.
            known = (chunk.ids if chunk.place in self.chunks else ()) if self.waiting_ids.is_used else None
            chunk.ids = None if known is None else (*known, self.ids_of(messages))
            self.chunks.wait_from(chunk, key_of(messages), messages.num_rows)

    def _order(self, until_ms: int) -> None:
        """Put the messages due up to `until_ms` in order, while there is room for them, and raise the bound."""
        target = OrderKey(until_ms + 1, "", 0, 0)
        most_bytes = min(_MOST_ORDERED_BYTES, self.max_bytes // _SHARE_OF_ORDERED)
        nbytes = 0
        waiting = self.chunks.waiting
        lowest = waiting[0].first if waiting else target
        while waiting and (first := waiting[0].first) < target:
            chunk = waiting[0]
            # Its open messages come first.
            is_rest = chunk.place in self.opened
            # The bound must rise, so that all chunks that begin at the lowest key are needed at once.
            if is_rest or (first > lowest and (nbytes >= most_bytes or (nbytes and chunk.payload is None))):
                target = first
                break
            if chunk.payload is None:
                needed = self.chunks.waiting_before(target)
                raise PayloadMissing(each for each in needed if each.place not in self.opened)
            messages = self.messages_of(chunk)
            self.chunks.forget_waiting()
            nbytes += chunk.summary.nbytes
            # None if all of it is removed.
            if messages.num_rows:
                self._keep_open(chunk, messages, chunk.summary.nbytes)
        self.bound = target
        opened = [each for each in self.opened if each.first_ms <= target.deliver_at_ms]
        for each in opened:
            self.opened.close(each)
        self.settle(opened)


def sizes_of(messages: pa.Table) -> npt.NDArray[np.int64]:
    """Return the bytes of each of `messages`, at the most."""
    return np.concatenate([bytes_at_most(batch) for batch in messages.to_batches()] or [np.zeros(0, np.int64)])
