"""The Delta table of sealed buckets: messages and segment metadata, by time partition."""

from __future__ import annotations

from collections.abc import Iterable

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from conf.message import MESSAGE_SCHEMA

_PROPERTIES = {
    # A log checkpoint costs about two appends; at the default of every tenth the tenth batch would be late.
    "delta.checkpointInterval": "50",
    # Only the job and `status` read the table, and both read its newest version.
    "delta.logRetentionDuration": "interval 1 day",
    "delta.deletedFileRetentionDuration": "interval 1 hour",
    "delta.enableDeletionVectors": "false",
    "delta.dataSkippingStatsColumns": "bucket,shard,segment,deliver_at_ms",
}

METADATA_COLUMNS = (
    "bucket", "shard", "segment", "time_partition", "deliver_at_ms", "max_deliver_at_ms", "count", "bytes",
)  # fmt: skip


class BucketStore:
    """Sealed buckets at `path`, one Delta commit each."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.spark = spark
        self.path = path

    def exists(self) -> bool:
        """Say whether the table has been made."""
        return DeltaTable.isDeltaTable(self.spark, self.path)

    def create(self, schema: StructType) -> None:
        """Make the table if there is none. `schema` holds the columns `time_partition` and `kind`."""
        builder = DeltaTable.createIfNotExists(self.spark).location(self.path)
        builder = builder.addColumns(schema).partitionedBy("time_partition", "kind")
        for name, value in _PROPERTIES.items():
            builder = builder.property(name, value)
        builder.execute()

    def append(self, rows: DataFrame, writer: str, batch_id: int) -> None:
        """Store the rows of the bucket that batch `batch_id` of `writer` sealed, in one commit.

        Idempotent: a second append of the same writer and batch writes nothing.
        """
        (
            rows.sortWithinPartitions("time_partition", "kind", "shard", "segment", "deliver_at_ms")
            .write.format("delta")
            .mode("append")
            .option("txnAppId", writer)
            .option("txnVersion", batch_id)
            .save(self.path)
        )

    def metadata(self) -> list[Row]:
        """Read the metadata rows of all segments, without touching a message."""
        return self._table().where("kind = 'metadata'").select(*METADATA_COLUMNS).collect()

    def messages(
        self, start_ms: int, end_ms: int, partitions: Iterable[str], first_bucket: int, last_bucket: int
    ) -> DataFrame:
        """Return the messages due in [start_ms, end_ms), of the named time partitions and buckets only.

        The columns are those of `conf.message.MESSAGE_SCHEMA` and `shard`; a sealed message has no error.
        """
        rows = self._table().where(
            (F.col("kind") == "message")
            & F.col("time_partition").isin(sorted(set(partitions)))
            & F.col("bucket").between(first_bucket, last_bucket)
            & (F.col("deliver_at_ms") >= start_ms)
            & (F.col("deliver_at_ms") < end_ms)
        )
        no_error = F.lit(None).cast("string")
        return rows.select(
            *(no_error.alias(n) if n.startswith("error_") else F.col(n) for n in MESSAGE_SCHEMA.names), "shard"
        )

    def delete(self, partitions: Iterable[str]) -> None:
        """Drop whole time partitions from the table. Their files go with the next `vacuum`."""
        DeltaTable.forPath(self.spark, self.path).delete(F.col("time_partition").isin(sorted(set(partitions))))

    def vacuum(self) -> None:
        """Remove the files that the table has not named for its retention time."""
        DeltaTable.forPath(self.spark, self.path).vacuum()

    def _table(self) -> DataFrame:
        return self.spark.read.format("delta").load(self.path)
