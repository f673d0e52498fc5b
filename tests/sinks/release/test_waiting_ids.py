"""Which ids waiting chunks have, against plain sets; and how many searches that takes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.release.waiting_ids import WaitingIds
from state.message_ids import NO_IDS, Ids, ids_of, to_set

_FAR = 1 << 60
_OFFSETS = st.one_of(st.integers(0, 12), st.integers(_FAR - 3, _FAR + 3))
_IDS = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 2), _OFFSETS), max_size=12)


@given(st.lists(_IDS, max_size=5), _IDS, st.integers(0, 5))
def test_the_common_ids_are_those_of_sets(
    chunks: list[list[tuple[str, int, int]]], wanted: list[tuple[str, int, int]], left: int
) -> None:
    waiting = WaitingIds()
    known = [waiting.of_chunk(ids_of(chunk)) for chunk in chunks]
    # The first chunks wait no more.
    found = waiting.common(known[left:], ids_of(wanted))
    assert to_set(found) == set(wanted) & {each for chunk in chunks[left:] for each in chunk}
    assert all(len(offsets) and (np.diff(offsets) > 0).all() for offsets in found.values())


@given(st.lists(_IDS, max_size=5), _IDS)
def test_chunks_may_have_an_id_that_is_between_the_first_and_the_last_of_its_source(
    chunks: list[list[tuple[str, int, int]]], wanted: list[tuple[str, int, int]]
) -> None:
    waiting = WaitingIds()
    known = [waiting.of_chunk(ids_of(chunk)) for chunk in chunks]

    def may_have(chunk: list[tuple[str, int, int]], topic: str, partition: int, offset: int) -> bool:
        own = [each for *source, each in chunk if source == [topic, partition]]
        return bool(own) and min(own) <= offset <= max(own)

    expected = [at for at, chunk in enumerate(chunks) if any(may_have(chunk, *each) for each in wanted)]
    assert waiting.may_have(known, ids_of(wanted)) == expected


def _ids(partitions: int, *offsets: int) -> Ids:
    return {("in", number): np.array(offsets, dtype=np.int64) for number in range(partitions)}


@pytest.mark.parametrize("chunks", [10, 200])
def test_a_chunk_whose_bounds_hold_none_of_the_wanted_ids_is_not_searched(searched: list[int], chunks: int) -> None:
    waiting = WaitingIds()
    known = [waiting.of_chunk(_ids(20, *range(at, at + 10))) for at in range(0, 100 * chunks, 100)]
    known.append(waiting.of_chunk(NO_IDS))
    assert waiting.common(known, _ids(20, 50, 450, 100 * chunks)) == {}
    assert waiting.common(known, {("other", 0): np.array([5])}) == {}
    assert searched == []
    assert to_set(waiting.common(known, _ids(20, 305, 350))) == {("in", number, 305) for number in range(20)}
    assert searched == [200]


def test_a_chunk_is_searched_once_from_however_many_partitions_its_messages_are(searched: list[int]) -> None:
    waiting = WaitingIds()
    known = [waiting.of_chunk(_ids(100, at, at + 1_000)) for at in range(5)]
    assert len(to_set(waiting.common(known, _ids(100, 2, 3, 500)))) == 200
    assert searched == [200] * 5
