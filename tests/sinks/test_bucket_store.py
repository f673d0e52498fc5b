"""The table of sealed buckets, on real Delta."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from conf.message import MESSAGE_SCHEMA, encode_chunk
from sinks.bucket_store import BucketStore
from state.segments import cut
from state.stored import STORED_SCHEMA, stored_rows
from tests.messages import messages, some_rules

_HOUR = 3_600_000


@pytest.fixture
def store(spark: SparkSession, tmp_path: Path) -> BucketStore:
    made = BucketStore(spark, str(tmp_path / "buckets"))
    made.create(from_arrow_schema(STORED_SCHEMA))
    return made


def bucket(spark: SparkSession, number: int, *dues: int) -> DataFrame:
    """The rows of a bucket with one message due at each of `dues`."""
    sealed = messages([{"deliver_at_ms": due, "offset": due, "value": b"%d" % due} for due in sorted(dues)])
    held = [
        {
            **{name: getattr(segment, name) for name in segment.__dataclass_fields__},
            "chunk": encode_chunk(rows),
        }
        for segment, rows in cut(sealed, number, 0, 0, some_rules())
    ]
    batches = stored_rows(iter(pa.Table.from_pylist(held).to_batches()))
    return spark.createDataFrame(pa.Table.from_batches(batches).to_pylist(), from_arrow_schema(STORED_SCHEMA))


def dues(read: DataFrame) -> list[int]:
    return sorted(row["deliver_at_ms"] for row in read.collect())


def test_a_bucket_is_stored_with_its_metadata_in_one_commit_and_only_once(
    spark: SparkSession, store: BucketStore
) -> None:
    rows = bucket(spark, 5, 10, 20, 2 * _HOUR)
    for _ in range(2):
        store.append(rows, "checkpoint", 5)
    metadata = store.metadata()
    assert sorted((row["bucket"], row["segment"], row["count"]) for row in metadata) == [(5, 0, 2), (5, 1, 1)]
    labels = {row["time_partition"] for row in metadata}
    assert dues(store.messages(0, 10 * _HOUR, labels, 5, 5)) == [10, 20, 2 * _HOUR]
    assert spark.sql(f"DESCRIBE HISTORY delta.`{store.path}`").count() == 2


def test_only_the_asked_range_and_buckets_are_read_and_as_messages(spark: SparkSession, store: BucketStore) -> None:
    store.append(bucket(spark, 1, 10, 20, 30), "checkpoint", 1)
    store.append(bucket(spark, 2, 15, 25), "checkpoint", 2)
    labels = {row["time_partition"] for row in store.metadata()}
    assert dues(store.messages(15, 30, labels, 1, 2)) == [15, 20, 25]
    assert dues(store.messages(0, 100, labels, 2, 2)) == [15, 25]
    assert store.messages(0, 100, labels, 1, 2).columns == [*MESSAGE_SCHEMA.names, "shard"]


def test_the_same_batch_number_of_another_checkpoint_is_stored(spark: SparkSession, store: BucketStore) -> None:
    store.append(bucket(spark, 1, 10), "checkpoint", 1)
    store.append(bucket(spark, 1, 11), "another", 1)
    assert len(store.metadata()) == 2


def test_a_deleted_time_partition_takes_its_messages_and_metadata_and_leaves_the_rest(
    spark: SparkSession, store: BucketStore
) -> None:
    store.append(bucket(spark, 1, 10, 5 * _HOUR), "checkpoint", 1)
    first, second = sorted(row["time_partition"] for row in store.metadata())
    store.delete([first])
    assert [row["time_partition"] for row in store.metadata()] == [second]
    assert dues(store.messages(0, 10 * _HOUR, [first, second], 1, 1)) == [5 * _HOUR]
