"""The rows of cancelled ids in the table of sealed buckets."""

from __future__ import annotations

from state.buckets.cancelled import cancelled_rows
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
