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
    # A log checkpoint costs about two appends; at the default of every tenth the tenth batch would be late.
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
_CHUNKS_ARE_COMPRESSED = "none"
# Something was sealed meanwhile; the same batch was.
_CONFLICT = "io.delta.exceptions.ConcurrentAppendException"
_SEALED_TOO = "io.delta.exceptions.ConcurrentTransactionException"
_TRIES = 3
_METADATA = "part = 'metadata'"


class BucketTable:
    """Sealed buckets at `path`, one Delta commit each."""

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        before_append: Callable[[], None] = lambda: None,
        before_change: Callable[[], None] = lambda: None,
    ) -> None:
        """Each is called before something is written, and raises if this process may not.

        `before_append` before what is written once, whoever does it; `before_change` before what takes away.
        """
        self.spark = spark
        self.path = path
        self._before_append = before_append
        self._before_change = before_change
        self._sealing = threading.Lock()

    def exists(self) -> bool:
        """Say whether the table has been made."""
        return DeltaTable.isDeltaTable(self.spark, self.path)

    def create(self, schema: StructType) -> None:
        """Make the table if there is none. `schema` holds the column `part`."""
        self._before_append()
        builder = DeltaTable.createIfNotExists(self.spark).location(self.path)
        builder = builder.addColumns(schema).partitionedBy("part")
        for name, value in _PROPERTIES.items():
            builder = builder.property(name, value)
        builder.execute()

    def version(self) -> int:
        """Return the version of the table that this process has seen last, its own commits included."""
        return int(self._log.unsafeVolatileSnapshot().version())

    def check_log(self) -> None:
        """Raise BucketUnreadable if the newest entry of the table's log is lost: it would be taken for an older table.

        Any other that is lost is missed by Delta itself. Beside each entry it leaves a checksum.
        """
        entry = f"{self.path}/_delta_log/{self.version() + 1:020d}"
        jvm: Any = self.spark.sparkContext._jvm
        checksum = jvm.org.apache.hadoop.fs.Path(f"{entry}.crc")
        if checksum.getFileSystem(self.spark.sparkContext._jsc.hadoopConfiguration()).exists(checksum):
            raise BucketUnreadable(
                f"{entry}.json is missing, the newest entry of the log of sealed buckets: what was sealed or merged by "
                f"it would be lost. Put it back from a backup. To go on without it, delete {entry}.crc, and let "
                "`delayline rebuild --discard-checkpoint` accept again what is still in the input topics"
            )

    def newest_version(self) -> int:
        """Return the version of the table that is the newest now, whoever made it."""
        jvm: Any = self.spark.sparkContext._jvm
        nothing = jvm.scala.Option.empty()
        return int(self._log.update(False, nothing, nothing).version())

    @cached_property
    def _log(self) -> Any:
        jvm: Any = self.spark.sparkContext._jvm
        return jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self.spark._jsparkSession, self.path)

    def append(self, rows: DataFrame, writer_id: str, batch_id: int) -> None:
        """Store the rows of the bucket that batch `batch_id` of `writer_id` sealed, in one commit.

        Idempotent: a second append of the same writer and batch writes nothing, and neither does the later of two at
        the same time.
        """
        self._before_append()
        ordered = rows.sortWithinPartitions("part", *ORDER)
        writer = ordered.write.format("delta").mode("append").option("compression", _CHUNKS_ARE_COMPRESSED)
        writer = writer.option("txnAppId", writer_id).option("txnVersion", batch_id)
        with self._sealing:
            try:
                writer.save(self.path)
            except Py4JJavaError as problem:
                if _class_of(problem) != _SEALED_TOO:
                    raise
                # By a holder of the lease that slept through a takeover between its check and its commit. A batch seals
                # the same whoever runs it, and Delta finds it there now.
                writer.save(self.path)

    def newest_of(self, writer_id: str) -> int | None:
        """Return the newest `batch_id` that `writer_id` has appended, or None."""
        found = self._log.unsafeVolatileSnapshot().transactions().get(writer_id)
        return int(found.get()) if found.isDefined() else None

    def replace(self, buckets: Iterable[int], rows: DataFrame) -> None:
        """Put `rows` in the place of everything that `buckets` hold, in one commit."""
        condition = f"bucket IN ({', '.join(map(str, sorted(buckets)))})"
        self._overwrite(rows.sortWithinPartitions("part", *ORDER), condition)

    def compact_metadata(
        self, first_bucket: int, last_bucket: int, files: int = 1, deleted: Iterable[str] = ()
    ) -> None:
        """Write the metadata of a range of buckets into `files` files, without that of `deleted` time partitions.

        Not without more: by its metadata a time partition is known, and deleted once it is delivered whole. Each file
        has a range of buckets, so that a merge writes anew those of its own.
        """
        chosen = f"{_METADATA} AND bucket BETWEEN {first_bucket} AND {last_bucket}"
        rows = self._table().where(chosen).where(~F.col("time_partition").isin(sorted(set(deleted))))
        self._overwrite(rows.coalesce(1) if files == 1 else rows.repartitionByRange(files, "bucket"), chosen)

    def metadata(self, version: int | None = None) -> list[Row]:
        """Read the metadata rows of all segments, without touching a message; as of now, or as of `version`."""
        return self._table(version).where(_METADATA).select(*METADATA_COLUMNS).collect()

    def precisions(self, version: int | None = None) -> set[int]:
        """Return the precisions, in bits, of all index entries; as of now, or as of `version`."""
        rows = self._table(version).where(_METADATA).select("precision_bits").distinct().collect()
        return {row["precision_bits"] for row in rows}

    def index_entries(self, version: int | None = None) -> Iterator[Row]:
        """Give the index entries of each segment: `precision_bits` and `index_entries`, as of now or of `version`.

        They are read one task's share of the files after the other, and never held all at once: with their offsets
        they grow with every message that waits.
        """
        rows = self._table(version).where(_METADATA).select("precision_bits", "index_entries")
        found: Iterator[Row] = rows.toLocalIterator()
        return found

    def slots(self, instants_ms: Iterable[int], version: int | None = None) -> DataFrame:
        """Return the counts by tick of the segments that one of `instants_ms` cuts, as of now or of `version`.

        Such a segment has messages due before that instant, and others due then or later. The columns are bucket,
        shard, segment, precision_bits, and two arrays with an element for each tick and source: slots_ms and counts.
        """
        cut = " OR ".join(f"(deliver_at_ms < {at_ms} AND max_deliver_at_ms >= {at_ms})" for at_ms in instants_ms)
        # Fields of the entries by name, so that their offsets, which are most of their bytes, are not read.
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
        """Return the chunks that may hold a message due in [start_ms, end_ms), of the named time partitions.

        Of all buckets, or of `buckets` only; as the table is now, or as it was at `version`. The columns are
        `ORDER`, part, bucket, shard, segment, max_deliver_at_ms, count, and chunk.
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
        """Return the files of the table as this process has seen it last: path (below `self.path`), part, and stats.

        The stats are those of Delta's log: JSON with numRecords, and minValues and maxValues by column.
        """
        found = DataFrame(self._log.unsafeVolatileSnapshot().allFiles().toDF(), self.spark)
        return found.selectExpr("path", "partitionValues['part'] AS part", "stats").collect()

    def rows(self) -> DataFrame:
        """Return all rows of the table, with the name of its file as a further column `file`."""
        return self._table().select("*", F.col("_metadata.file_name").alias("file"))

    def replace_parts(self, parts: Iterable[str], rows: DataFrame) -> None:
        """Put `rows` in the place of all that `parts` hold, in one commit, and without reading what they hold.

        So it works where files of theirs are damaged or gone. No other may write to the table meanwhile.
        """
        condition = f"part IN ({', '.join(repr(part) for part in sorted(set(parts)))})"
        self._overwrite_once(rows.sortWithinPartitions("part", *ORDER), condition)

    def delete(self, partitions: Iterable[str]) -> None:
        """Drop the messages of whole time partitions. Their files go with the next `vacuum`."""
        self._before_change()
        DeltaTable.forPath(self.spark, self.path).delete(F.col("part").isin(sorted(set(partitions))))

    def vacuum(self) -> None:
        """Remove the files that the table has not named for its retention time."""
        self._before_change()
        DeltaTable.forPath(self.spark, self.path).vacuum()

    def _overwrite(self, rows: DataFrame, condition: str) -> None:
        """Replace what `condition` says by `rows`, which must hold no row of a bucket that is still to be sealed.

        Delta refuses the commit if a bucket was sealed since it began, as it cannot tell that none of its rows are
        replaced. After a few tries sealing has to wait.
        """
        for _ in range(_TRIES):
            try:
                return self._overwrite_once(rows, condition)
            except Py4JJavaError as problem:
                if _class_of(problem) != _CONFLICT:
                    raise
        with self._sealing:
            return self._overwrite_once(rows, condition)

    def _overwrite_once(self, rows: DataFrame, condition: str) -> None:
        self._before_change()
        writer = rows.write.format("delta").mode("overwrite").option("replaceWhere", condition)
        writer.option("compression", _CHUNKS_ARE_COMPRESSED).save(self.path)

    def _table(self, version: int | None = None) -> DataFrame:
        reader = self.spark.read.format("delta")
        return (reader if version is None else reader.option("versionAsOf", version)).load(self.path)


def _class_of(problem: Py4JJavaError) -> str:
    return str(problem.java_exception.getClass().getName())
