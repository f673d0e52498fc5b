"""What waits, message by message, as a Spark DataFrame: for queries, for exports, and for `delayline peek`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.buckets.bucket_table import BucketTable
from sinks.buckets.chunk_plans import in_slices
from sinks.internal_topics.position import read_position
from sinks.topics.topics import partition_counts
from state.buckets.cancelled_filter import CancelledFilter
from state.buckets.merge import slices
from state.buckets.segments import Segment
from state.buckets.table_rows import described_segment
from state.kinds import is_ask
from state.message import HEADERS, decode_chunk
from state.message_ids import Ids, among, id_texts, ids_of
from streaming.checkpoint.current import current_checkpoint
from streaming.status.ready import EVERY_BATCH, ready_messages
from streaming.status.storage_reader import consistent_versions
from streaming.storage.paths import buckets_path

WAITING_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        # "ready" (handed over and not released), "mutable" or "sealed".
        ("place", pa.string()),
        ("deliver_at", pa.timestamp("us", "UTC")),
        ("deliver_at_ms", pa.int64()),
        # The message id in parts, and the record's Kafka timestamp.
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("output_topic", pa.string()),
        # The code of a dead letter.
        ("error_code", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
    ]
)
_END_MS = 2**62
_Rows = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class Selection:
    """Which messages: those due in [from_ms, until_ms), epoch ms; and of these only `ids`, if there are any."""

    from_ms: int = 0
    until_ms: int = _END_MS
    ids: Ids | None = None

    def of(self, messages: pa.Table) -> pa.Table:
        """Return the rows of `messages` that are selected."""
        dues_ms = messages.column("deliver_at_ms").to_numpy()
        chosen = (dues_ms >= self.from_ms) & (dues_ms < self.until_ms)
        if self.ids is not None:
            chosen &= among(messages, self.ids)
        return messages.filter(pa.array(chosen))


def waiting_messages(
    spark: SparkSession,
    settings: Settings,
    from_ms: int = 0,
    until_ms: int = _END_MS,
    ids: Iterable[tuple[str, int, int]] | None = None,
    at_least: int | None = None,
) -> DataFrame:
    """Return what waits after the last committed batch, in no order: a DataFrame of `WAITING_SCHEMA`.

    Reads nothing but metadata before the DataFrame is computed. A sealed message costs a read only if it is near those
    that are selected by due time or id, so give these here, and not as a condition on the DataFrame.

    The DataFrame stays valid for a while: the job keeps files that it has replaced for an hour, and the state of its
    last ten batches. A message that was recalled after it was handed over is `ready` until its time.

    Args:
        spark: a session of `streaming.spark.session.open_session`, or with the same packages.
        settings: those of the job.
        from_ms: the first due time, epoch ms.
        until_ms: the end of the due times, exclusive, epoch ms.
        ids: only these messages: topic, partition, offset of each.
        at_least: only the first so many messages by due time, and some more; None: all.

    Raises CheckpointUnreadable, CheckpointMismatch, BucketUnreadable, BrokerUnreachable, TopicMissing, ReadyLogLost.
    """
    checkpoint, store = current_checkpoint(spark, settings), BucketTable(spark, buckets_path(settings))
    batch_id, version = consistent_versions(checkpoint, store)
    schema = from_arrow_schema(WAITING_SCHEMA)
    selection = Selection(from_ms, until_ms, None if ids is None else ids_of(ids))
    if batch_id is None:
        if version is None or not checkpoint.is_initialized():
            return spark.createDataFrame([], schema)
        # A checkpoint that `rescale` or `rebuild` has made goes on with buckets of the one before.
        origin = checkpoint.origin
        bucket, cutoff_ms = origin.overdue_bucket, origin.cutoff_ms
        segments = _segments(store, version, bucket, cutoff_ms)
        overdue = [each for each in _segments(store, version, bucket, 0) if each.bucket == bucket]
        before = replace(selection, until_ms=min(selection.until_ms, cutoff_ms))
        places = [
            _sealed(store, version, bucket, cutoff_ms, segments, selection),
            _sealed(store, version, bucket, 0, overdue, before, f"bucket = {bucket}"),
        ]
        if checkpoint.last_planned() is None:
            places += _ready(spark, settings, EVERY_BATCH, selection)
        return reduce(DataFrame.union, places)
    cutoff_ms = checkpoint.planned(batch_id).cutoff_ms
    last_bucket = checkpoint.origin.bucket_of(batch_id)
    segments = [] if version is None else _segments(store, version, last_bucket, cutoff_ms)
    if at_least is not None:
        selection = _first(selection, segments, cutoff_ms, at_least)
    state = spark.read.format("statestore").option("batchId", batch_id).load(checkpoint.path)
    mutable = state.selectExpr("value.groupState.bucket AS chunk")
    places = [mutable.mapInArrow(_rows("mutable", selection), schema)]
    places += _ready(spark, settings, batch_id, selection)
    if version is not None:
        places.append(_sealed(store, version, last_bucket, cutoff_ms, segments, selection))
    return reduce(DataFrame.union, places)


def _ready(spark: SparkSession, settings: Settings, last_batch: int, selection: Selection) -> list[DataFrame]:
    """Return what batches up to `last_batch` have handed over, as no DataFrame or one."""
    shards = partition_counts(settings, [settings.ready_topic]).get(settings.ready_topic, 0)
    if not shards:
        return []
    numbers, rows = spark.range(0, shards, 1, shards), _ready_rows(settings, last_batch, selection)
    return [numbers.mapInArrow(rows, from_arrow_schema(WAITING_SCHEMA))]


def _segments(store: BucketTable, version: int, last_bucket: int, from_ms: int) -> list[Segment]:
    """Return the segments of buckets up to `last_bucket` that reach to `from_ms` (epoch ms) or later."""
    rows = (described_segment(row.asDict()) for row in store.metadata(version) if row["bucket"] <= last_bucket)
    return [segment for segment in rows if segment.max_deliver_at_ms >= from_ms]


def _first(selection: Selection, segments: Iterable[Segment], cutoff_ms: int, count: int) -> Selection:
    """Return `selection` up to an instant before which `count` of the selected messages are due, by metadata alone."""
    first_ms = max(selection.from_ms, cutoff_ms)
    left = count
    for segment in sorted(segments, key=lambda segment: segment.max_deliver_at_ms):
        if segment.min_deliver_at_ms >= first_ms:
            left -= segment.count
            if left <= 0:
                until_ms = min(selection.until_ms, segment.max_deliver_at_ms + 1)
                return replace(selection, until_ms=until_ms)
    return selection


def _sealed(
    store: BucketTable,
    version: int,
    last_bucket: int,
    cutoff_ms: int,
    segments: list[Segment],
    selection: Selection,
    condition: str = "true",
) -> DataFrame:
    start_ms, end_ms = max(selection.from_ms, cutoff_ms), selection.until_ms
    if selection.ids is not None:
        located = store.locate(selection.ids, last_bucket + 1, cutoff_ms, version)
        bounds = pc.min(located.column("from_ms")).as_py(), pc.max(located.column("until_ms")).as_py()
        if bounds[0] is None:
            end_ms = start_ms
        else:
            start_ms, end_ms = max(start_ms, bounds[0]), min(end_ms, bounds[1] + 1)
    parts = {
        segment.part
        for segment in segments
        if segment.min_deliver_at_ms < end_ms and segment.max_deliver_at_ms >= start_ms
    }
    chunks = store.chunks(start_ms, end_ms, parts, None, version).where(f"bucket <= {last_bucket} AND {condition}")
    selection, schema = Selection(start_ms, end_ms, selection.ids), from_arrow_schema(WAITING_SCHEMA)
    first_bucket = min((segment.bucket for segment in segments), default=0)
    cancelled = store.cancelled_chunks(start_ms, end_ms, first_bucket, last_bucket, version)
    ranges = list(slices(segments, start_ms, end_ms))
    if cancelled is None or not ranges:
        return chunks.select("chunk").mapInArrow(_rows("sealed", selection), schema)
    leave_out = CancelledFilter(last_bucket)

    def left(from_ms: int, until_ms: int) -> _Rows:
        return _rows_left((from_ms, until_ms), leave_out, selection)

    return in_slices(chunks, cancelled, ranges, left, schema)


def _rows(place: str, selection: Selection) -> _Rows:
    """Return the Arrow function that turns chunks into rows of `WAITING_SCHEMA`."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for chunk in batch.column("chunk"):
                yield from _described(decode_chunk(chunk.as_py()), place, selection)

    return run


