"""Which messages are delivered, told by the markers alone: what a lost checkpoint is rebuilt by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from state.checkpoint.origin import CheckpointOrigin, Offsets
from state.checkpoint.progress import Progress
from state.order import up_to
from state.shards import shards_of

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Delivered:
    """What one checkpoint has delivered, by the last marker of each of its shards.

    A shard's marker is of the last batch that delivered anything of it. So of what was accepted before that batch all
    below the cutoff before it is out, of that batch's messages all up to the marker's last one, and of what came
    later nothing. (The last one can be a dead letter, whose time may lie beyond the cutoff.)
    """

    markers: tuple[Progress, ...]

    @property
    def origin(self) -> CheckpointOrigin:
        """How the checkpoint began."""
        return self.markers[0].batch.origin

    @property
    def last_batch(self) -> int:
        """The newest batch that delivered anything; -1 if none has."""
        return max(marker.batch.batch_id for marker in self.markers)

    @property
    def cutoff_ms(self) -> int:
        """The instant from which on nothing has been delivered, epoch ms."""
        lasts = [
            min(marker.last.deliver_at_ms + 1, marker.batch.cutoff_ms)
            for marker in self.markers
            if marker.last is not None
        ]
        return max([self.origin.cutoff_ms, *(marker.batch.previous_ms for marker in self.markers), *lasts])

    @property
    def whole_before_ms(self) -> int:
        """The instant before which all is delivered of every shard, epoch ms; 0 until the first batch is over.

        A batch runs when the one before is committed; of the newest itself, shards may have delivered more or less.
        """
        return max(marker.batch.previous_ms for marker in self.markers)

    @property
    def ends(self) -> Offsets:
        """Up to where the batches of the markers have read the input."""
        found: Offsets = {}
        for offsets in (self.origin.offsets, *(marker.batch.ends for marker in self.markers)):
            for topic, by_partition in offsets.items():
                known = found.setdefault(topic, {})
                for partition, offset in by_partition.items():
                    known[partition] = max(offset, known.get(partition, 0))
        return found

    def of_input(self, messages: pa.Table) -> Mask:
        """Say of each message, accepted again from the input, whether it is delivered.

        What was accepted before the birth counts as delivered: it is, or it was sealed then.
        """
        gone = _below(messages, self.origin.offsets)

        def by(marker: Progress, some: pa.Table) -> Mask:
            before = _below(some, marker.batch.starts) & _due(some, marker.batch.previous_ms)
            now = _below(some, marker.batch.ends) & _due(some, marker.batch.cutoff_ms)
            return before | (now & _up_to(some, marker))

        return np.asarray(gone | self._by_shard(messages, by))

    def of_bucket(self, messages: pa.Table, bucket: int) -> Mask:
        """Say of each message of a sealed bucket whether it is delivered."""
        due = messages.column("deliver_at_ms").to_numpy()
        gone = (due < self.origin.cutoff_ms) & (bucket < self.origin.overdue_bucket)

        def by(marker: Progress, some: pa.Table) -> Mask:
            # By its due time alone, even if it is a dead letter that an earlier rebuild sealed.
            due = some.column("deliver_at_ms").to_numpy()
            past, now = due < marker.batch.previous_ms, due < marker.batch.cutoff_ms
            return np.asarray(past | (now & _up_to(some, marker)))

        return np.asarray(gone | self._by_shard(messages, by))

    def _by_shard(self, messages: pa.Table, by: Callable[[Progress, pa.Table], Mask]) -> Mask:
        found = np.zeros(messages.num_rows, dtype=bool)
        of = shards_of(messages, len(self.markers))
        for shard in np.unique(of).tolist():
            found[of == shard] = by(self.markers[shard], messages.filter(pa.array(of == shard)))
        return found


def newest_checkpoint(last: Sequence[Progress | None]) -> Delivered | None:
    """Return what the newest checkpoint has delivered, from the last marker in each partition of the progress topic.

    Every birth writes a marker for each of its shards, and so into the first partition. None if a shard lacks its own.
    """
    if not last or last[0] is None:
        return None
    newest = last[0].batch.origin
    own = [marker for marker in last[: newest.shards] if marker is not None and marker.batch.origin == newest]
    return Delivered(tuple(own)) if len(own) == newest.shards else None


def _up_to(messages: pa.Table, marker: Progress) -> Mask:
    """Say which messages are not after the marker's last one; none if it has none."""
    return np.zeros(messages.num_rows, dtype=bool) if marker.last is None else up_to(messages, marker.last)


def _due(messages: pa.Table, cutoff_ms: int) -> Mask:
    """Say which messages a batch delivers that accepts them: a dead letter goes out at once, whatever time it bears."""
    bad = np.asarray(pc.is_valid(messages.column("error_code")))
    return np.asarray((messages.column("deliver_at_ms").to_numpy() < cutoff_ms) | bad)


def _below(messages: pa.Table, offsets: Offsets) -> Mask:
    """Say which messages were read from below `offsets`; of a partition that is not among them, none."""
    topics = messages.column("topic").dictionary_encode().combine_chunks()
    names = np.asarray(topics.indices)
    partitions = messages.column("partition").to_numpy()
    read = messages.column("offset").to_numpy()
    found = np.zeros(messages.num_rows, dtype=bool)
    for at, topic in enumerate(topics.dictionary.to_pylist()):
        for partition, offset in offsets.get(topic, {}).items():
            found |= (names == at) & (partitions == int(partition)) & (read < offset)
    return found
