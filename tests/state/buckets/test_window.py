from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from state.buckets.cancelled_filter import CancelledFilter
from state.buckets.parts import is_metadata
from state.buckets.segments import cut
from state.buckets.table_rows import STORED_SCHEMA, segment_rows
from state.buckets.window import WINDOW_SCHEMA, window_rows
from state.message import decode_chunk
from state.order import in_order
from state.shards import shards_of
from tests.messages import messages, placed, some_batch_settings, with_cancelled
from tests.thorough import examples

KEY = ["deliver_at_ms", "topic", "partition", "offset"]
MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS
# Within milliseconds of each other, or hours apart.
DUE = st.one_of(st.integers(0, 50), st.integers(0, DAY_MS))
BUCKET = st.lists(st.tuples(DUE, st.integers(0, 3)), min_size=1, max_size=30)


def stored_chunks(buckets: list[pa.Table]) -> list[pa.RecordBatch]:
    """Return the stored chunks of several buckets in order of their keys, three to a batch."""
    batch_settings = some_batch_settings(segment_max_messages=7)
    rows = [
        batch
        for number, sealed in enumerate(buckets)
        for segment, part in cut(sealed, number, 0, batch_settings)
        for batch in segment_rows(segment, part, batch_settings.index_precision_bits)
    ]
    table = pa.Table.from_batches(rows, schema=STORED_SCHEMA)
    chunks = table.filter(pa.array(not is_metadata(part) for part in table.column("part").to_pylist()))
    ordered = chunks.select([*KEY, "bucket", "chunk"]).sort_by([(name, "ascending") for name in KEY])
    return list(ordered.to_batches(max_chunksize=3))


@given(st.lists(BUCKET, min_size=1, max_size=5), DUE, DUE, st.integers(1, 4), st.sets(st.integers(0, 40)))
@settings(max_examples=examples(60))
def test_the_window_has_each_message_of_its_range_once_under_its_current_shard_but_for_cancelled_ones(
    buckets: list[Any], one: int, other: int, shards: int, cancelled: set[int]
) -> None:
    start_ms, end_ms = sorted((one, other))
    tables = placed(buckets)
    everything = in_order(pa.concat_tables(tables))
    gone = [row for row in everything.to_pylist() if row["offset"] in cancelled]
    chunks, counts = with_cancelled(stored_chunks(tables), len(buckets), gone), list[int]()
    in_window = window_rows(start_ms, end_ms, shards, CancelledFilter(len(buckets), counts.append))
    given_rows = [row for batch in in_window(iter(chunks)) for row in batch.to_pylist()]
    assert all(list(row) == WINDOW_SCHEMA.names for row in given_rows)
    # A minute; of a range of many hours, up to an hour.
    span_ms = min(max(MINUTE_MS, (end_ms - start_ms) * shards // 2_048), 60 * MINUTE_MS)
    in_range = [row for row in everything.to_pylist() if start_ms <= row["deliver_at_ms"] < end_ms]
    wanted = [row for row in in_range if row["offset"] not in cancelled]
    assert counts == [len(in_range) - len(wanted)]
    for shard in range(shards):
        rows = [row for row in given_rows if row["shard"] == shard]
        loaded = pa.concat_tables([messages([]), *(decode_chunk(row["chunk"]) for row in rows)])
        assert shards_of(loaded, shards).tolist() == [shard] * loaded.num_rows
        assert loaded.to_pylist() == [row for row in wanted if shards_of(messages([row]), shards)[0] == shard]
        for row in rows:
            chunk = decode_chunk(row["chunk"]).to_pylist()
            assert [row[name] for name in KEY] == [chunk[0][name] for name in KEY]
            assert (row["max_deliver_at_ms"], row["count"]) == (chunk[-1]["deliver_at_ms"], len(chunk))
            # A batch reads a chunk whole, so a chunk of messages that are far apart would be read again and again.
            assert row["deliver_at_ms"] // span_ms == row["max_deliver_at_ms"] // span_ms


def test_messages_of_one_minute_stay_in_one_chunk() -> None:
    bucket = placed([[(due, 0) for due in (0, 59_000, 59_999, 60_000, 60_001, 3 * MINUTE_MS)]])
    rows = [row for batch in window_rows(0, DAY_MS, 1)(iter(stored_chunks(bucket))) for row in batch.to_pylist()]
    assert [(row["deliver_at_ms"], row["max_deliver_at_ms"], row["count"]) for row in rows] == [
        (0, 59_999, 3),
        (60_000, 60_001, 2),
        (180_000, 180_000, 1),
    ]
