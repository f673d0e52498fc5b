"""Names of parts: each leads back to the values it was made from."""

from __future__ import annotations

import re
import sqlite3

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from state.buckets.parts import (
    IS_MARKER,
    IS_METADATA,
    MergeName,
    abandoned,
    chunks_of,
    has_part,
    is_live,
    is_metadata,
    marker_of,
    metadata_of,
    part_of,
    sealed_part,
)

NUMBER = st.integers(0, 10**12 - 1)
MERGE = st.builds(MergeName, NUMBER, NUMBER, NUMBER, st.integers(0, 10**6 - 1))
SEALED = NUMBER.map(sealed_part)
MERGED = st.builds(MergeName.part, MERGE, st.integers(0, 10**6 - 1))
# A Delta partition that no row is in.
NO_PARTITION = "none"


@given(st.one_of(SEALED, MERGED))
def test_a_part_has_two_delta_partitions_that_lead_back_to_it(part: str) -> None:
    assert part_of(chunks_of(part)) == part_of(metadata_of(part)) == part
    assert chunks_of(part) != metadata_of(part)
    assert (is_metadata(chunks_of(part)), is_metadata(metadata_of(part))) == (False, True)


@given(MERGE, st.integers(0, 10**6 - 1))
@example(MergeName(10**12 - 1, 10**12 - 1, 10**12 - 1, 10**6 - 1), 10**6 - 1)
def test_each_part_of_a_merge_needs_its_marker(name: MergeName, number: int) -> None:
    assert marker_of(name.part(number)) == name.live


@given(NUMBER)
def test_the_part_of_a_sealed_bucket_needs_no_marker(bucket: int) -> None:
    assert marker_of(sealed_part(bucket)) is None


@given(MERGE)
def test_a_marker_has_neither_chunks_nor_metadata(name: MergeName) -> None:
    assert not has_part(name.live)
    with pytest.raises(ValueError, match="neither chunks nor metadata"):
        part_of(name.live)
    assert not is_metadata(name.live)


@given(st.sets(MERGE, min_size=2, max_size=2), st.integers(0, 10**6 - 1), st.integers(0, 10**6 - 1))
def test_no_two_merges_share_a_name(names: set[MergeName], number: int, other: int) -> None:
    one, two = names
    assert one.live != two.live
    assert one.part(number) != two.part(other)


@given(SEALED, MERGED, MERGE)
def test_no_delta_partition_has_two_meanings(sealed: str, merged: str, name: MergeName) -> None:
    partitions = [NO_PARTITION, name.live]
    partitions += [of(part) for part in (sealed, merged) for of in (chunks_of, metadata_of)]
    assert len(set(partitions)) == len(partitions)


# A table: its merges with their numbers of parts, its finished merges, and its other partitions.
TABLE = st.tuples(
    st.dictionaries(MERGE, st.integers(1, 3), max_size=5).flatmap(
        lambda merges: st.tuples(
            st.just(merges), st.sets(st.sampled_from(sorted(merges))) if merges else st.just(set())
        )
    ),
    st.sets(SEALED, max_size=4),
)


@given(TABLE)
def test_abandoned_is_all_of_a_merge_without_a_marker_and_a_marker_without_parts(
    table: tuple[tuple[dict[MergeName, int], set[MergeName]], set[str]],
) -> None:
    (merges, finished), sealed = table
    parts_of = {name: {name.part(number) for number in range(parts)} for name, parts in merges.items()}
    left = {
        of(part)
        for name in merges
        if name not in finished
        for part in parts_of[name]
        for of in (chunks_of, metadata_of)
    }
    kept = {of(part) for name in finished for part in parts_of[name] for of in (chunks_of, metadata_of)}
    kept |= {of(part) for part in sealed for of in (chunks_of, metadata_of)}
    markers = {name.live for name in finished}
    assert abandoned(left | kept | markers) == left
    assert abandoned(kept | markers) == set()
    # Nothing was left for the merged buckets when they were made, or their parts were deleted, and the markers not.
    assert abandoned(left | markers) == left | markers


@given(TABLE)
def test_the_conditions_in_sql_find_what_the_functions_find(
    table: tuple[tuple[dict[MergeName, int], set[MergeName]], set[str]],
) -> None:
    (merges, finished), sealed = table
    parts = {name.part(number) for name, count in merges.items() for number in range(count)} | sealed
    markers = {name.live for name in finished}
    rows = {of(part) for part in parts for of in (chunks_of, metadata_of)}
    assert selected(rows, is_live(markers)) == rows - abandoned(rows | markers)
    assert selected(rows | markers, IS_METADATA) == {partition for partition in rows if is_metadata(partition)}
    assert selected(rows | markers, IS_MARKER) == markers


def selected(partitions: set[str], condition: str) -> set[str]:
    """Return the partitions for which an SQL condition holds, by SQLite, where Spark's RLIKE is called REGEXP."""
    database = sqlite3.connect(":memory:")
    try:
        database.create_function("regexp", 2, lambda pattern, text: re.search(pattern, text) is not None)
        database.execute("CREATE TABLE stored (part TEXT)")
        database.executemany("INSERT INTO stored VALUES (?)", [(partition,) for partition in partitions])
        query = f"SELECT part FROM stored WHERE {condition.replace(' RLIKE ', ' REGEXP ')}"  # noqa: S608
        return {part for (part,) in database.execute(query)}
    finally:
        database.close()
