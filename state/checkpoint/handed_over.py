"""Which messages are handed over, computed from the markers alone. `rebuild` replaces a lost checkpoint with this."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from state.checkpoint.input_ids import same_topic
from state.checkpoint.origin import CheckpointOrigin, InputIds, Offsets
from state.checkpoint.planned_batch import PlannedBatch
from state.checkpoint.progress import BatchSpan, Progress
from state.kinds import is_message, repeats
from state.order import OrderKey, up_to
from state.shards import shards_of

Mask = npt.NDArray[np.bool_]

# Later than any due time.
_NEVER_MS = 2**63 - 1


@dataclass(frozen=True)
class HandedOver:
    """What one checkpoint has handed over, according to the last marker of each of its shards.

    A shard's marker belongs to the last batch that handed over messages of the shard. Batches before the newest of all
    markers, N, are committed. Of the shard's messages:

    - accepted before batch N and due below the previous cutoff: all are handed over
    - due in batch N: handed over up to the last message of the shard's marker, if that is of batch N. This can be a
      dead letter, whose due time may lie beyond the cutoff.
    - due or accepted later: none is handed over
    """

    markers: tuple[Progress, ...]

    @property
    def origin(self) -> CheckpointOrigin:
        """How the checkpoint began."""
        return self.markers[0].batch.origin

    @property
    def last_batch(self) -> int:
        """The newest batch that handed over messages; -1 if none did."""
        return self.newest.batch_id

    @property
    def newest(self) -> BatchSpan:
        """The same batch, as its markers describe it."""
        return max((marker.batch for marker in self.markers), key=lambda batch: batch.batch_id)

    @property
    def cutoff_ms(self) -> int:
        """The instant from which on nothing has been handed over, epoch ms."""
        lasts = [
            min(marker.last.deliver_at_ms + 1, marker.batch.cutoff_ms)
            for marker in self.markers
            if marker.last is not None
        ]
        return max([self.origin.cutoff_ms, *(marker.batch.previous_ms for marker in self.markers), *lasts])

    @property
    def overdue_ms(self) -> int:
        """When at the latest a message is due, epoch ms, that the first batch of the next checkpoint hands over.

        That batch takes what is due at 0 or later, if nothing was handed over before.
        """
        return max(0, self.cutoff_ms - 1)

    @property
    def whole_before_ms(self) -> int:
        """The instant before which every shard has handed over all messages, epoch ms; 0 until the first batch is over.

        A batch runs only after the previous one is committed. The newest batch itself may be handed over in part.
        """
        return max(marker.batch.previous_ms for marker in self.markers)

    @property
    def followed_batch(self) -> int:
        """The newest batch whose following occurrences the markers know to be in the table; -1 if there is none."""
        return max(marker.followed_batch for marker in self.markers)

    @property
    def input_ids(self) -> InputIds:
        """The input topics that the newest batch has read."""
        return self.newest.input_ids or self.origin.input_ids

    @property
    def _taken_over(self) -> Offsets:
        """The offsets of the origin."""
        return self._present(self.origin.offsets, self.origin.input_ids)

    def _present(self, offsets: Offsets, ids: InputIds) -> Offsets:
        """Return `offsets` of the topics `ids`, without topics that were deleted and created again since."""
        return {topic: own for topic, own in offsets.items() if same_topic(ids, self.input_ids, topic)}

    @property
    def ends(self) -> Offsets:
        """The offsets up to which the batches of the markers have read the input."""
        ends: Offsets = {}
        for offsets in (self._taken_over, *(self._present(m.batch.ends, m.batch.input_ids) for m in self.markers)):
            for topic, by_partition in offsets.items():
                known = ends.setdefault(topic, {})
                for partition, offset in by_partition.items():
                    known[partition] = max(offset, known.get(partition, 0))
        return ends

    def of_input(self, messages: pa.Table) -> Mask:
        """Return which of `messages`, accepted again from the input, are handed over.

        Messages accepted before the checkpoint began count as handed over: each was handed over or sealed by then.
        """
        taken_over = _below(messages, self._taken_over)
        # Its due time may be known roughly alone, as a lower bound. So a marker that stood still cannot decide.
        before = self.before_newest(messages) & _due(messages, self.newest.previous_ms)

        def is_handed_over(marker: Progress, own: pa.Table) -> Mask:
            ends = self._present(marker.batch.ends, marker.batch.input_ids)
            now = _below(own, ends) & _due(own, marker.batch.cutoff_ms)
            if (below_ms := marker.occurrences_below_ms) is not None:
                now &= ~repeats(own) | _due(own, below_ms)
            return np.asarray(now & _up_to(own, marker))

        return np.asarray(taken_over | before | self._by_shard(messages, is_handed_over))

    def before_newest(self, messages: pa.Table) -> Mask:
        """Return which of `messages` were accepted before the newest batch."""
        return _below(messages, self.newest.starts)

    def of_bucket(self, messages: pa.Table, bucket: int) -> Mask:
        """Return which of `messages` of a sealed bucket are handed over, or were cancelled and would be otherwise."""

        def is_handed_over(marker: Progress, own: pa.Table) -> Mask:
            # The due time alone decides, even for a dead letter that an earlier rebuild sealed.
            now = own.column("deliver_at_ms").to_numpy() < marker.batch.cutoff_ms
            return np.asarray(now & _up_to(own, marker))

        before = self.of_bucket_before_newest(messages, bucket)
        return np.asarray(before | self._by_shard(messages, is_handed_over))

    def of_bucket_before_newest(self, messages: pa.Table, bucket: int) -> Mask:
        """Return which of `messages` of a sealed bucket batches before the newest have taken."""
        due = messages.column("deliver_at_ms").to_numpy()
        taken_over = (due < self.origin.cutoff_ms) & (bucket < self.origin.overdue_bucket)
        # By the newest marker of all shards. Its own stays as it is while all that would be due in the shard is
        # cancelled, and the ids of these may be forgotten by now. Batches before had the bucket (invariant 2).
        return np.asarray(taken_over | (due < self.whole_before_ms))

    def by_newest(self, messages: pa.Table) -> Iterator[tuple[Progress, pa.Table]]:
        """Yield those of `messages` whose shards have a marker of the newest batch, and that marker."""
        shard_of_row = shards_of(messages, len(self.markers))
        for shard in np.unique(shard_of_row).tolist():
            marker = self.markers[shard]
            if marker.batch.batch_id == self.newest.batch_id and marker.last is not None:
                yield marker, messages.filter(pa.array(shard_of_row == shard))

    def of_moved(self, messages: pa.Table, buckets: npt.NDArray[np.int64]) -> Mask:
        """Return which of `messages` are handed over: each was to be by the batch that seals its one of `buckets`.

        They have the due times at which that batch was to hand them over.
        """
        newest = self.newest

        def is_handed_over(marker: Progress, own: pa.Table) -> Mask:
            is_of_newest = np.full(own.num_rows, marker.batch.batch_id == newest.batch_id)
            return np.asarray(is_of_newest & _up_to(own, marker))

        is_up_to = self._by_shard(messages, is_handed_over)
        return np.asarray((buckets < newest.bucket) | ((buckets == newest.bucket) & is_up_to))

    def _by_shard(self, messages: pa.Table, is_handed_over: Callable[[Progress, pa.Table], Mask]) -> Mask:
        handed_over = np.zeros(messages.num_rows, dtype=bool)
        shard_of_row = shards_of(messages, len(self.markers))
        for shard in np.unique(shard_of_row).tolist():
            rows = shard_of_row == shard
            handed_over[rows] = is_handed_over(self.markers[shard], messages.filter(pa.array(rows)))
        return handed_over


def restored_marker(origin: CheckpointOrigin, committed: PlannedBatch | None, input_ids: InputIds) -> Progress:
    """Return a marker for a shard that lost its own: all is handed over until the batch `committed`, and nothing else.

    Args:
        origin: how the checkpoint began.
        committed: the last committed batch; None before the first.
        input_ids: the input topics that the offsets of `committed` belong to.

    It describes no batch as it was: the span of this one reads nothing, and begins at its own cutoff. So a replay of
    the batch, whose entry in the commit log is lost, is refused. How many messages were handed over is not known.
    """
    if committed is None:
        return Progress(BatchSpan(origin))
    cutoffs, offsets = (committed.cutoff_ms, committed.cutoff_ms), (committed.offsets, committed.offsets)
    span = BatchSpan(origin, committed.batch_id, *cutoffs, *offsets, input_ids, committed.clock_ms)
    # Behind each message, dead letters too, whose due time may lie beyond the cutoff.
    return Progress(span, last=OrderKey(_NEVER_MS, "", 0, 0))


def newest_checkpoint(last: Sequence[Progress | None]) -> HandedOver | None:
    """Return what the newest checkpoint has handed over; None if a marker of it is missing.

    `last` has the last marker in each partition of the progress topic. A checkpoint begins with a marker for each of
    its shards, so the first partition always has one of the newest checkpoint.
    """
    if not last or last[0] is None:
        return None
    newest = last[0].batch.origin
    own = [marker for marker in last[: newest.shards] if marker is not None and marker.batch.origin == newest]
    return HandedOver(tuple(own)) if len(own) == newest.shards else None


def _up_to(messages: pa.Table, marker: Progress) -> Mask:
    """Return which messages are not after the marker's last one; none if the marker has none."""
    return np.zeros(messages.num_rows, dtype=bool) if marker.last is None else up_to(messages, marker.last)


def _due(messages: pa.Table, cutoff_ms: int) -> Mask:
    """Return which messages are due in the batch that accepts them."""
    return np.asarray(~is_message(messages) | (messages.column("deliver_at_ms").to_numpy() < cutoff_ms))


def _below(messages: pa.Table, offsets: Offsets) -> Mask:
    """Return which messages have an input offset below `offsets`; none in a partition that `offsets` lacks."""
    topics = messages.column("topic").dictionary_encode().combine_chunks()
    names = np.asarray(topics.indices)
    partitions = messages.column("partition").to_numpy()
    read = messages.column("offset").to_numpy()
    below = np.zeros(messages.num_rows, dtype=bool)
    for at, topic in enumerate(topics.dictionary.to_pylist()):
        for partition, offset in offsets.get(topic, {}).items():
            below |= (names == at) & (partitions == int(partition)) & (read < offset)
    return below
