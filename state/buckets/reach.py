"""How far ahead of the cutoff messages are loaded, and staged at a time, by the metadata of the live segments."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from state.buckets.catalog import SegmentCatalog
from state.buckets.segments import Segment

# A load reads about one chunk too many of each bucket. So it goes on, up to two weeks ahead, until it has so many
# messages or bytes that this does not matter.
_WORTH_A_LOAD = 100_000
_WORTH_A_LOAD_BYTES = 64 * 1024 * 1024
_MOST_AHEAD_MS = 14 * 24 * 60 * 60 * 1000
# Messages due so soon are loaded however many bytes they have. Otherwise a batch would wait for their load.
_SOON_MS = 5_000
# The precision of the due time up to which messages are loaded.
_EXACTLY_MS = 1_000
# About the size of a stored chunk, which is read whole.
_LEAST_STEP_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Reach:
    """Chooses due times (epoch ms) up to which messages are loaded.

    - `ahead_ms`: how far past the cutoff to load
    - `max_bytes`: about how many bytes may be loaded at a time. Messages due within the next seconds do not count
    - `worth_messages`: how many messages make a load worthwhile
    """

    catalog: SegmentCatalog
    ahead_ms: int
    max_bytes: int
    worth_messages: int = _WORTH_A_LOAD

    def onward(self, horizon_ms: int, cutoff_ms: int, held_bytes: float) -> int:
        """Return up to which due time to load, if everything below `horizon_ms` is loaded; no less than that.

        `held_bytes` is the size of the loaded messages, including messages that are staged and not unloaded yet.
        """
        end_ms = max(horizon_ms, cutoff_ms + self.ahead_ms)
        nbytes, worth = self._expected(horizon_ms, end_ms)
        if held_bytes + nbytes > self.max_bytes:
            # In pieces of half the bytes: a piece is unloaded when all of it is staged.
            half = self.max_bytes // 2
            fitting_ms = self._fitting(horizon_ms, end_ms, half) if held_bytes <= half else horizon_ms
            return max(fitting_ms, self._soon(cutoff_ms))
        while worth < 1 and end_ms - cutoff_ms < _MOST_AHEAD_MS:
            further_ms = min(horizon_ms + 2 * (end_ms - horizon_ms), cutoff_ms + _MOST_AHEAD_MS)
            nbytes, worth = self._expected(horizon_ms, further_ms)
            if worth > 2 or held_bytes + nbytes > self.max_bytes:
                break
            end_ms = further_ms
        return end_ms

    def step(self, cutoff_ms: int, wanted_ms: int) -> int:
        """Return the cutoff that follows `cutoff_ms`: `wanted_ms`, or a lower one if more is due before than one piece.

        It is above `cutoff_ms`. Only messages that are due at the same millisecond can be more than a piece.
        """
        limit = max(self.max_bytes // 2, _LEAST_STEP_BYTES)
        return max(self._fitting(cutoff_ms, wanted_ms, limit, exactly_ms=1), min(cutoff_ms + 1, wanted_ms))

    def back(self, horizon_ms: int, cutoff_ms: int) -> int:
        """Return up to which due time to keep messages loaded below `horizon_ms`, which are about all sealed ones.

        The far part is given up if so much was sealed into it that a load need not reach there. Otherwise everything
        that is sealed and due within days would be loaded at once, whatever its size.
        """
        end_ms, near_ms = horizon_ms, cutoff_ms + self.ahead_ms
        nbytes, worth = self._expected(cutoff_ms, end_ms)
        if worth > 2:
            while end_ms > near_ms and worth > 1:
                end_ms = max(near_ms, (cutoff_ms + end_ms) // 2)
                nbytes, worth = self._expected(cutoff_ms, end_ms)
        if nbytes > self.max_bytes:
            fitting_ms = self._fitting(cutoff_ms, end_ms, self.max_bytes // 2)
            end_ms = min(end_ms, max(fitting_ms, self._soon(cutoff_ms)))
        return end_ms

    def _soon(self, cutoff_ms: int) -> int:
        return cutoff_ms + min(_SOON_MS, self.ahead_ms // 4)

    def _fitting(self, start_ms: int, end_ms: int, limit: int, exactly_ms: int = _EXACTLY_MS) -> int:
        """Return a due time, `end_ms` at most, up to which no more than `limit` bytes are due from `start_ms` on.

        It may be `exactly_ms` too low, but not if all fits.
        """
        segments = self.catalog.overlapping(start_ms, end_ms)
        if due_in(segments, start_ms, end_ms)[1] <= limit:
            return end_ms
        fitting_ms = start_ms
        # By halves: near and far messages may differ in size.
        while end_ms - fitting_ms > exactly_ms:
            middle_ms = (fitting_ms + end_ms) // 2
            if due_in(segments, start_ms, middle_ms)[1] <= limit:
                fitting_ms = middle_ms
            else:
                end_ms = middle_ms
        return fitting_ms

    def _expected(self, start_ms: int, end_ms: int) -> tuple[float, float]:
        """Return how many bytes of messages are due in [start_ms, end_ms), and how many worthwhile loads these are."""
        messages, nbytes = due_in(self.catalog.overlapping(start_ms, end_ms), start_ms, end_ms)
        return nbytes, max(messages / self.worth_messages, nbytes / _WORTH_A_LOAD_BYTES)


def due_in(segments: Iterable[Segment], start_ms: int, end_ms: int) -> tuple[float, float]:
    """Return how many messages of `segments` are due in [start_ms, end_ms), and their bytes.

    The messages of each segment are assumed to be evenly spread.
    """
    messages = nbytes = 0.0
    for segment in segments:
        span = segment.max_deliver_at_ms - segment.min_deliver_at_ms + 1
        due_ms = min(end_ms, segment.max_deliver_at_ms + 1) - max(start_ms, segment.min_deliver_at_ms)
        share = max(0, due_ms) / span
        messages += segment.count * share
        nbytes += segment.bytes * share
    return messages, nbytes
