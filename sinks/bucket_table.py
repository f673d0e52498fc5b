"""The Delta table of sealed buckets: chunks of messages by time partition, and segment metadata."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any

from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from conf.errors import BucketUnreadable
from state.order import ORDER

_PROPERTIES = {
    # A log checkpoint costs about two appends; with the default of 10, each tenth batch would be late.
    "delta.checkpointInterval": "50",
    # Only the job and `status` read the table, and both read its newest version.
    "delta.logRetentionDuration": "interval 1 day",
    "delta.deletedFileRetentionDuration": "interval 1 hour",
    "delta.enableDeletionVectors": "false",
    "delta.dataSkippingStatsColumns": "bucket,shard,segment,deliver_at_ms,max_deliver_at_ms",
}

METADATA_COLUMNS = (
    "bucket", "shard", "segment", "time_partition", "deliver_at_ms", "max_deliver_at_ms", "count", "bytes",
)  # fmt: skip
# Parquet's compression: the chunks are compressed already.
_COMPRESSION = "none"
# Another batch was sealed meanwhile.
_CONCURRENT_APPEND = "io.delta.exceptions.ConcurrentAppendException"
# The same batch was sealed meanwhile.
_CONCURRENT_TRANSACTION = "io.delta.exceptions.ConcurrentTransactionException"
_MAX_TRIES = 3
_METADATA = "part = 'metadata'"


class BucketTable:
    """The table of sealed buckets at `path`. Each bucket is one Delta commit."""

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
        self._sealing = threading.Lock()

    def exists(self) -> bool:
        """Return whether the table exists."""
        return DeltaTable.isDeltaTable(self.spark, self.path)

    def create(self, schema: StructType) -> None:
        """Create the table if it does not exist. `schema` must have the column `part`."""
        self._before_append()
        builder = DeltaTable.createIfNotExists(self.spark).location(self.path)
        builder = builder.addColumns(schema).partitionedBy("part")
        for name, value in _PROPERTIES.items():
            builder = builder.property(name, value)
        builder.execute()

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

    @cached_property
    def _log(self) -> Any:
        jvm: Any = self.spark.sparkContext._jvm
        return jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self.spark._jsparkSession, self.path)

    def append(self, rows: DataFrame, writer_id: str, batch_id: int) -> None:
        """Store the rows of the bucket that batch `batch_id` of `writer_id` sealed, in one commit.

        Idempotent: a second append of the same writer and batch writes nothing, and of two concurrent ones only the
        first writes.
        """
        self._before_append()
        ordered = rows.sortWithinPartitions("part", *ORDER)
        writer = ordered.write.format("delta").mode("append").option("compression", _COMPRESSION)
        writer = writer.option("txnAppId", writer_id).option("txnVersion", batch_id)
        with self._sealing:
            try:
                writer.save(self.path)
            except Py4JJavaError as problem:
                if _class_of(problem) != _CONCURRENT_TRANSACTION:
                    raise
                # An earlier holder of the lease, paused during a takeover between its check and its commit, has sealed
                # the batch. A batch seals the same rows in every process, and Delta now skips this append.
                writer.save(self.path)

    def newest_of(self, writer_id: str) -> int | None:
        """Return the newest `batch_id` that `writer_id` has appended, or None if it appended none."""
        newest = self._log.unsafeVolatileSnapshot().transactions().get(writer_id)
        return int(newest.get()) if newest.isDefined() else None

    def replace(self, buckets: Iterable[int], rows: DataFrame) -> None:
        """Replace all rows of `buckets` by `rows`, in one commit."""
        condition = f"bucket IN ({', '.join(map(str, sorted(buckets)))})"
        self._overwrite(rows.sortWithinPartitions("part", *ORDER), condition)

    def compact_metadata(
        self, first_bucket: int, last_bucket: int, files: int = 1, deleted: Iterable[str] = ()
    ) -> None:
        """Rewrite the metadata of a range of buckets into `files` files, without that of `deleted` time partitions.

        All other metadata is kept: a time partition is found by its metadata, and deleted once it is delivered whole.
        Each file has a range of buckets, so that a merge rewrites only the files of its buckets.
        """
        chosen = f"{_METADATA} AND bucket BETWEEN {first_bucket} AND {last_bucket}"
        rows = self._table().where(chosen).where(~F.col("time_partition").isin(sorted(set(deleted))))
        self._overwrite(rows.coalesce(1) if files == 1 else rows.repartitionByRange(files, "bucket"), chosen)

    def metadata(self, version: int | None = None) -> list[Row]:
        """Return the metadata rows of all segments, now or at `version`, without reading a message."""
        return self._table(version).where(_METADATA).select(*METADATA_COLUMNS).collect()

    def precisions(self, version: int | None = None) -> set[int]:
        """Return the precisions, in bits, of all index entries, now or at `version`."""
        rows = self._table(version).where(_METADATA).select("precision_bits").distinct().collect()
        return {row["precision_bits"] for row in rows}

    def index_entries(self, version: int | None = None) -> Iterator[Row]:
        """Yield `precision_bits` and `index_entries` of each segment, now or at `version`.

        The files are read task by task, and the entries are never all in memory: their size grows with the number of
        waiting messages.
        """
        rows = self._table(version).where(_METADATA).select("precision_bits", "index_entries")
        entries: Iterator[Row] = rows.toLocalIterator()
        return entries

    def slots(self, instants_ms: Iterable[int], version: int | None = None) -> DataFrame:
        """Return the counts by time slot of the segments that one of `instants_ms` cuts, now or at `version`.

        Such a segment has messages due before the instant, and others due then or later. The columns are bucket, shard,
        segment, precision_bits, and two arrays with an element for each time slot and source: ticks_ms (where the slot
        begins) and counts.
        """
        cut = " OR ".join(f"(deliver_at_ms < {at_ms} AND max_deliver_at_ms >= {at_ms})" for at_ms in instants_ms)
        # Only these fields of the entries: the offsets, which are most of the bytes, are not read.
        entries = ("index_entries.tick_ms AS ticks_ms", "index_entries.count AS counts")
        rows = self._table(version).where(_METADATA).where(cut)
        return rows.selectExpr("bucket", "shard", "segment", "precision_bits", *entries)

    def chunks(
        self,
        start_ms: int,
        end_ms: int,
        partitions: Iterable[str],
        buckets: Iterable[int] | None = None,
        version: int | None = None,
    ) -> DataFrame:
        """Return the chunks that may hold a message due in [start_ms, end_ms).

        The columns are `ORDER`, part, bucket, shard, segment, max_deliver_at_ms, count, and chunk.

        Args:
            start_ms: the first due time, epoch ms
            end_ms: the end of the due times, epoch ms, exclusive
            partitions: the labels of the time partitions to read
            buckets: the buckets to read; None: all
            version: the version of the table to read; None: the newest
        """
        rows = self._table(version).where(
            F.col("part").isin(sorted(set(partitions)))
            & (F.col("deliver_at_ms") < end_ms)
            & (F.col("max_deliver_at_ms") >= start_ms)
        )
        if buckets is not None:
            rows = rows.where(F.col("bucket").isin(sorted(set(buckets))))
        return rows.select(*ORDER, "part", "bucket", "shard", "segment", "max_deliver_at_ms", "count", "chunk")

    def files(self) -> list[Row]:
        """Return the files of the table as this process saw it last: path (below `self.path`), part, and stats.

        The stats are those of Delta's log: JSON with numRecords, and minValues and maxValues by column.
        """
        files = DataFrame(self._log.unsafeVolatileSnapshot().allFiles().toDF(), self.spark)
        return files.selectExpr("path", "partitionValues['part'] AS part", "stats").collect()

    def rows(self) -> DataFrame:
        """Return all rows of the table, with the name of the row's file in the additional column `file`."""
        return self._table().select("*", F.col("_metadata.file_name").alias("file"))

    def replace_parts(self, parts: Iterable[str], rows: DataFrame) -> None:
        """Replace all rows of `parts` by `rows`, in one commit and without reading the old rows.

        So it works where files of `parts` are damaged or missing. Nothing else may write to the table meanwhile.
        """
        condition = f"part IN ({', '.join(repr(part) for part in sorted(set(parts)))})"
        self._overwrite_once(rows.sortWithinPartitions("part", *ORDER), condition)

    def delete(self, partitions: Iterable[str]) -> None:
        """Delete the messages of whole time partitions. The next `vacuum` removes their files."""
        self._before_change()
        DeltaTable.forPath(self.spark, self.path).delete(F.col("part").isin(sorted(set(partitions))))

    def vacuum(self) -> None:
        """Remove the files that have not been part of the table for its retention time."""
        self._before_change()
        DeltaTable.forPath(self.spark, self.path).vacuum()

    def _overwrite(self, rows: DataFrame, condition: str) -> None:
        """Replace the rows that match `condition` by `rows`, which must have none of a bucket that is not sealed yet.

        Delta refuses the commit if a bucket was sealed since it began, since it cannot know that `condition` matches
        none of its rows. After a few tries, sealing has to wait for this commit.
        """
        for _ in range(_MAX_TRIES):
            try:
                return self._overwrite_once(rows, condition)
            except Py4JJavaError as problem:
                if _class_of(problem) != _CONCURRENT_APPEND:
                    raise
        with self._sealing:
            return self._overwrite_once(rows, condition)

    def _overwrite_once(self, rows: DataFrame, condition: str) -> None:
        self._before_change()
        writer = rows.write.format("delta").mode("overwrite").option("replaceWhere", condition)
        writer.option("compression", _COMPRESSION).save(self.path)

    def _table(self, version: int | None = None) -> DataFrame:
        reader = self.spark.read.format("delta")
        return (reader if version is None else reader.option("versionAsOf", version)).load(self.path)


def _class_of(problem: Py4JJavaError) -> str:
    return str(problem.java_exception.getClass().getName())
