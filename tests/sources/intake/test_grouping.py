"""Which group of the state stage takes a message."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sources.intake.grouping import Grouping
from state.buckets.operator import FILLED_BYTES, fillers
from state.checkpoint.batch_settings import BatchSettings, RunningBatch
from state.group_keys import overflow_of, shard_keys
from state.shards import shards_of
from tests.messages import messages, some_batch_settings

_SHARDS, _ROWS = 2, 10_000
_MB = 2**20


def settings(group_bytes: int) -> BatchSettings:
    return some_batch_settings(shard_keys=shard_keys(_SHARDS), group_bytes=group_bytes)


def divided(
    tables: list[pa.Table], group_bytes: int, read_partitions: int = 1
) -> tuple[dict[int, list[int]], dict[int, int]]:
    """Return the offsets of the messages of each group, by its key, and its fillers."""
    grouping = Grouping(RunningBatch(0, settings(group_bytes), read_partitions, _ROWS, 0))
    offsets: dict[int, list[int]] = defaultdict(list)
    filling: dict[int, int] = defaultdict(int)
    for table in tables:
        for key, own, count in grouping.divide(table):
            offsets[key] += own.column("offset").to_pylist()
            filling[key] += count
    return dict(offsets), {key: count for key, count in filling.items() if count}


def large(sizes_mb: list[int], output_partition: int = 0) -> pa.Table:
    return messages(
        {"value": bytes(size * _MB), "offset": offset, "output_partition": output_partition}
        for offset, size in enumerate(sizes_mb)
    )


def test_a_small_batch_is_in_the_groups_of_the_shards_and_has_no_fillers() -> None:
    table = messages({"offset": offset, "output_partition": offset % 4} for offset in range(100))
    offsets, filling = divided([table], 64 * _MB)
    assert set(offsets) == set(shard_keys(_SHARDS))
    assert not filling


def test_what_a_shards_own_group_has_no_room_for_goes_to_overflow_groups_of_the_shard() -> None:
    table = large([10] * 20)
    offsets, filling = divided([table], 64 * _MB)
    (shard,) = set(shards_of(table, _SHARDS).tolist())
    own, *overflow = sorted(offsets)
    assert own == shard_keys(_SHARDS)[shard]
    assert offsets[own] == list(range(6))
    places = [overflow_of(key, _SHARDS) for key in overflow]
    assert {place[0] for place in places if place} == {shard}
    assert sorted(offset for key in overflow for offset in offsets[key]) == list(range(6, 20))
    assert all(len(offsets[key]) <= FILLED_BYTES // (10 * _MB) + 1 for key in overflow)
    # Enough fillers that Spark collects no more than about FILLED_BYTES.
    assert set(filling) == set(overflow)
    assert fillers(140 * _MB, _ROWS) <= sum(filling.values()) < 1.01 * fillers(140 * _MB, _ROWS)


def test_each_of_many_input_partitions_has_its_share_of_each_group() -> None:
    offsets, _ = divided([large([1] * 40)], 64 * _MB, read_partitions=4)
    assert [len(offsets[key]) for key in sorted(offsets)] == [15, 8, 8, 8, 1]
    # However many they are, not in pieces of some bytes.
    small = messages({"value": bytes(10_000), "offset": offset} for offset in range(100))
    assert len(divided([small], 64 * _MB, read_partitions=10_000)[0]) == 4


def test_a_message_larger_than_any_group_comes_out_all_the_same() -> None:
    offsets, _ = divided([large([1, 100, 1, 60])], 64 * _MB)
    assert sorted(offsets.values()) == [[0], [1, 2], [3]]


@given(st.lists(st.tuples(st.integers(0, 400_000), st.integers(0, 3)), min_size=1, max_size=60), st.data())
def test_the_groups_do_not_depend_on_how_spark_cuts_the_records(
    rows: list[tuple[int, int]], data: st.DataObject
) -> None:
    table = messages(
        {"value": bytes(size), "offset": offset, "output_partition": partition}
        for offset, (size, partition) in enumerate(rows)
    )
    cuts = sorted({0, len(rows), *data.draw(st.lists(st.integers(0, len(rows)), max_size=5))})
    pieces = [table.slice(start, end - start) for start, end in pairwise(cuts)]
    # Room for a message or two in each group.
    whole, _ = divided([table], 400_000, read_partitions=1_000)
    assert divided(pieces, 400_000, read_partitions=1_000)[0] == whole
    assert sorted(offset for offsets in whole.values() for offset in offsets) == list(range(len(rows)))
