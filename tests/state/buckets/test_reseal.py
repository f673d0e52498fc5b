"""Messages that a checkpoint leaves become one bucket, however they come, and without being in memory all at once."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from operator import itemgetter

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from state.buckets.parts import chunks_of, metadata_of, sealed_part
from state.buckets.reseal import LEFT_SCHEMA, left_rows, resealed
from state.buckets.segments import cut
from state.buckets.table_rows import STORED_SCHEMA, described_segment
from state.message import decode_chunk
from state.order import ORDER, in_order
from state.shards import by_shard
from tests.messages import messages, some_batch_settings
from tests.thorough import examples

BUCKET = 7
BATCH_SETTINGS = some_batch_settings(segment_max_messages=150)


def rows_of(tables: Iterable[pa.Table], shards: int) -> list[pa.RecordBatch]:
    """Return the rows that are left as Spark's tasks get them, here of all shards: a row in each batch."""
    rows = pa.Table.from_batches([row for table in tables for row in left_rows(table, shards)], LEFT_SCHEMA)
    in_turn = rows.sort_by([(name, "ascending") for name in ("shard", *ORDER)])
    return [batch for at in range(rows.num_rows) for batch in in_turn.slice(at, 1).to_batches()]


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 4)), max_size=400), max_size=5), st.integers(1, 3)
)
@settings(max_examples=examples(30))
def test_what_is_left_becomes_the_segments_that_it_would_be_sealed_in_at_once(
    tables: list[list[tuple[int, int]]], shards: int
) -> None:
    offsets = iter(range(10_000))
    left = [
        messages({"deliver_at_ms": due, "output_partition": to, "offset": next(offsets)} for due, to in table)
        for table in tables
    ]
    stored = pa.Table.from_batches(resealed(BUCKET, BATCH_SETTINGS)(rows_of(left, shards)), STORED_SCHEMA).to_pylist()
    expected = [
        (segment, sealed.to_pylist())
        for shard, own in by_shard(pa.concat_tables([messages([]), *left]), shards)
        for segment, sealed in cut(in_order(own), BUCKET, shard, BATCH_SETTINGS)
    ]
    part = sealed_part(BUCKET)
    segments = [described_segment(row) for row in stored if row["part"] == metadata_of(part)]
    by_number = itemgetter("shard", "segment")
    assert sorted(segments, key=lambda segment: (segment.shard, segment.segment)) == [each for each, _ in expected]
    chunks = sorted((row for row in stored if row["part"] == chunks_of(part)), key=by_number)
    found = [message for row in chunks for message in decode_chunk(row["chunk"]).to_pylist()]
    assert found == [message for _, sealed in expected for message in sealed]


def test_a_shard_is_sealed_while_its_messages_come() -> None:
    chance = random.Random(5)
    offsets = iter(range(100_000))

    def read_at_once() -> pa.Table:
        # Messages that are read together are due at any time.
        dues = (chance.randrange(10**9) for _ in range(1_000))
        return messages({"deliver_at_ms": due, "offset": next(offsets), "value": bytes(1_000)} for due in dues)

    rows = rows_of((read_at_once() for _ in range(40)), 1)
    taken = 0

    def passed_on() -> Iterator[pa.RecordBatch]:
        nonlocal taken
        for row in rows:
            taken += 1
            yield row

    sealed = resealed(BUCKET, BATCH_SETTINGS)(passed_on())
    next(sealed)
    assert taken < len(rows) / 3
