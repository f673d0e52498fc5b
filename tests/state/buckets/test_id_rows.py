"""Ids of messages as rows of the bucket table."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from state.buckets.id_rows import ID_ROW_SCHEMA, STORED_IDS, id_rows, joined_ids
from state.buckets.parts import IdRows
from state.buckets.table_rows import CHUNK_MESSAGES, STORED_SCHEMA
from state.order import ORDER, in_order
from tests.messages import ids_of_rows

Row = tuple[int, int, int]
# Due time (few values, so that rows share them; -1 for messages in no bucket), partition and offset.
ROWS = st.lists(st.tuples(st.sampled_from([-1, 0, 5, 6]), st.integers(0, 1), st.integers(0, 50)), unique=True)


def ids(rows: Iterable[Row], bucket: int = 1) -> pa.Table:
    """Return ids of a topic, each due up to 10 ms after its given due time."""
    several = [
        {"bucket": bucket, "topic": "in", "deliver_at_ms": due_ms, "max_deliver_at_ms": due_ms + 10}
        | {"partition": partition, "offset": offset, "name": b"%d" % offset}
        for due_ms, partition, offset in rows
    ]
    return pa.Table.from_pylist(several, schema=ID_ROW_SCHEMA)


def stored(rows: Iterable[Row], bucket: int = 1) -> pa.Table:
    """Return them as a batch stores them."""
    table = ids(rows, bucket)
    columns = {name: table.column(name) for name in table.column_names if name != "bucket"}
    return id_rows(IdRows.CANCELLED, bucket, columns)


def test_ids_take_a_row_for_as_many_as_a_chunk_has_with_the_bounds_of_their_due_times() -> None:
    rows = [(due_ms, 0, due_ms) for due_ms in range(CHUNK_MESSAGES + 1)]
    whole, rest = stored([*reversed(rows), (-1, 1, 7)]).to_pylist()[1:]
    assert [(row["deliver_at_ms"], row["max_deliver_at_ms"], row["count"]) for row in (whole, rest)] == [
        (0, CHUNK_MESSAGES + 9, CHUNK_MESSAGES),
        (CHUNK_MESSAGES, CHUNK_MESSAGES + 10, 1),
    ]
    assert {row["part"] for row in (whole, rest)} == {IdRows.CANCELLED.partition(1)}
    assert stored([]).num_rows == 0


def test_what_no_window_takes_is_in_chunks_of_its_own() -> None:
    rows = stored([(500, 0, 1), (-1, 0, 2), (-1, 0, 3)]).to_pylist()
    assert [(row["deliver_at_ms"], row["count"]) for row in rows] == [(-1, 2), (500, 1)]


@given(ROWS)
def test_ids_are_read_as_they_were_stored(rows: list[Row]) -> None:
    columns = [(name, "ascending") for name in ID_ROW_SCHEMA.names]
    assert ids_of_rows(stored(rows, 4)).sort_by(columns) == ids(rows, 4).sort_by(columns)


@given(st.lists(ROWS, min_size=1, max_size=4), st.integers(0, 50))
def test_joined_ids_are_those_that_are_kept_in_order_in_the_partition_of_the_last_bucket(
    several: list[list[Row]], kept_from: int
) -> None:
    table = in_order(pa.concat_tables([stored(rows, 10 + number) for number, rows in enumerate(several)]))

    def is_kept(some: pa.Table) -> np.ndarray:
        return np.asarray(some.column("offset").to_numpy() >= kept_from)

    run = joined_ids(IdRows.CANCELLED, 13, is_kept)
    joined = pa.Table.from_batches(run(table.select(STORED_IDS).to_batches(max_chunksize=3)), STORED_SCHEMA)
    every = pa.concat_tables([ids(rows, 10 + number) for number, rows in enumerate(several)])
    columns = [(name, "ascending") for name in (*ORDER, "bucket")]
    assert ids_of_rows(joined).sort_by(columns) == every.filter(pa.array(is_kept(every))).sort_by(columns)
    assert in_order(joined) == joined
    assert set(joined.column("part").to_pylist()) <= {IdRows.CANCELLED.partition(13)}


def test_a_joined_chunk_is_found_by_the_lowest_bucket_in_it() -> None:
    table = in_order(pa.concat_tables([stored([(5, 0, 1)], 10), stored([(6, 0, 2)], 11)]))
    run = joined_ids(IdRows.CANCELLED, 11, lambda some: np.ones(some.num_rows, dtype=bool))
    (row,) = pa.Table.from_batches(run(table.select(STORED_IDS).to_batches()), STORED_SCHEMA).to_pylist()
    assert (row["bucket"], row["count"], row["max_deliver_at_ms"]) == (10, 2, 16)
