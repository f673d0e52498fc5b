"""What an earlier try of a batch has left, which was cut off before Spark committed the batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from conf.errors import CheckpointMismatch
from conf.instants import instant_and_ms
from state.buckets.parts import sealed_part
from state.buckets.segments import Segment
from streaming.checkpoint.recovery import Recovered


@dataclass(frozen=True)
class EarlierTry:
    """What is left of the batch that the first batch of a start replays. It is read once, at the start.

    - `batch_id`: its number; None if the start replays nothing
    - `sealed`: the segments of its bucket; None if it has stored nothing

    What it has staged is in the markers of the shards, and what it refuses is in the checkpoint.
    """

    batch_id: int | None = None
    sealed: tuple[Segment, ...] | None = None

    def check_sealed(self, batch_id: int, segments: Iterable[Segment]) -> None:
        """Raise CheckpointMismatch if batch `batch_id` seals other `segments` than its earlier try, if that has sealed.

        Delta keeps what that has sealed, and skips the second append. The state would keep what the replay does not
        seal, so that it would be delivered twice, and lack what only the replay seals. Compares the number of messages
        of each shard, and the due times of the first and the last one.
        """
        if self.sealed is None or batch_id != self.batch_id:
            return
        before, now = _by_shard(self.sealed), _by_shard(segments)
        for shard in sorted(before.keys() | now.keys()):
            if (first := before.get(shard)) != (second := now.get(shard)):
                raise CheckpointMismatch(
                    f"batch {batch_id} sealed {_described(first)} of shard {shard}, but its replay seals "
                    f"{_described(second)}. Either the replay reads other records, because an input topic is "
                    "compacted or has lost records, or it runs with other libraries. The replay stages no "
                    "messages. `delayline rebuild --discard-checkpoint` makes a checkpoint without this "
                    "batch"
                )


def earlier_try(state: Recovered) -> EarlierTry:
    """Return what is left of the batch that `state` goes on with. Call it before a merge replaces its bucket."""
    planned, origin = state.planned, state.checkpoint.origin
    if planned is None or state.checkpoint.last_committed() == planned.batch_id:
        return EarlierTry()
    batch_id, sealed = planned.batch_id, None
    if state.store.newest_of(origin.checkpoint) == batch_id:
        own = state.catalog.buckets.get(origin.bucket_of(batch_id), ())
        sealed = tuple(each for each in own if each.part == sealed_part(each.bucket))
    return EarlierTry(batch_id, sealed)


class _Sealed(NamedTuple):
    messages: int
    first_ms: int
    last_ms: int


def _by_shard(segments: Iterable[Segment]) -> dict[int, _Sealed]:
    found: dict[int, _Sealed] = {}
    for each in segments:
        own = _Sealed(each.count, each.min_deliver_at_ms, each.max_deliver_at_ms)
        known = found.get(each.shard, own._replace(messages=0))
        found[each.shard] = _Sealed(
            known.messages + own.messages, min(known.first_ms, own.first_ms), max(known.last_ms, own.last_ms)
        )
    return found


def _described(sealed: _Sealed | None) -> str:
    if sealed is None:
        return "no message"
    dues = f"{instant_and_ms(sealed.first_ms)} to {instant_and_ms(sealed.last_ms)}"
    return f"{sealed.messages} messages (due {dues})"
