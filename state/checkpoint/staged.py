"""Which messages are staged, computed from the markers alone. `rebuild` replaces a lost checkpoint with this."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from state.checkpoint.input_ids import same_topic
from state.checkpoint.origin import CheckpointOrigin, InputIds, Offsets
from state.checkpoint.planned_batch import PlannedBatch
from state.checkpoint.progress import BatchSpan, InTable, Progress, newest_in_table
from state.kinds import Mask, is_message, repeats
from state.order import OrderKey, up_to
from state.shards import shards_of

# Later than any due time.
_NEVER_MS = 2**63 - 1


@dataclass(frozen=True)
class StagedMessages:
    """The messages that one checkpoint has staged, according to the last marker of each of its shards.

    A shard's marker belongs to the last batch that staged messages of the shard. The newest batch of all markers is N.
    Batches before N are committed. For the shard's messages this means:

    - accepted before batch N and due below the previous cutoff: all are staged
    - due in batch N: staged up to the last message of the shard's marker, if the marker belongs to batch N. This can be
      a dead letter, which may be due beyond the cutoff.
    - due or accepted later: not staged
    """

    markers: tuple[Progress, ...]

    @property
    def origin(self) -> CheckpointOrigin:
        """How the checkpoint began."""
        return self.markers[0].batch.origin

    @property
    def last_batch(self) -> int:
        """The newest batch that staged messages; -1 if none did."""
        return self.newest.batch_id

    @property
    def newest(self) -> BatchSpan:
        """The same batch, as its markers describe it."""
        return max((marker.batch for marker in self.markers), key=lambda batch: batch.batch_id)

    @property
    def cutoff_ms(self) -> int:
        """The instant from which on nothing is staged, epoch ms."""
        lasts = [
            min(marker.last.deliver_at_ms + 1, marker.batch.cutoff_ms)
            for marker in self.markers
            if marker.last is not None
        ]
        return max([self.origin.cutoff_ms, *(marker.batch.previous_ms for marker in self.markers), *lasts])

    @property
    def overdue_ms(self) -> int:
        """The latest due time of messages, epoch ms, that the first batch of the next checkpoint stages.

        If nothing was staged before, that batch takes messages that are due at 0 or later.
        """
        return max(0, self.cutoff_ms - 1)

    @property
    def whole_before_ms(self) -> int:
        """The instant before which every shard has staged all messages, epoch ms; 0 until the first batch is over.

        A batch runs only after the previous one is committed. The newest batch itself may be staged in part.
        """
        return max(marker.batch.previous_ms for marker in self.markers)

    @property
    def in_table(self) -> InTable:
        """The newest batches in the table, as far as the markers know."""
        return newest_in_table(self.markers)

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
        """Return which of `messages`, accepted again from the input, are staged.

        Messages accepted before the checkpoint began count as staged: each was staged or sealed by then.
        """
        taken_over = _below(messages, self._taken_over)
        # The due time may be known only roughly, as a lower bound. So a marker that stood still cannot decide.
        before = self.before_newest(messages) & _due(messages, self.newest.previous_ms)

        def is_staged(marker: Progress, own: pa.Table) -> Mask:
            ends = self._present(marker.batch.ends, marker.batch.input_ids)
            now = _below(own, ends) & _due(own, marker.batch.cutoff_ms)
            if (below_ms := marker.occurrences_below_ms) is not None:
                now &= ~repeats(own) | _due(own, below_ms)
            return np.asarray(now & _up_to(own, marker))

        return np.asarray(taken_over | before | self._by_shard(messages, is_staged))

    def before_newest(self, messages: pa.Table) -> Mask:
        """Return which of `messages` were accepted before the newest batch."""
        return _below(messages, self.newest.starts)

    def up_to_newest(self, messages: pa.Table) -> Mask:
        """Return which of `messages` were accepted by the newest batch or before."""
        return _below(messages, self._present(self.newest.ends, self.newest.input_ids))

    def of_bucket(self, messages: pa.Table, bucket: int) -> Mask:
        """Return which of `messages` of a sealed bucket are staged, or would be if they were not cancelled."""

        def is_staged(marker: Progress, own: pa.Table) -> Mask:
            # The due time alone decides, even for a dead letter that an earlier rebuild sealed.
            now = own.column("deliver_at_ms").to_numpy() < marker.batch.cutoff_ms
            return np.asarray(now & _up_to(own, marker))

        before = self.of_bucket_before_newest(messages, bucket)
        return np.asarray(before | self._by_shard(messages, is_staged))

    def of_bucket_before_newest(self, messages: pa.Table, bucket: int) -> Mask:
        """Return which of `messages` of a sealed bucket batches before the newest have taken."""
        due = messages.column("deliver_at_ms").to_numpy()
        taken_over = (due < self.origin.cutoff_ms) & (bucket < self.origin.overdue_bucket)
        # By the newest marker of all shards. The shard's own marker stays the same while all messages due in the shard
        # are cancelled, and their ids may be forgotten by now. Earlier batches had the bucket (invariant 2).
        return np.asarray(taken_over | (due < self.whole_before_ms))

    def by_newest(self, messages: pa.Table) -> Iterator[tuple[Progress, pa.Table]]:
        """Yield each marker of the newest batch, with the `messages` of its shard."""
        shard_of_row = shards_of(messages, len(self.markers))
        for shard in np.unique(shard_of_row).tolist():
            marker = self.markers[shard]
            if marker.batch.batch_id == self.newest.batch_id and marker.last is not None:
                yield marker, messages.filter(pa.array(shard_of_row == shard))

    def of_moved(self, messages: pa.Table, buckets: npt.NDArray[np.int64]) -> Mask:
        """Return which of `messages` are staged. `buckets` has the bucket of the batch that should stage each message.

        The messages have the due times with which that batch should stage them.
        """
        newest = self.newest

        def is_staged(marker: Progress, own: pa.Table) -> Mask:
            is_of_newest = np.full(own.num_rows, marker.batch.batch_id == newest.batch_id)
            return np.asarray(is_of_newest & _up_to(own, marker))

        is_up_to = self._by_shard(messages, is_staged)
        return np.asarray((buckets < newest.bucket) | ((buckets == newest.bucket) & is_up_to))

    def _by_shard(self, messages: pa.Table, is_staged: Callable[[Progress, pa.Table], Mask]) -> Mask:
        staged = np.zeros(messages.num_rows, dtype=bool)
        shard_of_row = shards_of(messages, len(self.markers))
        for shard in np.unique(shard_of_row).tolist():
            rows = shard_of_row == shard
            staged[rows] = is_staged(self.markers[shard], messages.filter(pa.array(rows)))
        return staged


def restored_marker(origin: CheckpointOrigin, committed: PlannedBatch | None, input_ids: InputIds) -> Progress:
    """Return a marker for a shard that lost its own: all is staged until the batch `committed`, and nothing else.

    Args:
        origin: how the checkpoint began.
        committed: the last committed batch; None before the first.
        input_ids: the input topics that the offsets of `committed` belong to.

    It does not describe the batch as it was: its span reads nothing, and begins at its own cutoff. So if the entry of
    the batch in the commit log is lost, a replay of the batch is refused. The number of staged messages is not known.
    """
    if committed is None:
        return Progress(BatchSpan(origin))
    cutoffs, offsets = (committed.cutoff_ms, committed.cutoff_ms), (committed.offsets, committed.offsets)
    span = BatchSpan(origin, committed.batch_id, *cutoffs, *offsets, input_ids, committed.clock_ms)
    # After each message, including dead letters, which may be due beyond the cutoff.
    return Progress(span, last=OrderKey(_NEVER_MS, "", 0, 0))


def newest_checkpoint(last: Sequence[Progress | None]) -> StagedMessages | None:
    """Return the messages that the newest checkpoint has staged; None if one of its markers is missing.

    `last` has the last marker in each partition of the progress topic. A checkpoint begins with a marker for each of
    its shards, so the first partition always has a marker of the newest checkpoint.
    """
    if not last or last[0] is None:
        return None
    newest = last[0].batch.origin
    own = [marker for marker in last[: newest.shards] if marker is not None and marker.batch.origin == newest]
    return StagedMessages(tuple(own)) if len(own) == newest.shards else None


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
