from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from state.group_keys import OVERFLOW_GROUPS, overflow_key, overflow_of, shard_keys, state_partitions


@pytest.mark.parametrize("shards", [1, 2, 7, 64])
def test_each_overflow_group_is_known_by_its_key_and_no_shard_has_such_a_key(shards: int) -> None:
    assert all(overflow_of(key, shards) is None for key in shard_keys(shards))
    groups = [(shard, number) for shard in range(shards) for number in (0, 1, OVERFLOW_GROUPS - 1)]
    assert [overflow_of(overflow_key(*group, shards), shards) for group in groups] == groups
    assert max(overflow_key(*group, shards) for group in groups) < 2**31


def test_the_most_shards_that_a_checkpoint_can_have_find_their_keys() -> None:
    assert len(set(shard_keys(1024))) == 1024
    assert overflow_of(overflow_key(1023, OVERFLOW_GROUPS - 1, 1024), 1024) == (1023, OVERFLOW_GROUPS - 1)


@pytest.mark.parametrize(
    ("shards", "partitions"),
    [(1, 1), (2, 2), (16, 16), (17, 17), (32, 16), (60, 20), (61, 61), (64, 16), (128, 16), (1024, 128)],
)
def test_many_shards_share_state_partitions_evenly(shards: int, partitions: int) -> None:
    assert state_partitions(shards) == partitions


@pytest.mark.spark
@pytest.mark.parametrize("shards", [1, 2, 7, 64])
def test_spark_puts_all_groups_of_a_shard_on_one_partition(spark: SparkSession, shards: int) -> None:
    shard_of = {key: shard for shard, key in enumerate(shard_keys(shards))}
    shard_of |= {overflow_key(shard, number, shards): shard for shard in range(shards) for number in (0, 5)}
    partitions = state_partitions(shards)
    rows = spark.createDataFrame([(key,) for key in shard_of], "key int").selectExpr(
        "key", f"pmod(hash(key), {partitions}) AS at"
    )
    found = {row["key"]: row["at"] for row in rows.collect()}
    assert found == {key: shard % partitions for key, shard in shard_of.items()}
