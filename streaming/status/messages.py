"""What waits, message by message, as a Spark DataFrame: for queries, for exports, and for `delayline peek`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.buckets.bucket_table import BucketTable
from sinks.buckets.chunk_plans import in_slices
from sinks.internal_topics.position import read_position
from sinks.topics.partitions import partition_counts
from state.buckets.cancelled_filter import CancelledFilter
from state.buckets.merge import slices
from state.buckets.segments import Segment
from state.buckets.table_rows import described_segment
from state.message import decode_chunk
from state.message_ids import ids_of
from streaming.checkpoint.current import current_checkpoint
from streaming.status.ready import EVERY_BATCH, ready_messages
from streaming.status.storage_reader import consistent_versions
from streaming.status.waiting_rows import END_MS, ROW_SCHEMA, WAITING_SCHEMA, Selection, waiting_rows
from streaming.storage.paths import buckets_path

_Rows = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
# A reader of a segment reads one chunk at least, in a row group of about this size.
_CHUNK_BYTES = 1024 * 1024


class TooMuchToRead(Exception):
    """A selection would read more of the table than its reader allows."""


def waiting_messages(
    spark: SparkSession,
    settings: Settings,
    from_ms: int = 0,
    until_ms: int = END_MS,
    ids: Iterable[tuple[str, int, int]] | None = None,
) -> DataFrame:
    """Return what waits after the last committed batch, in no order: a DataFrame of `WAITING_SCHEMA`.

    Reads nothing but metadata before the DataFrame is computed. A sealed message costs a read only if it is near those
    that are selected by due time or id, so give these here, and not as a condition on the DataFrame.

    The DataFrame stays valid for a while: the job keeps files that it has replaced for an hour, and the state of its
    last ten batches. A message that was recalled after it was staged is `ready` until its time.

    Args:
        spark: a session of `streaming.spark.session.open_session`, or with the same packages.
        settings: those of the job.
        from_ms: the first due time, epoch ms.
        until_ms: the end of the due times, exclusive, epoch ms.
        ids: only these messages: topic, partition, offset of each.

    Raises CheckpointUnreadable, CheckpointMismatch, BucketUnreadable, BrokerUnreachable, TopicMissing, ReadyLogLost.
    """
    selection = Selection(from_ms, until_ms, None if ids is None else ids_of(ids))
    return selected_messages(spark, settings, selection).select(*WAITING_SCHEMA.names)


def selected_messages(
    spark: SparkSession,
    settings: Settings,
    selection: Selection,
    at_least: int | None = None,
    most_bytes: int | None = None,
) -> DataFrame:
    """Return what `waiting_messages` does for a `selection`, as a DataFrame of `ROW_SCHEMA`.

    With `at_least`, only the first so many messages by due time are there, and some more. Raises what
    `waiting_messages` does, and TooMuchToRead if the sealed messages to read take more than `most_bytes`, by estimate.
    """
    checkpoint, store = current_checkpoint(spark, settings), BucketTable(spark, buckets_path(settings))
    batch_id, version = consistent_versions(checkpoint, store)
    schema = from_arrow_schema(ROW_SCHEMA)
    if batch_id is None:
        if version is None or not checkpoint.is_initialized():
            return spark.createDataFrame([], schema)
        # A checkpoint that `rescale` or `rebuild` has made goes on with buckets of the one before.
        origin = checkpoint.origin
        bucket = origin.overdue_bucket
        sealed, segments = _sealed(store, version, bucket, origin.cutoff_ms, most_bytes)
        own = [segment for segment in segments if segment.bucket == bucket]
        overdue = replace(sealed, from_ms=0, segments=own, condition=f"bucket = {bucket}")
        before = replace(selection, until_ms=min(selection.until_ms, origin.cutoff_ms))
        places = [sealed.messages(selection), overdue.messages(before)]
        if checkpoint.last_planned() is None:
            places += _ready(spark, settings, EVERY_BATCH, selection)
        return reduce(DataFrame.union, places)
    cutoff_ms, last_bucket = checkpoint.planned(batch_id).cutoff_ms, checkpoint.origin.bucket_of(batch_id)
    kept = None if version is None else _sealed(store, version, last_bucket, cutoff_ms, most_bytes)[0]
    if kept is not None and at_least is not None:
        selection = kept.first(selection, at_least)
    state = spark.read.format("statestore").option("batchId", batch_id).load(checkpoint.path)
    mutable = state.selectExpr("value.groupState.bucket AS chunk")
    places = [mutable.mapInArrow(_rows("mutable", selection), schema)]
    places += _ready(spark, settings, batch_id, selection)
    if kept is not None:
        places.append(kept.messages(selection))
    return reduce(DataFrame.union, places)


@dataclass(frozen=True)
class _Sealed:
    """What waits in buckets of a table at `version`: those up to `last_bucket` that fulfil `condition` (SQL).

    `segments` are theirs that reach to `from_ms` (epoch ms) or later: what is due before is not read.
    """

    store: BucketTable
    version: int
    last_bucket: int
    from_ms: int
    segments: list[Segment]
    most_bytes: int | None
    condition: str = "true"

    def first(self, selection: Selection, count: int) -> Selection:
        """Return `selection` up to an instant before which it has `count` messages, by metadata alone."""
        first_ms = max(selection.from_ms, self.from_ms)
        left = count
        for segment in sorted(self.segments, key=lambda segment: segment.max_deliver_at_ms):
            if segment.min_deliver_at_ms >= first_ms:
                left -= segment.count
                if left <= 0:
                    return replace(selection, until_ms=min(selection.until_ms, segment.max_deliver_at_ms + 1))
        return selection

    def messages(self, selection: Selection) -> DataFrame:
        """Return the selected messages as a DataFrame of `ROW_SCHEMA`. Raises TooMuchToRead."""
        selection = self._narrowed(selection)
        start_ms, end_ms = selection.from_ms, selection.until_ms
        segments = [
            each for each in self.segments if each.min_deliver_at_ms < end_ms and each.max_deliver_at_ms >= start_ms
        ]
        if self.most_bytes is not None and sum(_read_bytes(each, start_ms, end_ms) for each in segments) > (
            self.most_bytes
        ):
            raise TooMuchToRead
        parts, schema = {segment.part for segment in segments}, from_arrow_schema(ROW_SCHEMA)
        chunks = self.store.chunks(start_ms, end_ms, parts, None, self.version)
        chunks = chunks.where(f"bucket <= {self.last_bucket} AND {self.condition}")
        first_bucket = min((segment.bucket for segment in self.segments), default=0)
        cancelled = self.store.cancelled_chunks(start_ms, end_ms, first_bucket, self.last_bucket, self.version)
        ranges = list(slices(self.segments, start_ms, end_ms))
        if cancelled is None or not ranges:
            return chunks.select("chunk").mapInArrow(_rows("sealed", selection), schema)
        leave_out = CancelledFilter(self.last_bucket)

        def left(from_ms: int, until_ms: int) -> _Rows:
            return _rows_left((from_ms, until_ms), leave_out, selection)

        return in_slices(chunks, cancelled, ranges, left, schema)

    def _narrowed(self, selection: Selection) -> Selection:
        """Return `selection` from `from_ms` on, and only where its ids may be."""
        start_ms, end_ms = max(selection.from_ms, self.from_ms), selection.until_ms
        if selection.ids is not None:
            located = self.store.locate(selection.ids, self.last_bucket + 1, self.from_ms, self.version)
            first_ms, last_ms = pc.min(located.column("from_ms")).as_py(), pc.max(located.column("until_ms")).as_py()
            start_ms, end_ms = (
                (start_ms, start_ms) if first_ms is None else (max(start_ms, first_ms), min(end_ms, last_ms + 1))
            )
        return replace(selection, from_ms=start_ms, until_ms=end_ms)


def _sealed(
    store: BucketTable, version: int, last_bucket: int, from_ms: int, most_bytes: int | None
) -> tuple[_Sealed, list[Segment]]:
    """Return what waits in buckets up to `last_bucket`, and all of their segments."""
    rows = [described_segment(row.asDict()) for row in store.metadata(version) if row["bucket"] <= last_bucket]
    segments = [segment for segment in rows if segment.max_deliver_at_ms >= from_ms]
    return _Sealed(store, version, last_bucket, from_ms, segments, most_bytes), rows


def _read_bytes(segment: Segment, start_ms: int, end_ms: int) -> int:
    """Return how many bytes of a segment are read for [start_ms, end_ms), as if its messages were evenly spread."""
    span_ms = segment.max_deliver_at_ms - segment.min_deliver_at_ms + 1
    own_ms = min(end_ms, segment.max_deliver_at_ms + 1) - max(start_ms, segment.min_deliver_at_ms)
    return min(segment.bytes, segment.bytes * own_ms // span_ms + _CHUNK_BYTES)


def _ready(spark: SparkSession, settings: Settings, last_batch: int, selection: Selection) -> list[DataFrame]:
    """Return what batches up to `last_batch` have staged, as no DataFrame or one."""
    shards = partition_counts(settings, [settings.ready_topic]).get(settings.ready_topic, 0)
    if not shards:
        return []
    numbers, rows = spark.range(0, shards, 1, shards), _ready_rows(settings, last_batch, selection)
    return [numbers.mapInArrow(rows, from_arrow_schema(ROW_SCHEMA))]


def _rows(place: str, selection: Selection) -> _Rows:
    """Return the Arrow function that turns chunks into rows of `ROW_SCHEMA`."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for chunk in batch.column("chunk"):
                yield from waiting_rows(decode_chunk(chunk.as_py()), place, selection)

    return run


def _rows_left(within: tuple[int, int], cancelled: CancelledFilter, selection: Selection) -> _Rows:
    """Return the same for chunks of sealed messages due `within` a range, among chunks of cancelled ids."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for messages in cancelled.left(batches, *within):
            yield from waiting_rows(messages, "sealed", selection)

    return run


def _ready_rows(settings: Settings, last_batch: int, selection: Selection) -> _Rows:
    """Return the Arrow function that turns numbers of shards into rows of `ROW_SCHEMA`."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        options = librdkafka_options(settings.kafka)
        for batch in batches:
            for shard in batch.column("id").to_pylist():
                position = read_position(options, settings.position_topic, shard)
                for messages in ready_messages(settings, options, shard, position, last_batch):
                    yield from waiting_rows(messages, "ready", selection)

    return run
