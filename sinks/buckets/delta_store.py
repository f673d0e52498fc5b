"""The Delta table in which sealed buckets are stored: its format, its versions, and the commits that change it.

Delta decides only by partition which files a commit replaces, so a batch that seals does not conflict with maintenance.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from copy import copy
from functools import cached_property
from typing import Any, NamedTuple, Self

from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from conf.errors import BucketUnreadable, FormatMismatch
from conf.java.spark_line import spark_line
from sinks.buckets.table_writers import fence_writer, is_concurrent, is_fence, newest_batch, newest_version
from state.order import ORDER

# Raise this with every change after which an earlier Delayline would misread the table.
_FORMAT = "delayline.format", "2"
_PROPERTIES = {
    # A log checkpoint costs about two appends; with the default of 10, each tenth batch would be late.
    "delta.checkpointInterval": "50",
    # Only the job and `status` read the table, and both read its newest version. Each commit lists the whole log, which
    # would grow for days. Delta cleans it in the commit that writes a log checkpoint, and only whole days, so the first
    # seal after midnight would delete a day of entries. `clean_log` deletes them while batches go on.
    "delta.logRetentionDuration": "interval 1 hour",
    "delta.enableExpiredLogCleanup": "false",
    "delta.deletedFileRetentionDuration": "interval 1 hour",
    "delta.enableDeletionVectors": "false",
    "delta.dataSkippingStatsColumns": "bucket,shard,segment,deliver_at_ms,max_deliver_at_ms",
    # Delta's own values. A cluster may have other defaults for new tables: they may refuse deletes, store column names
    # that reports do not know, or rewrite files behind the job's back.
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
# Parquet's compression: the chunks are compressed already.
_COMPRESSION = "none"
# How many arguments of Delta's method stay at their default, by line of Spark.
_CLEAN_UP_DEFAULTS = {"4.0": 1, "4.1": 2}


class WriterVersion(NamedTuple):
    """A version of a writer. Delta skips a commit if the writer has committed this version, or a later one."""

    writer: str
    version: int


class DeltaStore:
    """A Delta table at `path`, partitioned by the column `part`. It does not know what the rows are."""

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
        self.before_append = before_append
        self.before_change = before_change
        self._left_out: list[str] = []

    def without(self, partitions: Iterable[str]) -> Self:
        """Return the table for reads that leave out the rows of these Delta partitions."""
        rest = copy(self)
        rest._left_out = sorted(partitions)
        return rest

    def exists(self) -> bool:
        """Return whether the table exists. Raises FormatMismatch."""
        found = bool(DeltaTable.isDeltaTable(self.spark, self.path))
        if found:
            self._check_format()
        return found

    def create(self, schema: StructType) -> None:
        """Create the table if it does not exist. `schema` must have the column `part`. Raises FormatMismatch."""
        self.before_append()
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
        return int(self.log.unsafeVolatileSnapshot().version())

    def check_log(self) -> None:
        """Raise BucketUnreadable if the newest entry of the table's log is lost.

        Delta would take such a table for an older version. It detects the loss of any other entry itself. The checksum
        file that Delta writes next to each entry reveals the loss.
        """
        entry = f"{self.path}/_delta_log/{self.version() + 1:020d}"
        jvm: Any = self.spark.sparkContext._jvm
        checksum = jvm.org.apache.hadoop.fs.Path(f"{entry}.crc")
        if checksum.getFileSystem(self.spark.sparkContext._jsc.hadoopConfiguration()).exists(checksum):
            raise BucketUnreadable(
                f"{entry}.json is missing. It is the newest entry of the log of sealed buckets, and without "
                "it the messages that it sealed or merged would be lost. Restore it from a backup. Without "
                f"a backup, delete {entry}.crc and run `delayline rebuild --discard-checkpoint`, which "
                "accepts the messages again that are still in the input topics"
            )

    def newest_version(self) -> int:
        """Return the newest version of the table, whichever process wrote it."""
        jvm: Any = self.spark.sparkContext._jvm
        nothing = jvm.scala.Option.empty()
        return int(self.log.update(False, nothing, nothing).version())

    def forget_log(self) -> None:
        """Let this process read the table's log again, instead of going on from its cached state."""
        jvm: Any = self.spark.sparkContext._jvm
        self._logs.invalidateCache(self.spark._jsparkSession, jvm.org.apache.hadoop.fs.Path(self.path))

    def look_ahead(self) -> None:
        """Compute the files of the newest version, which the next `append` and the next read need.

        Otherwise Delta computes them at that time, in half a second. It does so once for each version. Another thread
        may call this.
        """
        self.log.unsafeVolatileSnapshot().transactions()

    def newest_of(self, writer_id: str) -> int | None:
        """Return the newest `batch_id` that `writer_id` has appended, or None if it appended none."""
        return newest_batch(newest_version(self.log, writer_id))

    def fence(self, writer_id: str) -> None:
        """Prevent `writer_id` from appending anything again.

        Call it before the metadata is read: a process of the writer may be paused between its check of the lease and
        its commit, and would append the rows that this process finds missing.
        """
        self.before_change()
        fence_writer(self.spark, self.log, writer_id)

    def is_fenced(self, writer_id: str) -> bool:
        """Return whether `writer_id` was fenced."""
        return is_fence(newest_version(self.log, writer_id))

    def delta_partitions(self) -> set[str]:
        """Return all Delta partitions of the table, including the partitions of abandoned merges. Reads no file."""
        return partitions_of(self.all_rows())

    def size(self) -> tuple[int, int] | None:
        """Return how many bytes and files the table has, as this process saw it last; None if Delta has not counted.

        Files of unfinished merges are counted. Files that no version since the last vacuum names are not. No file is
        read, since Delta writes these numbers next to each commit.
        """
        snapshot = self.log.unsafeVolatileSnapshot()
        size, files = snapshot.sizeInBytesIfKnown(), snapshot.numOfFilesIfKnown()
        return (int(size.get()), int(files.get())) if size.isDefined() and files.isDefined() else None

    def all_rows(self, version: int | None = None) -> DataFrame:
        """Return all rows of the table, now or at `version`, including the rows of unfinished merges."""
        reader = self.spark.read.format("delta")
        rows = (reader if version is None else reader.option("versionAsOf", version)).load(self.path)
        return rows.where(~F.col("part").isin(self._left_out)) if self._left_out else rows

    def append_rows(
        self, rows: DataFrame, written: WriterVersion | None = None, replaced: Collection[str] = ()
    ) -> None:
        """Append `rows` in one commit. Writes nothing if `written`, or a later version of its writer, was committed.

        The commit removes all rows of the Delta partitions `replaced`. If there are any, `rows` must be in these.
        Checks nothing: the caller has asked `before_append` or `before_change`. Raises Py4JJavaError.
        """
        writer = rows.write.mode("append")
        if replaced:
            condition = f"part IN ({', '.join(repr(partition) for partition in sorted(set(replaced)))})"
            writer = rows.write.mode("overwrite").option("replaceWhere", condition)
        _written(writer, written).save(self.path)

    def overwrite(self, partitions: Collection[str], rows: DataFrame, written: WriterVersion | None = None) -> None:
        """Replace all rows of Delta partitions by `rows`, which must be in these.

        Writes nothing if `written`, or a later version of its writer, was committed.
        """
        self.before_change()
        try:
            self.append_rows(rows, written, partitions)
        except Py4JJavaError as problem:
            # Delta refuses, and does not skip, a write that began before the later one was committed.
            if written is None or not is_concurrent(problem):
                raise

    def replace_partitions(self, partitions: Collection[str], rows: DataFrame) -> None:
        """Replace all rows of Delta partitions by `rows`, in one commit and without reading the old rows.

        So it works where files are damaged or missing. Nothing else may write to the table meanwhile.
        """
        self.overwrite(partitions, rows.sortWithinPartitions("part", *ORDER))

    def delete(self, partitions: Iterable[str]) -> None:
        """Delete all rows of Delta partitions. The next `vacuum` removes their files."""
        self.before_change()
        DeltaTable.forPath(self.spark, self.path).delete(F.col("part").isin(sorted(set(partitions))))

    def vacuum(self) -> None:
        """Remove the files that have not been part of the table for its retention time."""
        self.before_change()
        DeltaTable.forPath(self.spark, self.path).vacuum()

    def clean_log(self) -> None:
        """Remove the entries of the table's log that are older than its retention time, and that no reader needs."""
        self.before_change()
        jvm: Any = self.spark.sparkContext._jvm
        minutes = jvm.org.apache.spark.sql.delta.TruncationGranularity.MINUTE()
        # The retention time is the table's own.
        defaults = [jvm.scala.Option.empty()] * _CLEAN_UP_DEFAULTS[spark_line()]
        self.log.cleanUpExpiredLogs(self.log.unsafeVolatileSnapshot(), *defaults, minutes)

    @property
    def log(self) -> Any:
        """Delta's log of the table (`DeltaLog`)."""
        # Not kept: Delta forgets a log that was not asked for in an hour, and writes through another one from then on.
        return self._logs.forTable(self.spark._jsparkSession, self.path)

    def _check_format(self) -> None:
        name, known = _FORMAT
        found = self._property(name)
        if found != known:
            raise FormatMismatch(
                f"table {self.path} has format {found}, but this Delayline reads format {known}. Run the "
                "version that wrote it, or use another storage.path"
            )

    def _property(self, name: str) -> str | None:
        found = self.log.unsafeVolatileSnapshot().metadata().configuration().get(name)
        return str(found.get()) if found.isDefined() else None

    @cached_property
    def _logs(self) -> Any:
        # Kept: each part of the name is a call to Java, and a batch asks for the log several times.
        jvm: Any = self.spark.sparkContext._jvm
        return jvm.org.apache.spark.sql.delta.DeltaLog


def _written(writer: DataFrameWriter, written: WriterVersion | None) -> DataFrameWriter:
    writer = writer.format("delta").option("compression", _COMPRESSION)
    if written is None:
        return writer
    return writer.option("txnAppId", written.writer).option("txnVersion", written.version)


def partitions_of(rows: DataFrame, condition: str = "true") -> set[str]:
    """Return the Delta partitions in the version of the table that `rows` reads, if `condition` holds for their `part`.

    Delta's log names them. The path of a file may name another folder.
    """
    plan: Any = rows._jdf.queryExecution().analyzed()
    snapshot = plan.collectLeaves().head().relation().location().getSnapshot()
    files = DataFrame(snapshot.allFiles().toDF(), rows.sparkSession)
    named = files.selectExpr("partitionValues['part'] AS part").where(condition)
    return {str(part) for part in named.toArrow().column("part").unique().to_pylist()}
