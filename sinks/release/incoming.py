"""Which chunk of a shard's two logs is taken in next."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import dropwhile

from sinks.internal_topics.position import Log
from sinks.release.encoded_chunks import Chunk, EncodedChunks
from state.order import OrderKey


class Incoming:
    """The order in which the incoming chunks among `chunks` are taken in.

    A chunk of requests waits until everything is taken in that the near log had when the chunk was read: the messages
    to recall may be there.
    """

    def __init__(self, chunks: EncodedChunks) -> None:
        self._chunks = chunks
        # The offset below which all of each log is added.
        self._ends = dict.fromkeys(Log, 0)
        # Where the near log ended when all requests below an offset of the ready log were read, and that offset.
        self._near_end = self._requests_below = 0

    @property
    def ends(self) -> Mapping[Log, int]:
        """The offset below which all of each log is added."""
        return self._ends

    def reach(self, ends: Mapping[Log, int]) -> None:
        """Take note that all chunks are added that lie below the offset `ends` of each log."""
        for log, end in ends.items():
            self._ends[log] = max(self._ends[log], end)

    @property
    def needs_near_end(self) -> bool:
        """Whether requests wait for `learn_near_end`."""
        ready = self._chunks.incoming[Log.READY]
        return bool(ready) and ready[0].summary.has_requests and ready[0].place.offset >= self._requests_below

    def learn_near_end(self, end: int, requests_below: int) -> None:
        """Take note that no record at or above offset `end` was in the near log, committed or not, at a certain time.

        All records of the ready log below offset `requests_below` were read before.
        """
        self._near_end, self._requests_below = end, requests_below

    def next(self, below: OrderKey | None, requests_wait: bool = False, late_waits: bool = False) -> Chunk | None:
        """Return the chunk to take in next: of the first ones of the logs, the one that is due first.

        Messages before `below` are late. Returns None if there is no chunk, or if it has only late messages, which must
        wait (`late_waits`). Also returns None if it has requests that must wait for the near log, or for something else
        (`requests_wait`).
        """
        firsts = (chunks[0] for chunks in self._chunks.incoming.values() if chunks)
        may_come = (
            chunk
            for chunk in firsts
            if (not chunk.summary.has_requests or not (requests_wait or self._waits_for_near(chunk)))
            and not (late_waits and _is_late(chunk, below))
        )
        return min(may_come, key=lambda chunk: chunk.need, default=None)

    def hides(self, below: OrderKey | None, until_ms: int) -> bool:
        """Return whether a chunk behind late ones has messages that are not late, due until `until_ms` (epoch ms)."""
        for chunks in self._chunks.incoming.values():
            hidden = dropwhile(lambda chunk: not _is_late(chunk, below), chunks)
            if any(not _is_late(chunk, below) and chunk.first.deliver_at_ms <= until_ms for chunk in hidden):
                return True
        return False

    def _waits_for_near(self, requests: Chunk) -> bool:
        """Return whether the near log is not taken in up to where it ended when the chunk `requests` was read."""
        near = self._chunks.incoming[Log.NEAR]
        taken_in = near[0].place.offset if near else self._ends[Log.NEAR]
        return requests.place.offset >= self._requests_below or taken_in < self._near_end


def _is_late(chunk: Chunk, below: OrderKey | None) -> bool:
    return below is not None and chunk.summary.last < below
