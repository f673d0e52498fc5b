"""Whether a replayed batch seals what its first try has sealed. Delta keeps that, and skips the second append."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from conf.errors import CheckpointMismatch
from conf.instants import instant_and_ms
from state.buckets.segments import Segment


class SealedBatch(NamedTuple):
    """The newest batch that has sealed, and the segments of its bucket."""

    batch_id: int | None
    segments: Collection[Segment]

    def check(self, batch_id: int, segments: Iterable[Segment]) -> None:
        """Raise CheckpointMismatch if this is batch `batch_id`, and it seals other `segments` than the table has.

        Compares the number of messages of each shard, and the due times of the first and the last one. The state would
        keep what the replay does not seal, so that it would be delivered twice, and lack what only the replay seals.
        """
        if batch_id != self.batch_id:
            return
        before, now = _by_shard(self.segments), _by_shard(segments)
        for shard in sorted(before.keys() | now.keys()):
            if (first := before.get(shard)) != (second := now.get(shard)):
                raise CheckpointMismatch(
                    f"batch {batch_id} sealed {_described(first)} of shard {shard}, but its replay seals "
                    f"{_described(second)}. Either the replay reads other records, because an input topic is "
                    "compacted or has lost records, or it runs with other libraries. The replay stages no "
                    "messages. `delayline rebuild --discard-checkpoint` makes a checkpoint without this "
                    "batch"
                )


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
