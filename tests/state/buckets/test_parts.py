"""Names of parts: each leads back to what it was made from, and old and new names are never confused."""

from __future__ import annotations

import re
import sqlite3

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from state.buckets.parts import (
    IS_MARKER,
    IS_METADATA,
    OLD_METADATA,
    MergeName,
    abandoned,
    chunks_of,
    is_live,
    is_metadata,
    is_old,
    marker_of,
    metadata_of,
    old_end_ms,
    part_of,
    sealed_part,
)

NUMBER = st.integers(0, 10**12 - 1)
MERGE = st.builds(MergeName, NUMBER, NUMBER, NUMBER)
SEALED = NUMBER.map(sealed_part)
MERGED = st.builds(MergeName.part, MERGE, st.integers(0, 10**6 - 1))
# The start and the length of an old part, in ms. A number in its name has 15 digits, or more once it is that large.
SPAN = st.tuples(st.integers(0, 10**17), st.integers(1, 10**12))
# A Delta partition that no row is in.
NO_PARTITION = "none"


def old_part(span: tuple[int, int]) -> str:
    start_ms, length_ms = span
    return f"{start_ms:015d}-{start_ms + length_ms:015d}"


OLD = SPAN.map(old_part)


@given(st.one_of(SEALED, MERGED))
def test_a_part_has_two_delta_partitions_that_lead_back_to_it(part: str) -> None:
    assert part_of(chunks_of(part)) == part_of(metadata_of(part)) == part
    assert chunks_of(part) != metadata_of(part)
    assert (is_metadata(chunks_of(part)), is_metadata(metadata_of(part))) == (False, True)
    assert not is_old(part)


@given(SPAN)
def test_an_old_part_keeps_the_name_of_its_chunks_and_shares_its_metadata(span: tuple[int, int]) -> None:
    part = old_part(span)
    assert is_old(part)
    assert chunks_of(part) == part_of(part) == part
    assert metadata_of(part) == OLD_METADATA
    assert old_end_ms(part) == sum(span)
    assert not is_metadata(part)
    assert marker_of(part) is None


def test_old_metadata_is_metadata_of_no_certain_part() -> None:
    assert is_metadata(OLD_METADATA)
    assert part_of(OLD_METADATA) is None


@given(MERGE, st.integers(0, 10**6 - 1))
@example(MergeName(10**12 - 1, 10**12 - 1, 10**12 - 1), 10**6 - 1)
def test_each_part_of_a_merge_needs_its_marker(name: MergeName, number: int) -> None:
    assert marker_of(name.part(number)) == name.live


@given(NUMBER)
def test_the_part_of_a_sealed_bucket_needs_no_marker(bucket: int) -> None:
    assert marker_of(sealed_part(bucket)) is None


@given(MERGE)
def test_a_marker_has_neither_chunks_nor_metadata(name: MergeName) -> None:
    assert part_of(name.live) is None
    assert not is_metadata(name.live)
    assert not is_old(name.live)


@given(st.sets(MERGE, min_size=2, max_size=2), st.integers(0, 10**6 - 1), st.integers(0, 10**6 - 1))
def test_no_two_merges_share_a_name(names: set[MergeName], number: int, other: int) -> None:
    one, two = names
    assert one.live != two.live
    assert one.part(number) != two.part(other)


@given(SEALED, MERGED, OLD, MERGE)
def test_no_delta_partition_has_two_meanings(sealed: str, merged: str, old: str, name: MergeName) -> None:
    partitions = [OLD_METADATA, NO_PARTITION, chunks_of(old), name.live]
    partitions += [of(part) for part in (sealed, merged) for of in (chunks_of, metadata_of)]
    assert len(set(partitions)) == len(partitions)


@pytest.mark.parametrize("part", ["0-1", "metadata-1", "00000000000001-00000000000002", "000000000000001-", "live-1"])
def test_only_a_range_of_long_numbers_is_an_old_name(part: str) -> None:
    assert not is_old(part)


# A table: its merges with their numbers of parts, those of them that are finished, and its other partitions.
TABLE = st.tuples(
    st.dictionaries(MERGE, st.integers(1, 3), max_size=5).flatmap(
        lambda merges: st.tuples(
            st.just(merges), st.sets(st.sampled_from(sorted(merges))) if merges else st.just(set())
        )
    ),
    st.sets(SEALED, max_size=4),
    st.sets(OLD, max_size=4),
)


@given(TABLE)
def test_abandoned_is_all_of_a_merge_without_a_marker_and_a_marker_without_parts(
    table: tuple[tuple[dict[MergeName, int], set[MergeName]], set[str], set[str]],
) -> None:
    (merges, finished), sealed, old = table
    parts_of = {name: {name.part(number) for number in range(parts)} for name, parts in merges.items()}
    left = {
        of(part)
        for name in merges
        if name not in finished
        for part in parts_of[name]
        for of in (chunks_of, metadata_of)
    }
    kept = {of(part) for name in finished for part in parts_of[name] for of in (chunks_of, metadata_of)}
    kept |= {of(part) for part in sealed | old for of in (chunks_of, metadata_of)} | {OLD_METADATA}
    markers = {name.live for name in finished}
    assert abandoned(left | kept | markers) == left
    assert abandoned(kept | markers) == set()
    # Nothing was left for the merged buckets when they were made, or their parts were deleted, and the markers not.
    assert abandoned(left | markers) == left | markers


@given(TABLE)
def test_the_conditions_in_sql_find_what_the_functions_find(
    table: tuple[tuple[dict[MergeName, int], set[MergeName]], set[str], set[str]],
) -> None:
    (merges, finished), sealed, old = table
    parts = {name.part(number) for name, count in merges.items() for number in range(count)} | sealed | old
    markers = {name.live for name in finished}
    rows = {of(part) for part in parts for of in (chunks_of, metadata_of)} | {OLD_METADATA}
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
