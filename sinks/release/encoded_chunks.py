"""The chunks of a shard that are not decoded, or only in part, with their payloads while there is room for them.

A chunk is *incoming* until it is taken in, in the order of its log. Then it *waits*, in the order in which chunks are
needed, or is decoded at once. Its decoded messages may wait again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice

import pyarrow as pa
from sortedcontainers import SortedKeyList, SortedList

from sinks.internal_topics.position import Log, Place
from sinks.ready_log.chunk import ChunkSummary, messages_of
from sinks.release.waiting_ids import ChunkIds
from state.order import OrderKey, count_before

# Missing chunks to read at a time.
_MOST_RELOADED_BYTES = 4 * 1024 * 1024
# No place comes before it.
_FIRST = Place(Log.NEAR, 0)


@dataclass(eq=False)
class Chunk:
    """The part of a chunk that is not decoded: its messages from `first` on, at most `count`."""

    place: Place
    first: OrderKey
    count: int
    summary: ChunkSummary
    # None if it was dropped, and must be read again.
    payload: bytes | None
    # The ids of the messages that may be recalled, in parts; None until a request needs them.
    ids: tuple[ChunkIds, ...] | None = None

    @property
    def need(self) -> tuple[OrderKey, Place]:
        """The order in which chunks are needed."""
        return self.first, self.place

    def decoded(self) -> pa.Table:
        """Return the messages. The payload must be there. Raises ReadyLogLost if it cannot be read."""
        assert self.payload is not None
        messages = messages_of(self.payload, str(self.place))
        return messages if self.first == self.summary.first else messages.slice(count_before(messages, self.first))


class PayloadMissing(Exception):
    """The chunks at `places`, ascending, must be read again and given to `EncodedChunks.restore`."""

    def __init__(self, needed: Iterable[Chunk]) -> None:
        """`places` has the places of the first `needed` chunks without payloads, up to a few megabytes."""
        self.places: list[Place] = []
        nbytes = 0
        for chunk in needed:
            if chunk.payload is None and (not self.places or nbytes < _MOST_RELOADED_BYTES):
                self.places.append(chunk.place)
                nbytes += chunk.summary.nbytes
        self.places.sort()
        super().__init__(f"{len(self.places)} chunks must be read again")


class EncodedChunks:
    """The incoming and the waiting chunks of a shard.

    `incoming` has the former by log, in its order, and `waiting` the latter, in the order in which they are needed:
    both only to be read. `nbytes` are the bytes of the payloads in memory.
    """

    def __init__(self) -> None:
        self.incoming: dict[Log, deque[Chunk]] = {log: deque() for log in Log}
        self.waiting: SortedKeyList[Chunk, tuple[OrderKey, Place]] = SortedKeyList(key=_need)
        self.nbytes = 0
        # The waiting chunks with their payload in memory.
        self._loaded: SortedKeyList[Chunk, tuple[OrderKey, Place]] = SortedKeyList(key=_need)
        # The offsets of the waiting chunks of each log.
        self._offsets: dict[Log, SortedList[int]] = {log: SortedList() for log in Log}
        # All of them.
        self._by_place: dict[Place, Chunk] = {}

    def __len__(self) -> int:
        return len(self._by_place)

    def __contains__(self, place: Place) -> bool:
        return place in self._by_place

    @property
    def messages(self) -> int:
        """The number of messages. All messages of a chunk count, even if it is released in part."""
        return sum(chunk.count for chunk in self._by_place.values())

    @property
    def first_waiting(self) -> list[Place]:
        """The place in each log of the first chunk that waits, if any does."""
        return [Place(log, offsets[0]) for log, offsets in self._offsets.items() if offsets]

    def in_memory(self) -> Iterator[Chunk]:
        """Yield the chunks with their payload in memory."""
        return (chunk for chunk in self._by_place.values() if chunk.payload is not None)

    def waiting_before(self, key: OrderKey) -> Iterator[Chunk]:
        """Yield the waiting chunks that begin before `key`."""
        return self.waiting.irange_key(max_key=(key, _FIRST))

    def add_incoming(self, chunk: Chunk) -> None:
        """Add an incoming chunk: the last one of its log."""
        self.incoming[chunk.place.log].append(chunk)
        self._add(chunk)

    def add_waiting(self, chunk: Chunk) -> None:
        """Add a chunk that waits: it was taken in before a crash."""
        self._add(chunk)
        self._wait(chunk)

    def let_wait(self, log: Log) -> None:
        """Let the next incoming chunk of `log` wait."""
        self._wait(self.incoming[log].popleft())

    def wait_from(self, chunk: Chunk, first: OrderKey, count: int) -> None:
        """Let `count` decoded messages of `chunk` wait again, from `first` on, before those that wait already."""
        if chunk.place in self:
            self._unwait(chunk)
            count += chunk.count
        chunk.first, chunk.count = first, count
        self._by_place[chunk.place] = chunk
        self._wait(chunk)

    def forget_incoming(self, log: Log) -> None:
        """Forget the next incoming chunk of `log`, which is decoded."""
        self._forget(self.incoming[log].popleft())

    def forget_waiting(self) -> None:
        """Forget the waiting chunk that is needed first, which is decoded."""
        chunk = self.waiting[0]
        self._unwait(chunk)
        self._forget(chunk)

    def restore(self, place: Place, payload: bytes) -> None:
        """Give the payload of a chunk that was dropped."""
        chunk = self._by_place.get(place)
        if chunk is not None and chunk.payload is None:
            chunk.payload = payload
            self.nbytes += len(payload)
            if chunk in self.waiting:
                self._loaded.add(chunk)

    def shrink(self, most_bytes: int) -> None:
        """Drop the payloads of the chunks that are needed last, until no more than `most_bytes` are in memory.

        The next incoming chunk of each log stays: requests in it need other chunks too, which would take turns with it.
        """
        while self._loaded and self.nbytes > most_bytes:
            self._drop(self._loaded.pop())
        logs = [self.incoming[log] for log in (Log.READY, Log.NEAR)]
        for chunk in chain(*(islice(reversed(own), max(0, len(own) - 1)) for own in logs)):
            if self.nbytes <= most_bytes:
                break
            if chunk.payload is not None:
                self._drop(chunk)

    def _add(self, chunk: Chunk) -> None:
        self._by_place[chunk.place] = chunk
        self.nbytes += len(chunk.payload or b"")

    def _wait(self, chunk: Chunk) -> None:
        self.waiting.add(chunk)
        self._offsets[chunk.place.log].add(chunk.place.offset)
        if chunk.payload is not None:
            self._loaded.add(chunk)

    def _unwait(self, chunk: Chunk) -> None:
        self.waiting.remove(chunk)
        self._offsets[chunk.place.log].remove(chunk.place.offset)
        if chunk.payload is not None:
            self._loaded.remove(chunk)

    def _drop(self, chunk: Chunk) -> None:
        assert chunk.payload is not None
        self.nbytes -= len(chunk.payload)
        chunk.payload = None

    def _forget(self, chunk: Chunk) -> None:
        self._drop(chunk)
        del self._by_place[chunk.place]


def _need(chunk: Chunk) -> tuple[OrderKey, Place]:
    return chunk.need
