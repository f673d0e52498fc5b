"""Sets of message ids."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from state.message_ids import (
    NO_IDS,
    among,
    count_of,
    id_texts,
    ids_in,
    ids_of,
    parse_id,
    places_in,
    table_of,
    united,
)
from tests.messages import messages

TABLE = messages(
    {"topic": topic, "partition": partition, "offset": offset}
    for topic, partition, offset in [("a", 0, 5), ("a", 1, 5), ("b", 0, 5), ("a", 0, 2**62), ("a", 0, 7)]
)


def test_ids_name_rows_by_topic_partition_and_offset() -> None:
    named = among(TABLE, ids_of([("a", 0, 5), ("a", 0, 2**62), ("b", 1, 5), ("c", 0, 5)]))
    assert named.tolist() == [True, False, False, True, False]


def test_messages_are_found_in_a_table_by_their_ids() -> None:
    order = [3, 0, 4, 1]
    known = TABLE.take(pa.array(order))
    assert places_in(known, TABLE).tolist() == [1, 3, -1, 0, 2]
    assert places_in(known.slice(0, 0), TABLE).tolist() == [-1] * 5
    assert places_in(known, TABLE.slice(0, 0)).tolist() == []
    assert id_texts(TABLE).to_pylist() == ["a/0/5", "a/1/5", "b/0/5", f"a/0/{2**62}", "a/0/7"]


def test_nothing_is_among_no_ids_and_no_rows_have_ids() -> None:
    assert not among(TABLE, NO_IDS).any()
    assert among(TABLE.slice(0, 0), ids_of([("a", 0, 5)])).tolist() == []


def test_ids_of_a_table_and_of_sets_are_ascending_and_distinct() -> None:
    twice = united([ids_in(TABLE), ids_of([("a", 0, 6), ("a", 0, 5)])])
    assert twice["a", 0].tolist() == [5, 6, 7, 2**62]
    assert count_of(twice) == 6
    assert table_of(twice).num_rows == 6
    assert {source: offsets.tolist() for source, offsets in ids_in(table_of(twice)).items()} == {
        source: offsets.tolist() for source, offsets in twice.items()
    }
    assert table_of(NO_IDS).num_rows == 0
    assert all(offsets.dtype == np.int64 for offsets in twice.values())


@pytest.mark.parametrize(
    ("text", "parsed"),
    [("in/0/5", ("in", 0, 5)), ("a.b/12/007", ("a.b", 12, 7)), ("odd/name/1/2", ("odd/name", 1, 2))],
)
def test_an_id_is_topic_partition_and_offset(text: str, parsed: tuple[str, int, int]) -> None:
    assert parse_id(text) == parsed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "in",
        "in/0",
        "/0/5",
        "in/-1/5",
        "in/0/x",
        "in/0/",
        "in/٣/5",
        f"in/0/{2**63}",
        f"in/{2**31}/0",
        "t" * 250 + "/0/1",
    ],
)
def test_anything_else_is_no_id(text: str) -> None:
    with pytest.raises(ValueError, match=r"id is topic|larger than Kafka|249 characters"):
        parse_id(text)
