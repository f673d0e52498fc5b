"""The Delta table of sealed buckets: chunks of messages, and the metadata of their segments, by part."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from conf.errors import ApplicationHeld
from conf.failpoints import failpoint
from sinks.buckets.chunk_plans import due_between
from sinks.buckets.delta_store import DeltaStore, WriterVersion, partitions_of
from sinks.buckets.packed_rows import packed, unpacked
from sinks.buckets.table_writers import is_concurrent, newest_version
from sinks.buckets.task_counts import StepCount, TaskCounts
from state.buckets.cancelled import NEVER_MS
from state.buckets.id_rows import ID_ROW_SCHEMA, STORED_IDS, unpacked_ids
from state.buckets.parts import (
    IS_MARKER,
    IS_METADATA,
    IdRows,
    chunks_of,
    is_live,
    is_metadata,
    marker_of,
    metadata_of,
    part_of,
)
from state.index.locate import LOCATED_SCHEMA, METADATA, entries_of, locating, spans_of
from state.message import decode_chunk
from state.message_ids import Ids
from state.order import ORDER

METADATA_COLUMNS = (
    "part", "bucket", "shard", "segment", "deliver_at_ms", "max_deliver_at_ms", "count", "bytes", "repeats",
)  # fmt: skip
_DUES = ("deliver_at_ms", "max_deliver_at_ms")
_CHUNK_COLUMNS = (*ORDER, "part", "bucket", "shard", "segment", "max_deliver_at_ms", "count", "chunk")
# Ids that are read at once: a hundred chunks and more, in some 20 MB.
_IDS_AT_ONCE = 1 << 18
# Above the number of every bucket.
ALL_BUCKETS = 2**62


class BucketTable(DeltaStore):
    """The table of sealed buckets at `path`. A batch seals a bucket in one Delta commit.

    A merge commits the parts of its bucket one by one (`merge_commits`). They count from the commit on that also
    removes the buckets that it replaces. Until then, and if the merge was abandoned, no method returns their rows.
    """

    def append(self, rows: DataFrame, writer_id: str, batch_id: int, replaced: Collection[str] = ()) -> None:
        """Store the rows of the bucket that batch `batch_id` of `writer_id` sealed, in one commit.

        The commit removes all other rows of the Delta partitions `replaced`. If there are any, `rows` must be in these.
        Idempotent: a second append of the same writer and batch writes nothing, and of two concurrent ones only the
        first writes. Raises ApplicationHeld if the writer is fenced, or another process has sealed a later batch.
        """
        (self.before_change if replaced else self.before_append)()
        failpoint("sealing")
        ordered = rows.sortWithinPartitions("part", *ORDER)
        written = WriterVersion(writer_id, batch_id)
        try:
            self.append_rows(ordered, written, replaced)
        except Py4JJavaError as problem:
            if not is_concurrent(problem):
                raise
            # An earlier holder of the lease, paused during a takeover between its check and its commit, has sealed
            # the batch. A batch seals the same rows in every process, and Delta now skips this append.
            self.append_rows(ordered, written, replaced)
        # Delta skips silently. If this batch is the writer's newest one, its rows are in the table.
        if newest_version(self.log, writer_id) > batch_id:
            raise ApplicationHeld(
                f"another process took over from checkpoint {writer_id} while batch {batch_id} was being "
                f"sealed. {self.path} accepts no more rows of this batch"
            )

    def metadata(self, version: int | None = None) -> list[Row]:
        """Return the metadata rows of all segments, now or at `version`, without reading a message."""
        return self.segment_rows(version).select(*METADATA_COLUMNS).collect()

    def metadata_of_part(self, part: str) -> list[Row]:
        """Return the metadata rows of a part, which need not be live."""
        return self.all_rows().where(F.col("part") == metadata_of(part)).select(*METADATA_COLUMNS).collect()

    def counted_by_topic(self, topics: Iterable[str], from_ms: int) -> list[Row]:
        """Return how many messages of each of `topics` are due in spans that reach to `from_ms` (epoch ms) or later.

        The columns are topic, count, deliver_at_ms and max_deliver_at_ms: the bounds of a span. A span joins time slots
        of the index, of all segments. It is about a tenth as long as the time until it begins. Reads only metadata, and
        no offsets.
        """
        entries = "arrays_zip(index_entries.topic, index_entries.tick_ms, index_entries.count)"
        rows = self.segment_rows().where(f"max_deliver_at_ms >= {from_ms}")
        rows = rows.selectExpr("precision_bits", *_DUES, f"explode({entries}) AS entry")
        slots = rows.selectExpr(
            "entry.topic AS topic",
            "entry.count AS count",
            "greatest(entry.tick_ms, deliver_at_ms) AS deliver_at_ms",
            "least(entry.tick_ms + shiftleft(1L, precision_bits) - 1, max_deliver_at_ms) AS max_deliver_at_ms",
        )
        slots = slots.where(F.col("topic").isin(sorted(set(topics)))).where(f"max_deliver_at_ms >= {from_ms}")
        span = F.expr(f"floor(8 * log2(1 + greatest(0, deliver_at_ms - {from_ms}) / 1000))")
        sums = (
            "sum(count) AS count",
            "min(deliver_at_ms) AS deliver_at_ms",
            "max(max_deliver_at_ms) AS max_deliver_at_ms",
        )
        return slots.groupBy("topic", span).agg(*map(F.expr, sums)).select("topic", "count", *_DUES).collect()

    def locate(self, ids: Ids, before_bucket: int, from_ms: int, version: int | None = None) -> pa.Table:
        """Return where the `ids` that wait in a bucket before `before_bucket` lie, as a table of `LOCATED_SCHEMA`.

        Reads only metadata, once for all ids: of the segments with messages due at `from_ms` (epoch ms) or later. A
        message that is due earlier may have a row or not.
        """
        sources = [f"{topic}/{partition}" for topic, partition in ids]
        entries = F.filter(
            "index_entries", lambda entry: F.concat_ws("/", entry.topic, entry.partition.cast("string")).isin(sources)
        )
        rows = self.segment_rows(version).select(*METADATA).withColumn("index_entries", entries)
        found = packed(rows.where("size(index_entries) > 0"), locating(ids, before_bucket, from_ms))
        return pa.concat_tables([LOCATED_SCHEMA.empty_table(), *unpacked(found.collect())])

    def segment_rows(self, version: int | None = None) -> DataFrame:
        """Return the metadata rows of all segments, with their index entries, now or at `version`."""
        rows = self.all_rows(version)
        return rows.where(IS_METADATA).where(is_live(_markers(rows)))

    def markers(self) -> set[str]:
        """Return the markers of merged buckets. Reads no file."""
        return _markers(self.all_rows())

    def metadata_partitions(self, version: int) -> set[str]:
        """Return the Delta partitions that have the metadata of live parts at `version`. Reads no file.

        The content of such a partition never changes.
        """
        partitions = partitions_of(self.all_rows(version))
        of_metadata = filter(is_metadata, partitions)
        return {each for each in of_metadata if marker_of(part_of(each)) in (None, *partitions)}

    def index_entries_of(self, partitions: Iterable[str], version: int) -> Iterator[pa.Table]:
        """Yield the index entries in Delta partitions with metadata at `version`, as tables of `ENTRY_SCHEMA`.

        They are never all in memory.
        """
        rows = self.all_rows(version).where(F.col("part").isin(sorted(partitions))).select(*METADATA)
        # The next partition is read while the caller takes in this one.
        return unpacked(packed(rows, entries_of).toLocalIterator(prefetchPartitions=True))

    def chunks(
        self,
        start_ms: int,
        end_ms: int,
        parts: Iterable[str],
        buckets: Iterable[int] | None = None,
        version: int | None = None,
    ) -> DataFrame:
        """Return the chunks that may hold a message due in [start_ms, end_ms).

        The columns are `ORDER`, part, bucket, shard, segment, max_deliver_at_ms, count, and chunk.

        Args:
            start_ms: the first due time, epoch ms
            end_ms: the end of the due times, epoch ms, exclusive
            parts: the parts to read, as far as they are live
            buckets: the buckets to read; None: all
            version: the version of the table to read; None: the newest
        """
        rows, chosen = self.all_rows(version), set(parts)
        if any(map(marker_of, chosen)):
            markers = _markers(rows)
            chosen = {part for part in chosen if marker_of(part) in (None, *markers)}
        rows = rows.where(
            F.col("part").isin(sorted(set(map(chunks_of, chosen))))
            & (F.col("deliver_at_ms") < end_ms)
            & (F.col("max_deliver_at_ms") >= start_ms)
        )
        if buckets is not None:
            rows = rows.where(F.col("bucket").isin(sorted(set(buckets))))
        return rows.select(*_CHUNK_COLUMNS)

    def chunks_at(self, places: pa.Table, version: int) -> DataFrame:
        """Return the chunks at `version` that may hold the messages at `places` (`LOCATED_SCHEMA`, at least one row).

        They have the columns of `chunks`.
        """
        spans, buckets = spans_of(places), places.column("bucket").unique().to_pylist()
        parts = map(part_of, places.column("part").unique().to_pylist())
        chunks = self.chunks(spans[0][0], spans[-1][1] + 1, parts, buckets, version)
        conditions = (f"(deliver_at_ms <= {last} AND max_deliver_at_ms >= {first})" for first, last in spans)
        return chunks.where(" OR ".join(conditions))

    def repeating_chunks(self) -> DataFrame:
        """Return the chunks that have messages which repeat. The columns are bucket and chunk."""
        rows = self.all_rows()
        chunks = rows.where(f"repeats > 0 AND NOT {IS_METADATA}").where(is_live(_markers(rows)))
        return chunks.select("bucket", "chunk")

    def files(self) -> list[Row]:
        """Return the files with rows of live parts, as this process saw the table last: path, part, and stats.

        The path is relative to `self.path`, and `part` is the Delta partition. The stats come from Delta's log: JSON
        with numRecords, and with minValues and maxValues by column.
        """
        files = DataFrame(self.log.unsafeVolatileSnapshot().allFiles().toDF(), self.spark)
        files = files.selectExpr("path", "partitionValues['part'] AS part", "stats")
        return files.where(f"NOT {IS_MARKER}").where(is_live(_markers(self.all_rows()))).collect()

    def rows(self) -> DataFrame:
        """Return all rows of the table, with the name of the row's file in the additional column `file`."""
        every = self.all_rows()
        live = every.where(f"NOT {IS_MARKER}").where(is_live(_markers(every)))
        return live.select("*", F.col("_metadata.file_name").alias("file"))

    def step_count(self) -> StepCount:
        """Return a number that the tasks of a step report."""
        return self._task_counts.next()

    @cached_property
    def _task_counts(self) -> TaskCounts:
        return TaskCounts(self.spark.sparkContext)

    def cancelled_chunks(
        self, start_ms: int, end_ms: int, from_bucket: int, until_bucket: int, version: int
    ) -> DataFrame | None:
        """Return the chunks with ids of cancelled messages that may be due in [start_ms, end_ms), epoch ms.

        Covers the messages in buckets from `from_bucket` on, at `version`. Ids that were cancelled by batches after
        `until_bucket` may be included or not. The chunks have the columns of `chunks`. Returns None if no batch since
        `from_bucket` has cancelled anything.
        """
        kind = IdRows.CANCELLED
        # A Delta partition has no ids that were cancelled by a batch later than the one in its name.
        rows = self.all_rows(version).where(kind.condition).where(f"part >= '{kind.partition(from_bucket)}'")
        if not rows.inputFiles():
            return None
        rows = due_between(rows, start_ms, end_ms).where(f"deliver_at_ms > {NEVER_MS} AND bucket <= {until_bucket}")
        return rows.select(*_CHUNK_COLUMNS)

    def ids(self, kind: IdRows) -> DataFrame | None:
        """Return the ids of a `kind` (`ID_ROW_SCHEMA`), or None if the table has no such ids."""
        if not self._has_ids(kind):
            return None
        rows = self.all_rows().where(kind.condition).select(*STORED_IDS)
        return rows.mapInArrow(unpacked_ids, from_arrow_schema(ID_ROW_SCHEMA))

    def ids_before(self, kind: IdRows, bucket: int) -> Iterator[pa.Table]:
        """Yield the ids of a `kind` that batches before `bucket` have stored, as tables of `ID_ROW_SCHEMA`.

        They are never all in memory at once. The JVM never holds them one by one.
        """
        if not self._has_ids(kind):
            return
        several, count = list[pa.Table](), 0
        for row in self.all_rows().where(kind.condition).where(f"bucket < {bucket}").select("chunk").toLocalIterator():
            several.append(decode_chunk(bytes(row["chunk"])).filter(pc.field("bucket") < bucket))
            count += several[-1].num_rows
            if count >= _IDS_AT_ONCE:
                yield pa.concat_tables(several).combine_chunks()
                several, count = [], 0
        if several:
            yield pa.concat_tables(several).combine_chunks()

    def id_partitions(self, kind: IdRows) -> dict[int, int]:
        """Return the bytes of each Delta partition of rows of a `kind`, by the bucket in its name."""
        if not self._has_ids(kind):
            return {}
        files = DataFrame(self.log.unsafeVolatileSnapshot().allFiles().toDF(), self.spark)
        sizes = files.selectExpr("partitionValues['part'] AS part", "size").where(kind.condition)
        rows = sizes.groupBy("part").sum("size").collect()
        return {kind.bucket_of(row["part"]) or 0: row["sum(size)"] for row in rows}

    def _has_ids(self, kind: IdRows) -> bool:
        # Most tables have no such rows, and checking that takes no Spark job.
        return bool(partitions_of(self.all_rows(), kind.condition))


def _markers(rows: DataFrame) -> set[str]:
    """Return the markers of merged buckets in `rows` of the table. Reads no file."""
    return partitions_of(rows, IS_MARKER)
