"""The Delta table of sealed buckets: chunks of messages, and the metadata of their segments, by part."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from conf.errors import ApplicationHeld, BucketUnreadable, FormatMismatch
from conf.failpoints import failpoint
from conf.java.spark_line import spark_line
from sinks.chunk_plans import due_between
from sinks.packed_rows import packed, unpacked
from sinks.table_writers import fence_writer, is_concurrent, is_fence, newest_batch, newest_version
from sinks.task_counts import StepCount, TaskCounts
from state.buckets.cancelled import NEVER_MS, Forgettable
from state.buckets.id_rows import ID_ROW_SCHEMA, STORED_IDS, joined_ids, packed_ids, unpacked_ids
from state.buckets.parts import (
    IS_MARKER,
    IS_METADATA,
    IdRows,
    MergeName,
    chunks_of,
    is_live,
    is_metadata,
    marker_of,
    metadata_of,
    part_of,
)
from state.buckets.table_rows import STORED_SCHEMA
from state.index.locate import LOCATED_SCHEMA, METADATA, entries_of, locating
from state.message import decode_chunk
from state.message_ids import Ids
from state.order import ORDER

# Raise this with every change after which an earlier Delayline would misread the table.
_FORMAT = "delayline.format", "2"
_PROPERTIES = {
    # A log checkpoint costs about two appends; with the default of 10, each tenth batch would be late.
    "delta.checkpointInterval": "50",
    # Only the job and `status` read the table, and both read its newest version. Each commit lists the whole log, which
    # would grow for days: Delta cleans it in the commit that writes a log checkpoint, and only whole days, so that the
    # first seal after midnight would delete all of them. `clean_log` does it beside the batches.
    "delta.logRetentionDuration": "interval 1 hour",
    "delta.enableExpiredLogCleanup": "false",
    "delta.deletedFileRetentionDuration": "interval 1 hour",
    "delta.enableDeletionVectors": "false",
    "delta.dataSkippingStatsColumns": "bucket,shard,segment,deliver_at_ms,max_deliver_at_ms",
    # Delta's own values. A cluster may have others for new tables, by which a delete is refused, the stored column
    # names are unknown to reports, or files are written again behind the job's back.
    "delta.appendOnly": "false",
    "delta.autoOptimize.autoCompact": "false",
    "delta.autoOptimize.optimizeWrite": "false",
    "delta.checkpoint.writeStatsAsJson": "true",
    "delta.checkpointPolicy": "classic",
    "delta.columnMapping.mode": "none",
    "delta.compatibility.symlinkFormatManifest.enabled": "false",
    "delta.enableChangeDataFeed": "false",
    "delta.enableRowTracking": "false",
    "delta.randomizeFilePrefixes": "false",
}
# With it, Delta forgets the newest batch of a writer, and leaves writers out of the checksums of the log.
_FORGETS_WRITERS = "delta.setTransactionRetentionDuration"

METADATA_COLUMNS = (
    "part", "bucket", "shard", "segment", "deliver_at_ms", "max_deliver_at_ms", "count", "bytes",
)  # fmt: skip
_DUES = ("deliver_at_ms", "max_deliver_at_ms")
_CHUNK_COLUMNS = (*ORDER, "part", "bucket", "shard", "segment", "max_deliver_at_ms", "count", "chunk")
# Parquet's compression: the chunks are compressed already.
_COMPRESSION = "none"
# The writer of merges: with its fencing token as the version, Delta refuses a merge of an earlier holder of the lease.
_MERGES = "merges"
_NO_PARTITION = "none"
# In which order names are given.
_BY_AGE = ("bucket", "partition", "offset")
# Ids that are read at once: a hundred chunks and more, in some 20 MB.
_IDS_AT_ONCE = 1 << 18
# How many arguments of Delta's method stay at their default, by line of Spark.
_CLEAN_UP_DEFAULTS = {"4.0": 1, "4.1": 2}
# Above the number of every bucket.
ALL_BUCKETS = 2**62
# Merges that one process may finish.
_MERGE_NUMBERS = 1 << 24


class BucketTable:
    """The table of sealed buckets at `path`. A batch seals a bucket in one Delta commit.

    A merge commits the parts of its bucket one by one. They count from the commit on that also removes the buckets that
    it replaces (`finish_merge`): until then, and if the merge was abandoned, no method returns anything of them.
    """

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        before_append: Callable[[], None] = lambda: None,
        before_change: Callable[[], None] = lambda: None,
    ) -> None:
        """Take callbacks that raise if this process may not write.

        `before_append` is called before writes that happen once, whichever process makes them; `before_change` before
        writes that remove rows or files.
        """
        self.spark = spark
        self.path = path
        self._before_append = before_append
        self._before_change = before_change

    def exists(self) -> bool:
        """Return whether the table exists. Raises FormatMismatch."""
        found = bool(DeltaTable.isDeltaTable(self.spark, self.path))
        if found:
            self._check_format()
        return found

    def create(self, schema: StructType) -> None:
        """Create the table if it does not exist. `schema` must have the column `part`. Raises FormatMismatch."""
        self._before_append()
        builder = DeltaTable.createIfNotExists(self.spark).location(self.path)
        builder = builder.addColumns(schema).partitionedBy("part")
        for name, value in (_FORMAT, *_PROPERTIES.items()):
            builder = builder.property(name, value)
        builder.execute()
        self._check_format()
        changed = {name: value for name, value in _PROPERTIES.items() if self._property(name) != value}
        if changed:
            properties = ", ".join(f"'{name}' = '{value}'" for name, value in changed.items())
            self.spark.sql(f"ALTER TABLE delta.`{self.path}` SET TBLPROPERTIES ({properties})")
        if self._property(_FORGETS_WRITERS) is not None:
            self.spark.sql(f"ALTER TABLE delta.`{self.path}` UNSET TBLPROPERTIES ('{_FORGETS_WRITERS}')")

    def version(self) -> int:
        """Return the version of the table that this process saw last, including its own commits."""
        return int(self._log.unsafeVolatileSnapshot().version())

    def check_log(self) -> None:
        """Raise BucketUnreadable if the newest entry of the table's log is lost.

        Delta would take such a table for an older version; it detects the loss of any other entry itself. The checksum
        file that Delta writes beside each entry shows the loss.
        """
        entry = f"{self.path}/_delta_log/{self.version() + 1:020d}"
        jvm: Any = self.spark.sparkContext._jvm
        checksum = jvm.org.apache.hadoop.fs.Path(f"{entry}.crc")
        if checksum.getFileSystem(self.spark.sparkContext._jsc.hadoopConfiguration()).exists(checksum):
            raise BucketUnreadable(
                f"{entry}.json is missing, the newest entry of the log of sealed buckets: going on would lose what it "
                f"sealed or merged. Restore it from a backup. To go on without it, delete {entry}.crc, and let "
                "`delayline rebuild --discard-checkpoint` accept again what is still in the input topics"
            )

    def newest_version(self) -> int:
        """Return the newest version of the table, whichever process wrote it."""
        jvm: Any = self.spark.sparkContext._jvm
        nothing = jvm.scala.Option.empty()
        return int(self._log.update(False, nothing, nothing).version())

    def forget_log(self) -> None:
        """Let this process read the table's log again, and not go on from what it knows of it."""
        jvm: Any = self.spark.sparkContext._jvm
        self._logs.invalidateCache(self.spark._jsparkSession, jvm.org.apache.hadoop.fs.Path(self.path))

    def _check_format(self) -> None:
        name, known = _FORMAT
        found = self._property(name)
        if found != known:
            raise FormatMismatch(
                f"the table {self.path} is in format {found}, but this Delayline reads format {known}: run the version "
                "that wrote it, or use another storage.path"
            )

    def _property(self, name: str) -> str | None:
        found = self._log.unsafeVolatileSnapshot().metadata().configuration().get(name)
        return str(found.get()) if found.isDefined() else None

    @property
    def _log(self) -> Any:
        # Not kept: Delta forgets a log that was not asked for in an hour, and writes through another one from then on.
        return self._logs.forTable(self.spark._jsparkSession, self.path)

    @cached_property
    def _logs(self) -> Any:
        # Kept: each part of the name is a call to Java, and a batch asks for the log several times.
        jvm: Any = self.spark.sparkContext._jvm
        return jvm.org.apache.spark.sql.delta.DeltaLog

    def append(self, rows: DataFrame, writer_id: str, batch_id: int) -> None:
        """Store the rows of the bucket that batch `batch_id` of `writer_id` sealed, in one commit.

        Idempotent: a second append of the same writer and batch writes nothing, and of two concurrent ones only the
        first writes. Raises ApplicationHeld if the writer is fenced, or another process has sealed a later batch.
        """
        self._before_append()
        failpoint("sealing")
        ordered = rows.sortWithinPartitions("part", *ORDER)
        writer = ordered.write.format("delta").mode("append").option("compression", _COMPRESSION)
        writer = writer.option("txnAppId", writer_id).option("txnVersion", batch_id)
        try:
            writer.save(self.path)
        except Py4JJavaError as problem:
            if not is_concurrent(problem):
                raise
            # An earlier holder of the lease, paused during a takeover between its check and its commit, has sealed
            # the batch. A batch seals the same rows in every process, and Delta now skips this append.
            writer.save(self.path)
        # Delta skips without a word. If this batch is the writer's newest one, its rows are in the table.
        if newest_version(self._log, writer_id) > batch_id:
            raise ApplicationHeld(
                f"another process has taken over from checkpoint {writer_id} while batch {batch_id} was sealed: "
                f"{self.path} takes nothing more of that batch"
            )

    def look_ahead(self) -> None:
        """Work out which files the newest version has, which the next `append` and the next reading must know.

        Delta would do it then, in half a second. It does it once for each version. Another thread may call this.
        """
        self._log.unsafeVolatileSnapshot().transactions()

    def newest_of(self, writer_id: str) -> int | None:
        """Return the newest `batch_id` that `writer_id` has appended, or None if it appended none."""
        return newest_batch(newest_version(self._log, writer_id))

    def fence(self, writer_id: str) -> None:
        """Let `writer_id` append nothing any more, for good.

        Call it before the metadata is read: a process of the writer may be paused between its check of the lease and
        its commit, and would append what this process finds missing.
        """
        self._before_change()
        fence_writer(self.spark, self._log, writer_id)

    def is_fenced(self, writer_id: str) -> bool:
        """Return whether `writer_id` was fenced."""
        return is_fence(newest_version(self._log, writer_id))

    def merge_token(self, fencing_token: int) -> int:
        """Return the token for the merges of a process whose lease has `fencing_token`.

        It is the same, unless the lease topic was made anew, which begins to count again: then it is the next one.
        """
        newest = self.newest_of(_MERGES)
        return fencing_token if newest is None else max(fencing_token, newest // _MERGE_NUMBERS + 1)

    def fence_merges(self, token: int) -> None:
        """Let no merge with a lower token than `token` finish any more.

        Call it before the metadata is read: the process that held the lease before may be paused, and would replace
        buckets that this process has read the metadata of.
        """
        nothing = self.spark.sql("SELECT '' AS part, 0L AS bucket WHERE false")
        self._overwrite([_NO_PARTITION], nothing, _merge_version(token, 0))

    def append_part(self, rows: DataFrame) -> None:
        """Store a part of a merged bucket, in one commit. It is not live before `finish_merge`."""
        self._before_change()
        rows.write.format("delta").mode("append").option("compression", _COMPRESSION).save(self.path)

    def finish_merge(self, name: MergeName, replaced: Iterable[str], number: int) -> None:
        """Make the parts of the merged bucket `name` live, and remove the parts `replaced`, in one commit.

        Reads no row. `number` counts the finished merges of this process from 1, and no call may begin before that of
        the number before has ended: Delta would take one of the two for that of an earlier process. Raises
        ApplicationHeld if another process has taken over.
        """
        parts = set(replaced)
        partitions = {name.live, *map(chunks_of, parts), *map(metadata_of, parts), *filter(None, map(marker_of, parts))}
        marker = self.spark.sql(f"SELECT '{name.live}' AS part, {name.last}L AS bucket")
        self._overwrite(partitions, marker, _merge_version(name.token, number))
        if name.live not in _markers(self._all()):
            raise ApplicationHeld(
                f"another process has taken over while buckets {name.first} to {name.last} of {self.path} were merged"
            )

    def delta_partitions(self) -> set[str]:
        """Return all Delta partitions of the table, those of abandoned merges too. Reads no file."""
        return _delta_partitions(self._all())

    def metadata(self, version: int | None = None) -> list[Row]:
        """Return the metadata rows of all segments, now or at `version`, without reading a message."""
        return self._metadata(version).select(*METADATA_COLUMNS).collect()

    def metadata_of_part(self, part: str) -> list[Row]:
        """Return the metadata rows of a part, which need not be live."""
        return self._all().where(F.col("part") == metadata_of(part)).select(*METADATA_COLUMNS).collect()

    def precisions(self, version: int | None = None) -> set[int]:
        """Return the precisions, in bits, of all index entries, now or at `version`."""
        rows = self._metadata(version).select("precision_bits").distinct().collect()
        return {row["precision_bits"] for row in rows}

    def index_entries(self, version: int | None = None) -> Iterator[Row]:
        """Yield `precision_bits` and `index_entries` of each segment, now or at `version`.

        The files are read task by task, and the entries are never all in memory: their size grows with the number of
        waiting messages.
        """
        rows = self._metadata(version).select("precision_bits", "index_entries")
        entries: Iterator[Row] = rows.toLocalIterator()
        return entries

    def counted_by_topic(self, topics: Iterable[str], from_ms: int) -> list[Row]:
        """Return how many messages of each of `topics` each segment has that reaches to `from_ms` (epoch ms) or later.

        The columns are topic, count, deliver_at_ms and max_deliver_at_ms: the due times of the segment's first and last
        message. Reads metadata alone, and no offsets.
        """
        entries = "arrays_zip(index_entries.topic, index_entries.count)"
        rows = self._metadata(None).where(f"max_deliver_at_ms >= {from_ms}")
        rows = rows.selectExpr("bucket", "shard", "segment", *_DUES, f"explode({entries}) AS entry")
        rows = rows.selectExpr("bucket", "shard", "segment", *_DUES, "entry.topic AS topic", "entry.count AS count")
        rows = rows.where(F.col("topic").isin(sorted(set(topics))))
        by_segment = rows.groupBy("bucket", "shard", "segment", *_DUES, "topic").agg(F.sum("count").alias("count"))
        return by_segment.select("topic", "count", *_DUES).collect()

    def locate(self, ids: Ids, before_bucket: int, from_ms: int, version: int | None = None) -> pa.Table:
        """Return where those of `ids` lie that wait in a bucket before `before_bucket`, as a table of `LOCATED_SCHEMA`.

        Reads metadata alone, of the segments that have messages due at `from_ms` (epoch ms) or later, once for all ids.
        Of a message that is due before, a row may be there or not.
        """
        sources = [f"{topic}/{partition}" for topic, partition in ids]
        entries = F.filter(
            "index_entries", lambda entry: F.concat_ws("/", entry.topic, entry.partition.cast("string")).isin(sources)
        )
        rows = self._metadata(version).select(*METADATA).withColumn("index_entries", entries)
        found = packed(rows.where("size(index_entries) > 0"), locating(ids, before_bucket, from_ms))
        return pa.concat_tables([LOCATED_SCHEMA.empty_table(), *unpacked(found.collect())])

    def metadata_partitions(self, version: int) -> set[str]:
        """Return the Delta partitions that have the metadata of live parts at `version`. Reads no file.

        What is in one of them never changes.
        """
        partitions = _delta_partitions(self._all(version))
        of_metadata = filter(is_metadata, partitions)
        return {each for each in of_metadata if marker_of(part_of(each)) in (None, *partitions)}

    def index_entries_of(self, partitions: Iterable[str], version: int) -> Iterator[pa.Table]:
        """Yield the index entries in Delta partitions with metadata at `version`, as tables of `ENTRY_SCHEMA`.

        They are never all in memory.
        """
        rows = self._all(version).where(F.col("part").isin(sorted(partitions))).select(*METADATA)
        return unpacked(packed(rows, entries_of).toLocalIterator())

    def cancelled_chunks(
        self, start_ms: int, end_ms: int, from_bucket: int, until_bucket: int, version: int
    ) -> DataFrame | None:
        """Return the chunks with ids of cancelled messages that may be due in [start_ms, end_ms), epoch ms.

        Messages in buckets from `from_bucket` on, at `version`. Ids that batches after the one of `until_bucket`
        cancelled may be there or not. The columns are those of `chunks`. None if no batch from that of `from_bucket` on
        has cancelled anything.
        """
        kind = IdRows.CANCELLED
        # A Delta partition has no id that a later batch than that in its name has cancelled.
        rows = self._all(version).where(kind.condition).where(f"part >= '{kind.partition(from_bucket)}'")
        if not rows.inputFiles():
            return None
        rows = due_between(rows, start_ms, end_ms).where(f"deliver_at_ms > {NEVER_MS} AND bucket <= {until_bucket}")
        return rows.select(*_CHUNK_COLUMNS)

    def step_count(self) -> StepCount:
        """Return a number that the tasks of a step report."""
        return self._task_counts.next()

    @cached_property
    def _task_counts(self) -> TaskCounts:
        return TaskCounts(self.spark.sparkContext)

    def ids(self, kind: IdRows) -> DataFrame | None:
        """Return the ids of a `kind` (`ID_ROW_SCHEMA`). None if there are none."""
        if not self._has_ids(kind):
            return None
        return self._unpacked(self._all().where(kind.condition))

    def ids_before(self, kind: IdRows, bucket: int) -> Iterator[pa.Table]:
        """Yield the ids of a `kind` that batches before that of `bucket` have stored, as tables of `ID_ROW_SCHEMA`.

        They are never all in memory, nor one by one in that of the JVM.
        """
        if not self._has_ids(kind):
            return
        several, count = list[pa.Table](), 0
        for row in self._all().where(kind.condition).where(f"bucket < {bucket}").select("chunk").toLocalIterator():
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
        files = DataFrame(self._log.unsafeVolatileSnapshot().allFiles().toDF(), self.spark)
        sizes = files.selectExpr("partitionValues['part'] AS part", "size").where(kind.condition)
        rows = sizes.groupBy("part").sum("size").collect()
        return {kind.bucket_of(row["part"]) or 0: row["sum(size)"] for row in rows}

    def join_cancelled(self, buckets: Iterable[int], forget: Forgettable) -> None:
        """Join several Delta partitions with cancelled ids in that of the last one, without those to `forget`."""
        numbers = sorted(buckets)
        partitions = [IdRows.CANCELLED.partition(number) for number in numbers]
        joined = joined_ids(IdRows.CANCELLED, numbers[-1], lambda ids: ~forget.among(ids))
        rows = self._stored_ids(self._all().where(F.col("part").isin(partitions)))
        ordered = rows.coalesce(1).sortWithinPartitions(*ORDER)
        self._overwrite(partitions, ordered.mapInArrow(joined, from_arrow_schema(STORED_SCHEMA)))

    def join_names(self, buckets: Iterable[int], due_before_ms: int) -> None:
        """Join several Delta partitions with names in that of the last one. Of each name, only the newest row stays.

        And that goes as well if it is of no use since `due_before_ms`, epoch ms.
        """
        numbers = sorted(buckets)
        partitions = [IdRows.NAMED.partition(number) for number in numbers]
        rows = self._unpacked(self._all().where(F.col("part").isin(partitions)))
        # Before anything is forgotten: otherwise the row that a newer one has replaced would count again.
        left = _newest(rows).where(f"max_deliver_at_ms >= {due_before_ms}").select(*ID_ROW_SCHEMA.names)
        joined = left.coalesce(1).sortWithinPartitions(*ORDER)
        packing = packed_ids(IdRows.NAMED, numbers[-1])
        self._overwrite(partitions, joined.mapInArrow(packing, from_arrow_schema(STORED_SCHEMA)))

    def slots(self, instants_ms: Iterable[int], version: int | None = None) -> DataFrame:
        """Return the counts by time slot of the segments that one of `instants_ms` cuts, now or at `version`.

        Such a segment has messages due before the instant, and others due then or later. The columns are bucket, shard,
        segment, precision_bits, and two arrays with an element for each time slot and source: ticks_ms (where the slot
        begins) and counts.
        """
        cut = " OR ".join(f"(deliver_at_ms < {at_ms} AND max_deliver_at_ms >= {at_ms})" for at_ms in instants_ms)
        # Only these fields of the entries: the offsets, which are most of the bytes, are not read.
        entries = ("index_entries.tick_ms AS ticks_ms", "index_entries.count AS counts")
        rows = self._metadata(version).where(cut)
        return rows.selectExpr("bucket", "shard", "segment", "precision_bits", *entries)

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
        rows, chosen = self._all(version), set(parts)
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

    def size(self) -> tuple[int, int] | None:
        """Return how many bytes and files the table has, as this process saw it last; None if Delta has not counted.

        The files of merges that are not finished count, and those that no version since the last vacuum names do not.
        No file is read: Delta writes these numbers beside each commit.
        """
        snapshot = self._log.unsafeVolatileSnapshot()
        size, files = snapshot.sizeInBytesIfKnown(), snapshot.numOfFilesIfKnown()
        return (int(size.get()), int(files.get())) if size.isDefined() and files.isDefined() else None

    def files(self) -> list[Row]:
        """Return the files with rows of live parts, as this process saw the table last: path, part, and stats.

        The path is below `self.path`, and `part` is the Delta partition. The stats are those of Delta's log: JSON with
        numRecords, and minValues and maxValues by column.
        """
        files = DataFrame(self._log.unsafeVolatileSnapshot().allFiles().toDF(), self.spark)
        files = files.selectExpr("path", "partitionValues['part'] AS part", "stats")
        return files.where(f"NOT {IS_MARKER}").where(is_live(_markers(self._all()))).collect()

    def rows(self) -> DataFrame:
        """Return all rows of the table, with the name of the row's file in the additional column `file`."""
        every = self._all()
        live = every.where(f"NOT {IS_MARKER}").where(is_live(_markers(every)))
        return live.select("*", F.col("_metadata.file_name").alias("file"))

    def replace_partitions(self, partitions: Iterable[str], rows: DataFrame) -> None:
        """Replace all rows of Delta partitions by `rows`, in one commit and without reading the old rows.

        So it works where files are damaged or missing. Nothing else may write to the table meanwhile.
        """
        self._overwrite(partitions, rows.sortWithinPartitions("part", *ORDER))

    def delete(self, partitions: Iterable[str]) -> None:
        """Delete all rows of Delta partitions. The next `vacuum` removes their files."""
        self._before_change()
        DeltaTable.forPath(self.spark, self.path).delete(F.col("part").isin(sorted(set(partitions))))

    def vacuum(self) -> None:
        """Remove the files that have not been part of the table for its retention time."""
        self._before_change()
        DeltaTable.forPath(self.spark, self.path).vacuum()

    def clean_log(self) -> None:
        """Remove the entries of the table's log that are older than its retention time, and that no reader needs."""
        self._before_change()
        jvm: Any = self.spark.sparkContext._jvm
        minutes = jvm.org.apache.spark.sql.delta.TruncationGranularity.MINUTE()
        # The retention time is the table's own.
        defaults = [jvm.scala.Option.empty()] * _CLEAN_UP_DEFAULTS[spark_line()]
        self._log.cleanUpExpiredLogs(self._log.unsafeVolatileSnapshot(), *defaults, minutes)

    def _overwrite(self, partitions: Iterable[str], rows: DataFrame, merge_version: int | None = None) -> None:
        """Replace all rows of Delta partitions by `rows`, which must be in these.

        Delta decides by partition alone what is replaced, so that this does not conflict with a batch that seals.
        `merge_version`: nothing is written if a merge of this version or a higher one was finished.
        """
        self._before_change()
        condition = f"part IN ({', '.join(repr(partition) for partition in sorted(set(partitions)))})"
        writer = rows.write.format("delta").mode("overwrite").option("replaceWhere", condition)
        if merge_version is not None:
            writer = writer.option("txnAppId", _MERGES).option("txnVersion", merge_version)
        try:
            writer.option("compression", _COMPRESSION).save(self.path)
        except Py4JJavaError as problem:
            # Delta refuses, and does not skip, a write that began before the later merge was committed.
            if merge_version is None or not is_concurrent(problem):
                raise

    def _has_ids(self, kind: IdRows) -> bool:
        # Most tables have none, and to know that takes no Spark job.
        return bool(_delta_partitions(self._all(), kind.condition))

    def _unpacked(self, rows: DataFrame) -> DataFrame:
        return self._stored_ids(rows).mapInArrow(unpacked_ids, from_arrow_schema(ID_ROW_SCHEMA))

    def _stored_ids(self, rows: DataFrame) -> DataFrame:
        return rows.select(*STORED_IDS)

    def _metadata(self, version: int | None) -> DataFrame:
        rows = self._all(version)
        return rows.where(IS_METADATA).where(is_live(_markers(rows)))

    def _all(self, version: int | None = None) -> DataFrame:
        reader = self.spark.read.format("delta")
        return (reader if version is None else reader.option("versionAsOf", version)).load(self.path)


def fences_merges(entry: str, token: int) -> bool:
    """Return whether an entry of the table's log is that of `fence_merges` with `token`."""
    writers = (json.loads(line).get("txn", {}) for line in entry.split("\n") if line)
    return any(each.get("appId") == _MERGES and each["version"] == _merge_version(token, 0) for each in writers)


def _newest(names: DataFrame) -> DataFrame:
    """Return the newest row of each name."""
    by_age = Window.partitionBy("name").orderBy(*(F.col(name).desc() for name in _BY_AGE))
    return names.withColumn("age", F.row_number().over(by_age)).where("age = 1").drop("age")


def _markers(rows: DataFrame) -> set[str]:
    """Return the markers of merged buckets in `rows` of the table. Reads no file."""
    return _delta_partitions(rows, IS_MARKER)


def _delta_partitions(rows: DataFrame, condition: str = "true") -> set[str]:
    """Return the Delta partitions in the version of the table that `rows` reads, if `condition` holds for their `part`.

    Delta's log names them. The path of a file may name another folder.
    """
    plan: Any = rows._jdf.queryExecution().analyzed()
    snapshot = plan.collectLeaves().head().relation().location().getSnapshot()
    files = DataFrame(snapshot.allFiles().toDF(), rows.sparkSession)
    named = files.selectExpr("partitionValues['part'] AS part").where(condition)
    return {str(part) for part in named.toArrow().column("part").unique().to_pylist()}


def _merge_version(token: int, number: int) -> int:
    return token * _MERGE_NUMBERS + number
