from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from state.shards import shards_of
from tests.messages import MESSAGE, messages
from tests.thorough import examples


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 20)), min_size=1, max_size=20),
    st.integers(1, 8),
)
@settings(max_examples=examples(50))
def test_an_output_partition_has_one_shard_whatever_else_is_in_the_table(
    outputs: list[tuple[str, int]], shards: int
) -> None:
    table = messages({**MESSAGE, "output_topic": topic, "output_partition": part} for topic, part in outputs)
    given_shards = shards_of(table, shards)
    alone = [int(shards_of(table.slice(row, 1), shards)[0]) for row in range(len(outputs))]
    assert given_shards.tolist() == alone
    assert set(alone) <= set(range(shards))


def test_the_partitions_of_one_topic_are_spread_evenly_over_the_shards() -> None:
    table = messages({"output_partition": part} for part in range(12))
    assert np.bincount(shards_of(table, 3)).tolist() == [4, 4, 4]
    assert shards_of(pa.concat_tables([table, table]), 3).tolist() == [*shards_of(table, 3)] * 2
