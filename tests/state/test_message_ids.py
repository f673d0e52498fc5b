"""Sets of message ids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.message_ids import (
    ID_SCHEMA,
    NO_IDS,
    by_source,
    contains_mask,
    count_of,
    id_texts,
    ids_in,
    ids_of,
    parse_id,
    places_in,
    table_of,
    to_set,
    union,
)
from tests.messages import messages

TABLE = messages(
    {"topic": topic, "partition": partition, "offset": offset}
    for topic, partition, offset in [("a", 0, 5), ("a", 1, 5), ("b", 0, 5), ("a", 0, 2**62), ("a", 0, 7)]
)


def test_ids_name_rows_by_topic_partition_and_offset() -> None:
    named = contains_mask(TABLE, ids_of([("a", 0, 5), ("a", 0, 2**62), ("b", 1, 5), ("c", 0, 5)]))
    assert named.tolist() == [True, False, False, True, False]


def test_messages_are_found_in_a_table_by_their_ids() -> None:
    order = [3, 0, 4, 1]
    known = TABLE.take(pa.array(order))
    assert places_in(known, TABLE).tolist() == [1, 3, -1, 0, 2]
    assert places_in(known.slice(0, 0), TABLE).tolist() == [-1] * 5
    assert places_in(known, TABLE.slice(0, 0)).tolist() == []
    assert id_texts(TABLE).to_pylist() == ["a/0/5", "a/1/5", "b/0/5", f"a/0/{2**62}", "a/0/7"]


def test_nothing_is_among_no_ids_and_no_rows_have_ids() -> None:
    assert not contains_mask(TABLE, NO_IDS).any()
    assert contains_mask(TABLE.slice(0, 0), ids_of([("a", 0, 5)])).tolist() == []


def test_ids_of_a_table_and_of_sets_are_ascending_and_distinct() -> None:
    twice = union([ids_in(TABLE), ids_of([("a", 0, 6), ("a", 0, 5)])])
    assert twice["a", 0].tolist() == [5, 6, 7, 2**62]
    assert count_of(twice) == 6
    assert table_of(twice).num_rows == 6
    assert {source: offsets.tolist() for source, offsets in ids_in(table_of(twice)).items()} == {
        source: offsets.tolist() for source, offsets in twice.items()
    }
    assert table_of(NO_IDS).num_rows == 0
    assert all(offsets.dtype == np.int64 for offsets in twice.values())


def table(ids: Sequence[tuple[str, int, int]]) -> pa.Table:
    columns = zip(*ids, strict=True) if ids else [()] * len(ID_SCHEMA)
    return pa.table([pa.array(own, field.type) for own, field in zip(columns, ID_SCHEMA, strict=True)], ID_SCHEMA)


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "ü", ""]), st.sampled_from([-1, 0, 1, 7, 65_536, 2**31 - 1]), st.integers(0, 5)
    )
)


@given(ROWS, ROWS)
def test_rows_are_found_by_their_source_however_they_lie(
    rows: list[tuple[str, int, int]], more: list[tuple[str, int, int]]
) -> None:
    both, every = pa.concat_tables([table(rows), table(more)]), [*rows, *more]
    expected: dict[tuple[str, int], list[int]] = {}
    for at, (topic, partition, _) in enumerate(every):
        expected.setdefault((topic, partition), []).append(at)
    assert {source: own.tolist() for source, own in by_source(both)} == expected
    for batch in both.combine_chunks().to_batches():
        assert {source: own.tolist() for source, own in by_source(batch)} == expected
    assert to_set(ids_in(both)) == set(every)
    assert contains_mask(both, ids_of(more)).tolist() == [each in more for each in every]
    distinct = list(dict.fromkeys(more))
    assert places_in(table(distinct), both).tolist() == [
        distinct.index(each) if each in distinct else -1 for each in every
    ]


def test_ids_of_many_sources_are_one_table_and_are_found_in_it() -> None:
    asked = table([(f"no-topic-{number % 25_000}", number // 25_000, number) for number in range(50_000)])
    ids = ids_in(asked)
    known = table_of(ids)
    assert [column.num_chunks for column in known.columns] == [1, 1, 1]
    # A scan of the table for each source would take minutes, and exceed the time limit of a test.
    assert known.take(pa.array(places_in(known, asked))) == asked
    assert contains_mask(asked, ids).all()
    assert not contains_mask(asked, ids_of([("no-topic-1", 0, 2)])).any()
    whole = union([ids, ids_in(asked.slice(10)), NO_IDS])
    assert table_of(whole) == known


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
    with pytest.raises(ValueError, match=r"id has the form|larger than Kafka|249 characters"):
        parse_id(text)
