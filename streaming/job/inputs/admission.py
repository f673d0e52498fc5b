"""Admission: which records a batch refuses, so that no more messages of an input topic wait than its policy allows.

The waiting messages of a topic are in mutable buckets and in sealed segments. Those in mutable buckets are known from
Spark's state at the start, and from the shards' reports since. The messages of a segment are assumed to be evenly
spread in spans of due time: one span for each topic, or several if messages repeat. Sealed messages are counted as they
are sealed, and counted again by the table's metadata before records are refused, because merges drop cancelled
messages. If many spans are known, spans with similar bounds are joined, so that their number does not grow for as long
as the longest delay.

A batch accepts the records of a topic for which there is room. It refuses the later ones, by their offsets, except
messages that it stages at once and that never wait. Offsets that were deleted before the job could read them do not
count as records: a first batch begins at the start of the topic's log, and with `topics.skip_expired` any batch may.

The refusals of a batch are in the checkpoint before it runs, so that a replay refuses the same records. If a batch has
staged or sealed something and recorded no refusals, its replay refuses nothing.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64
from pyspark.sql import Row
from pyspark.sql.pandas.types import from_arrow_schema

from conf.settings import Settings
from sinks.buckets.bucket_table import BucketTable
from state.buckets.operator import KEPT, SEALED
from state.checkpoint.batch_settings import NONE_REFUSED, BatchSettings, Refusal
from state.checkpoint.origin import Offsets
from state.checkpoint.progress import BatchSpan
from state.message import decode_chunk
from state.taken import NONE_TAKEN, Taken
from streaming.checkpoint.checkpoint import Checkpoint
from streaming.job.inputs.input_loss import Bounds, read_bounds

log = logging.getLogger(__name__)

# How long a count by the table's metadata is considered current.
_COUNTED_S = 60.0
# Spans are joined above this number, or above twice the number after the last join if that is more.
_FEW_SPANS = 5_000
Span = tuple[int, int, float]
_NONE: Mapping[str, BitMap64] = MappingProxyType({})
_KEPT = pa.schema([("shard_key", pa.int32()), ("topic", pa.string()), ("count", pa.int64())])


@dataclass
class WaitingMessages:
    """The waiting messages of input topics with a limit."""

    # By shard: how many of each topic its mutable bucket has.
    kept: dict[int, Mapping[str, int]] = field(default_factory=dict)
    # By topic: first and last due time (epoch ms, inclusive) and count of each span.
    sealed: dict[str, list[Span]] = field(default_factory=dict)
    # How many spans were left after they were joined last.
    joined: int = 0
    few_spans: int = _FEW_SPANS

    def add(self, rows: Iterable[Row]) -> None:
        """Add the messages that a batch has sealed, and replace the kept messages by those that it keeps.

        `rows` are the batch's rows (`state.buckets.operator.SHARD_OUTPUT_SCHEMA`), without chunks.
        """
        kept: dict[int, Mapping[str, int]] = {}
        for row in rows:
            # The overflow groups of a shard keep nothing, unlike its own group.
            if row["kind"] == KEPT and (row["count"] or row["shard"] not in kept):
                kept[row["shard"]] = json.loads(row["by_topic"])
            elif row["kind"] == SEALED:
                for topic, spans in json.loads(row["by_topic"]).items():
                    self.sealed.setdefault(topic, []).extend(map(tuple, spans))
        self.kept |= kept

    @property
    def spans(self) -> int:
        """How many spans are known."""
        return sum(map(len, self.sealed.values()))

    def join(self, cutoff_ms: int) -> None:
        """Join spans with similar bounds if there are many, and drop those that end before `cutoff_ms` (epoch ms)."""
        if self.spans > max(self.few_spans, 2 * self.joined):
            for topic, own in self.sealed.items():
                self.sealed[topic] = _joined(own, cutoff_ms)
            self.joined = self.spans

    def count(self, topic: str, cutoff_ms: int) -> int:
        """Return about how many messages of `topic` wait that are due at `cutoff_ms` (epoch ms) or later."""
        own = self.sealed[topic] = [each for each in self.sealed.get(topic, []) if each[1] >= cutoff_ms]
        sealed = (count * _share_from(cutoff_ms, first_ms, last_ms) for first_ms, last_ms, count in own)
        return sum(kept.get(topic, 0) for kept in self.kept.values()) + math.ceil(sum(sealed))


class Admission:
    """Decides the refusals of one batch after the other. Only the query's thread may use it."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        store: BucketTable,
        settings: Settings,
        replayed: int | None = None,
        has_left: bool = False,
        few_spans: int = _FEW_SPANS,
    ) -> None:
        """Take the checkpoint as it is at the start of the job, and the number of the batch that is `replayed`.

        `has_left` is whether that batch has staged or sealed anything.
        """
        self._checkpoint = checkpoint
        self._store = store
        self._settings = settings
        self._replayed, self._has_left = replayed, has_left
        self._waiting = WaitingMessages(few_spans=few_spans)
        # When the table was counted last, by the monotonic clock (None: never).
        self._counted_s: float | None = None

    def refusal(
        self, batch_settings: BatchSettings, span: BatchSpan, clock_ms: int, taken: Taken = NONE_TAKEN
    ) -> Refusal:
        """Return which records the batch of `span` refuses, and record it in the checkpoint if there are any.

        `clock_ms` is the batch's clock, epoch ms. Messages that are due within `clock.horizon` of it are not refused.
        Records that forwarders have `taken` need no room.
        """
        if not batch_settings.limits_waiting:
            return NONE_REFUSED
        if span.batch_id == self._replayed:
            recorded = self._checkpoint.refused(span.batch_id)
            # A batch that has neither left nor recorded anything has mostly been planned only.
            if self._has_left or recorded != NONE_REFUSED:
                return recorded
        most = {
            topic: limit for topic in span.ends if (limit := batch_settings.policy_of(topic).most_waiting) is not None
        }
        self._waiting.join(span.staged_below_ms)
        from_offsets: Offsets = {}
        if self._counted_s is not None:
            from_offsets = self._refused_from(most, span, taken)
        if self._counted_s is None and span.batch_id:
            self._waiting.kept = self._kept_after(span.batch_id - 1, batch_settings)
        if self._counted_s is None or (from_offsets and time.monotonic() - self._counted_s > _COUNTED_S):
            self._count(most, span.staged_below_ms)
            from_offsets = self._refused_from(most, span, taken)
        if not from_offsets:
            return NONE_REFUSED
        # The cutoff alone is not enough: after a time without batches, it dates from before that time.
        due_from_ms = max(span.cutoff_ms, clock_ms + self._settings.clock.horizon)
        refusal = Refusal(from_offsets, due_from_ms)
        self._checkpoint.write_refused(span.batch_id, refusal)
        log.warning(
            "batch %d: max_waiting reached for %s; new messages become dead letters",
            span.batch_id,
            ", ".join(sorted(from_offsets)),
        )
        return refusal

    def done(self, rows: Iterable[Row]) -> None:
        """Count the messages that a batch has sealed and kept."""
        self._waiting.add(rows)

    def _refused_from(self, most: Mapping[str, int], span: BatchSpan, taken: Taken) -> Offsets:
        rooms = {
            topic: max(0, limit - self._waiting.count(topic, span.staged_below_ms)) for topic, limit in most.items()
        }
        found = _beyond(rooms, span.starts, span.ends, taken)
        # Only now, because it asks the broker.
        if found and self._settings.topics.skip_expired:
            starts = _first_left(span.starts, read_bounds(self._settings, span.batch_id))
            found = _beyond(rooms, starts, span.ends, taken)
        return found

    def _kept_after(self, batch_id: int, batch_settings: BatchSettings) -> dict[int, Mapping[str, int]]:
        """Return how many messages of each topic each shard keeps after a committed batch, by Spark's state."""
        state = self._store.spark.read.format("statestore").option("batchId", batch_id).load(self._checkpoint.path)
        chunks = state.selectExpr("key.shard_key AS shard_key", "value.groupState.bucket AS chunk")
        kept: dict[int, dict[str, int]] = {}
        for row in chunks.mapInArrow(_counting, from_arrow_schema(_KEPT)).collect():
            kept.setdefault(batch_settings.shard_keys.index(row["shard_key"]), {})[row["topic"]] = row["count"]
        return dict(kept)

    def _count(self, topics: Iterable[str], cutoff_ms: int) -> None:
        self._waiting.sealed.clear()
        for row in self._store.counted_by_topic(topics, cutoff_ms):
            span = row["deliver_at_ms"], row["max_deliver_at_ms"], row["count"]
            self._waiting.sealed.setdefault(row["topic"], []).append(span)
        self._counted_s = time.monotonic()


