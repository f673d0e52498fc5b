"""The rows of cancelled ids in the table of sealed buckets."""

from __future__ import annotations

import pyarrow as pa

from state.buckets.cancelled import NONE_CANCELLED, CancelledIds, cancelled_rows
from state.message_ids import ID_SCHEMA, each_of
from tests.messages import cancelled


def test_what_was_replaced_has_the_id_of_its_replacement_beside_it() -> None:
    table = cancelled([("in", 0, 2, 500, 510), ("in", 0, 1, 600, 610), ("other/x", 3, 1, -1, -1)])
    replaced = {("in", 0, 1): ("in", 0, 7), ("other/x", 3, 1): ("other/x", 2, 8)}
    rows = cancelled_rows(table, 4, replaced).to_pylist()
    assert [(row["topic"], row["offset"], row["name"]) for row in rows] == [
        ("other/x", 1, b"other/x/2/8"),
        ("in", 2, None),
        ("in", 1, b"in/0/7"),
    ]
    assert {row["part"] for row in rows} == {"cancelled-000000000004"}
    assert [row["name"] for row in cancelled_rows(table, 4).to_pylist()] == [None] * 3


def test_a_cancelled_id_counts_in_buckets_up_to_that_of_the_last_batch_that_cancelled_it() -> None:
    rows = [("in", 0, 2, 4), ("in", 0, 1, 6), ("in", 0, 2, 7), ("in", 1, 2, 5), ("other", 0, 2, 3)]
    schema = ID_SCHEMA.append(pa.field("bucket", pa.int64()))
    table = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)
    ids = CancelledIds.of(table)
    assert ids.count == 4
    assert each_of(ids.in_bucket(6)) == {("in", 0, 1), ("in", 0, 2)}
    assert ids.in_bucket(8) == {}
    assert ids.among(table).tolist() == [True] * 5
    later = table.set_column(3, schema.field(3), pa.array([7, 7, 7, 6, 3], pa.int64()))
    assert ids.among(later).tolist() == [True, False, True, False, True]
    assert CancelledIds.of(schema.empty_table()).count == NONE_CANCELLED.count == 0
    assert NONE_CANCELLED.among(table).tolist() == [False] * 5