def _rows_left(within: tuple[int, int], cancelled: CancelledFilter, selection: Selection) -> _Rows:
    """Return the same for chunks of sealed messages due `within` a range, among chunks of cancelled ids."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for messages in cancelled.left(batches, *within):
            yield from _described(messages, "sealed", selection)

    return run


def _ready_rows(settings: Settings, last_batch: int, selection: Selection) -> _Rows:
    """Return the Arrow function that turns numbers of shards into rows of `WAITING_SCHEMA`."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        options = librdkafka_options(settings.kafka)
        for batch in batches:
            for shard in batch.column("id").to_pylist():
                position = read_position(options, settings.position_topic, shard)
                for messages in ready_messages(settings, options, shard, position, last_batch):
                    yield from _described(messages, "ready", selection)

    return run


def _described(messages: pa.Table, place: str, selection: Selection) -> list[pa.RecordBatch]:
    chosen = selection.of(messages)
    # What waits for an answer is no message.
    chosen = chosen.filter(pa.array(~is_ask(chosen)))
    described = {name: chosen.column(name) for name in chosen.column_names} | {
        "id": id_texts(chosen),
        "place": pa.array(np.full(chosen.num_rows, place, dtype=object), pa.string()),
        "deliver_at": pc.multiply(chosen.column("deliver_at_ms"), 1000).cast(pa.timestamp("us", "UTC")),
    }
    table = pa.table({name: described[name] for name in WAITING_SCHEMA.names}).cast(WAITING_SCHEMA)
    batches: list[pa.RecordBatch] = table.combine_chunks().to_batches()
    return batches