def _counting(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        keys, chunks = (batch.column(name).to_pylist() for name in ("shard_key", "chunk"))
        for key, chunk in zip(keys, chunks, strict=True):
            topics, counts = pc.value_counts(decode_chunk(chunk).column("topic")).flatten()
            yield pa.RecordBatch.from_arrays([pa.repeat(pa.scalar(key), len(topics)), topics, counts], schema=_KEPT)


def _beyond(rooms: Mapping[str, int], starts: Offsets, ends: Offsets, taken: Taken) -> Offsets:
    """Return the offsets after the accepted records, for each topic without room for all (`offsets_after`)."""
    found = {
        topic: offsets_after(room, starts.get(topic, {}), ends[topic], taken.of_topic(topic))
        for topic, room in rooms.items()
    }
    return {topic: offsets for topic, offsets in found.items() if offsets}


def _first_left(starts: Offsets, bounds: Bounds) -> Offsets:
    """Return `starts`, or the first offset that a partition still has if that is higher."""
    left = {topic: dict(own) for topic, own in starts.items()}
    for (topic, partition), (first, _) in bounds.items():
        number = str(partition)
        left.setdefault(topic, {})[number] = max(first, starts.get(topic, {}).get(number, 0))
    return left


def offsets_after(
    room: int, starts: Mapping[str, int], ends: Mapping[str, int], taken: Mapping[str, BitMap64] = _NONE
) -> dict[str, int]:
    """Return the offset in each partition after the first `room` records, which are shared out among the partitions.

    `starts` and `ends` are the bounds of the records by partition, and `taken` the offsets between them that need no
    room. The result is empty if there is room for all records.
    """
    # All planned records may have been deleted since, and a re-created topic may end before them.
    counts = {
        partition: max(0, end - (start := starts.get(partition, 0)) - _count(taken.get(partition), start, end))
        for partition, end in ends.items()
    }
    total = sum(counts.values())
    if total <= room:
        return {}
    return {
        partition: _offset_after(room * count // total, starts.get(partition, 0), taken.get(partition))
        for partition, count in counts.items()
        if count
    }


def _count(taken: BitMap64 | None, start: int, end: int) -> int:
    """Return how many offsets from `start` on and below `end` are `taken`."""
    return 0 if taken is None else taken.range_cardinality(start, end)


def _offset_after(count: int, start: int, taken: BitMap64 | None) -> int:
    """Return the offset after the first `count` from `start` on that are not `taken`."""
    offset = start + count
    while (further := start + count + _count(taken, start, offset)) != offset:
        offset = further
    return offset


def _joined(spans: Iterable[Span], cutoff_ms: int) -> list[Span]:
    """Return `spans` from `cutoff_ms` (epoch ms) on, with one span in place of those that have similar bounds.

    Joining keeps the count and the mean due time. It moves each bound by about a tenth of the time until then.
    """
    groups: dict[tuple[int, int], list[Span]] = {}
    for first_ms, last_ms, count in spans:
        if last_ms >= cutoff_ms:
            own = max(first_ms, cutoff_ms), last_ms, count * _share_from(cutoff_ms, first_ms, last_ms)
            groups.setdefault((_nearness(own[0] - cutoff_ms), _nearness(last_ms - cutoff_ms)), []).append(own)
    return [_mean_span(group) for group in groups.values()]


def _mean_span(spans: Sequence[Span]) -> Span:
    first_ms, total = min(first_ms for first_ms, _, _ in spans), sum(count for _, _, count in spans)
    # With the last bound of all, repeated joins would delay the messages again and again.
    return first_ms, round(sum((first + last) * (count / total) for first, last, count in spans)) - first_ms, total


def _nearness(left_ms: int) -> int:
    """Return one number for instants that are about equally far away, as `BucketTable.counted_by_topic` does."""
    return math.floor(8 * math.log2(1 + left_ms / 1_000))


def _share_from(at_ms: int, first_ms: int, last_ms: int) -> float:
    return min(1.0, (last_ms + 1 - at_ms) / (last_ms + 1 - first_ms))
