"""The remains of an earlier try of a batch that was cut off before Spark committed the batch."""

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
    """The remains of the batch that a start replays first. They are read once, at the start.

    - `batch_id`: its number; None if the start replays nothing
    - `sealed`: the segments of its bucket; None if it has stored nothing

    The markers of the shards know the staged messages, and the checkpoint has the refusals.
    """

    batch_id: int | None = None
    sealed: tuple[Segment, ...] | None = None

    def check_sealed(self, batch_id: int, segments: Iterable[Segment]) -> None:
        """Raise CheckpointMismatch if batch `batch_id` seals other `segments` than its earlier try has sealed.

        Delta keeps the bucket of the earlier try, and skips the second append. Messages that only the earlier try
        sealed would also stay in the state, and be delivered twice. Messages that only the replay seals would be lost.
        Compares the number of messages of each shard, and their first and last due times.
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
    """Return the remains of the batch that `state` continues with. Call it before a merge replaces its bucket."""
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
