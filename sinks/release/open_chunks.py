"""The messages of a shard's chunks that are decoded and not in order yet, in a share of the memory."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from sortedcontainers import SortedList

from sinks.internal_topics.position import Log, Place
from sinks.release.encoded_chunks import Chunk
from sinks.release.waiting_ids import ChunkIds
from state.cancel import without_cancelled
from state.message_ids import Ids
from state.order import count_before, key_of


@dataclass
class OpenChunk:
    """The decoded messages of `chunk`, in order. The chunk waits if some messages are not decoded.

    All of its memory, `nbytes`, is kept while a message is left. The first message is due at `first_ms` (epoch ms).
    `ids` has at least the ids of the messages that may be recalled; it is None until a request needs them.
    """

    chunk: Chunk
    messages: pa.Table
    nbytes: int
    first_ms: int
    ids: ChunkIds | None = None

    @property
    def place(self) -> Place:
        """Where the chunk is."""
        return self.chunk.place


class OpenChunks:
    """The open chunks of a shard, by place. `nbytes` is the memory of all."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._open: dict[Place, OpenChunk] = {}
        # The offsets of the open chunks of each log.
        self._offsets: dict[Log, SortedList[int]] = {log: SortedList() for log in Log}

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, place: Place) -> bool:
        return place in self._open

    def __iter__(self) -> Iterator[OpenChunk]:
        return iter(self._open.values())

    @property
    def first(self) -> list[Place]:
        """The place in each log of its first open chunk, if there is any."""
        return [Place(log, offsets[0]) for log, offsets in self._offsets.items() if offsets]

    def keep(self, chunk: Chunk, messages: pa.Table, nbytes: int) -> None:
        """Keep `messages` of `chunk` open, which take `nbytes`."""
        self._open[chunk.place] = OpenChunk(chunk, messages, nbytes, first_ms(messages))
        self.nbytes += nbytes
        self._offsets[chunk.place.log].add(chunk.place.offset)

    def close(self, each: OpenChunk) -> None:
        """Forget a chunk."""
        del self._open[each.place]
        self.nbytes -= each.nbytes
        self._offsets[each.place.log].remove(each.place.offset)

    def remove(self, ids: Ids, opened: Iterable[OpenChunk]) -> None:
        """Take the messages with one of `ids` out of these chunks."""
        for each in opened:
            each.messages = without_cancelled(each.messages, ids)
            if each.messages.num_rows:
                each.first_ms = first_ms(each.messages)
            else:
                self.close(each)

    def shrink(self, most_bytes: int) -> list[tuple[Chunk, pa.Table]]:
        """If all take more than `most_bytes`, shorten them to half of that, and return the messages that are left out.

        Each step leaves out the later half of the largest chunk, so that all chunks end with about the same size.
        """
        left_out = list[tuple[Chunk, pa.Table]]()
        if self.nbytes <= most_bytes:
            return left_out
        largest = [(-each.nbytes, each.place) for each in self._open.values()]
        heapq.heapify(largest)
        while self.nbytes > most_bytes // 2 and largest:
            each = self._open[heapq.heappop(largest)[1]]
            count = each.messages.num_rows
            # If most of a chunk is released, a copy of the rest is enough.
            if each.nbytes < 2 * each.messages.nbytes:
                # Not between two messages with the same key, since the bound may be that key. A recreated input topic
                # has such messages.
                count = count_before(each.messages, key_of(each.messages, count // 2))
                if not count:
                    continue
                left_out.append((each.chunk, each.messages.slice(count)))
            kept = each.messages.take(np.arange(count))
            self.nbytes += kept.nbytes - each.nbytes
            each.messages, each.nbytes = kept, kept.nbytes
            heapq.heappush(largest, (-each.nbytes, each.place))
        return left_out


def first_ms(messages: pa.Table) -> int:
    """Return when the first of `messages` is due, epoch ms."""
    return int(messages.column("deliver_at_ms")[0].as_py())
