"""The message-id index against a plain dict from id to due time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from conf.errors import BucketUnreadable
from state.index.due_counts import Bounds, TimeSlot
from state.index.message_index import MessageIndex, index_entries, offsets_by_source
from state.index.source_pages import PAGE_IDS
from tests.messages import messages
from tests.thorough import examples

BITS = 4
SLOT_MS = 1 << BITS
LAST_OFFSET = 2**63 - 1
Id = tuple[str, int, int]

# Close together, so that ids collide; across 16 and 32 bits, where bitmaps are cut; and up to the last offset.
OFFSET = st.one_of(
    st.integers(0, 12),
    st.sampled_from([0, 2**16, 2**32, 2**40, LAST_OFFSET - 9]).flatmap(lambda base: st.integers(base, base + 9)),
)
DUE = st.one_of(st.integers(0, 3 * SLOT_MS), st.integers(0, 1000), st.sampled_from([10**6, 2**41]))
ROW = st.tuples(st.sampled_from(["in-a", "in-b"]), st.integers(0, 1), OFFSET, DUE)
ROWS = st.lists(ROW, max_size=25)
# A step with a number adds rows as entries of that precision, which is the index's own or finer.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), ROWS),
        st.tuples(st.integers(0, BITS), ROWS),
        st.tuples(st.just("forget"), DUE),
        st.tuples(st.just("look"), st.tuples(DUE, DUE)),
    ),
    max_size=8,
)
# The most ids in a page, staged, and outside pages: small values, so that pages split and join, and the defaults.
LIMITS = st.tuples(
    st.sampled_from([1, 3, PAGE_IDS]),
    st.sampled_from([0, 4, 1 << 20]),
    st.sampled_from([0, 4, 4096]),
)


def int64(values: Any) -> np.ndarray:
    return np.array(list(values), dtype=np.int64)


def entries_of(rows: list[tuple[str, int, int, int]], precision_bits: int = BITS) -> list[dict[str, object]]:
    names = ("topic", "partition", "offset", "deliver_at_ms")
    return index_entries(messages(dict(zip(names, row, strict=True)) for row in rows), precision_bits)


def distinct(rows: list[tuple[str, int, int, int]]) -> list[tuple[str, int, int, int]]:
    return list({row[:3]: row for row in rows}.values())


def slot_of(due_ms: int) -> TimeSlot:
    return TimeSlot(due_ms >> BITS << BITS, (due_ms >> BITS) + 1 << BITS)


@given(STEPS, LIMITS)
@settings(max_examples=examples(300))
def test_over_any_steps_the_index_answers_as_a_dict_does(
    steps: list[tuple[str | int, Any]], most: tuple[int, int, int]
) -> None:
    index, model, floor, seen = MessageIndex(BITS, *most), dict[Id, int](), 0, set[Id]()
    for action, subject in steps:
        if action == "add" or isinstance(action, int):
            # If an id has two due times, the first that waits counts. Entries do not keep the order of rows.
            rows = distinct(subject) if isinstance(action, int) else subject
            seen |= {row[:3] for row in rows}
            if isinstance(action, int):
                index.add_entries(entries_of(rows, action), action)
            else:
                for source in {row[:2] for row in rows}:
                    source_rows = [row for row in rows if row[:2] == source]
                    index.add(
                        source[0],
                        source[1],
                        int64(row[2] for row in source_rows),
                        int64(row[3] for row in source_rows),
                    )
            for *message_id, due_ms in rows:
                if due_ms >> BITS >= floor:
                    model.setdefault(tuple(message_id), due_ms)
        elif action == "forget":
            floor = max(floor, subject >> BITS)
            kept = {message_id: due_ms for message_id, due_ms in model.items() if due_ms >> BITS >= floor}
            assert index.forget_before(subject) == len(model) - len(kept)
            model = kept
        else:
            start_ms, end_ms = subject
            low, high = index.between(start_ms, end_ms)
            assert low <= sum(start_ms <= due_ms < end_ms for due_ms in model.values()) <= high
    assert_same(index, model, seen)


def assert_same(index: MessageIndex, model: dict[Id, int], seen: set[Id]) -> None:
    assert len(index) == len(model)
    for message_id in seen:
        due_ms = model.get(message_id)
        assert index.slot_of(*message_id) == (None if due_ms is None else slot_of(due_ms))
        assert (message_id in index) == (due_ms is not None)
    for topic, partition in {message_id[:2] for message_id in seen}:
        waiting = [offset for *source, offset in model if source == [topic, partition]]
        assert index.offsets_of(topic, partition) == BitMap64(waiting)
    assert index.next_due() == min(map(slot_of, model.values()), default=None)
    for border_ms in range(0, 5 * SLOT_MS, SLOT_MS):
        count = sum(due_ms < border_ms for due_ms in model.values())
        assert index.before(border_ms) == Bounds(count, count)


@given(ROWS)
@settings(max_examples=examples(200))
def test_entries_name_every_id_once_by_slot_and_source(rows: list[tuple[str, int, int, int]]) -> None:
    rows = distinct(rows)
    entries: list[Any] = entries_of(rows)
    keys = [(each["tick_ms"], each["topic"], each["partition"]) for each in entries]
    assert len(keys) == len(set(keys))
    assert keys == sorted(keys, key=lambda key: key[0])
    named = [
        (each["topic"], each["partition"], offset, each["tick_ms"])
        for each in entries
        for offset in BitMap64.deserialize(each["offsets"])
    ]
    assert sorted(named) == sorted((*row[:3], slot_of(row[3]).start_ms) for row in rows)
    assert sum(each["count"] for each in entries) == len(rows)


def test_an_empty_segment_has_no_entries() -> None:
    assert entries_of([]) == []


def test_consecutive_offsets_are_stored_as_a_run() -> None:
    (entry,) = entries_of([("in", 0, offset, 5) for offset in range(50_000)])
    assert len(entry["offsets"]) < 50  # type: ignore[arg-type]


@pytest.mark.parametrize("shuffled", [False, True])
def test_full_pages_answer_for_each_id(shuffled: bool) -> None:
    count = 3 * PAGE_IDS + 7
    due_ms = np.arange(count, dtype=np.int64)
    if shuffled:
        np.random.default_rng(1).shuffle(due_ms)
    index = MessageIndex(BITS)
    for start in range(0, count, 50_000):
        part = slice(start, start + 50_000)
        index.add("in", 0, np.arange(count)[part], due_ms[part])
    assert len(index) == count
    assert len(index.offsets_of("in", 0)) == count
    for offset in (0, 1, 65_535, 65_536, 131_071, 131_072, count - 1):
        assert index.slot_of("in", 0, offset) == slot_of(int(due_ms[offset]))
    assert ("in", 0, count) not in index
    half_ms = count // 2 >> BITS << BITS
    assert index.forget_before(half_ms) == half_ms
    assert index.offsets_of("in", 0) == BitMap64(np.flatnonzero(due_ms >= half_ms).tolist())


def test_ids_due_one_after_the_other_take_little_more_memory_than_their_slots() -> None:
    index = MessageIndex(10)
    index.add("in", 0, np.arange(1_000_000), np.arange(1_000_000))
    assert index.nbytes < 8 * 1000


def test_due_times_in_any_order_take_the_bits_of_their_slot() -> None:
    index = MessageIndex(10)
    index.add("in", 0, np.arange(1_000_000), np.random.default_rng(1).permutation(1_000_000))
    assert index.nbytes < 1_000_000 * 10 / 8 * 1.05


def test_an_id_added_twice_counts_once_and_keeps_its_first_slot() -> None:
    index = MessageIndex(10)
    index.add("in", 0, int64([7, 7]), int64([2000, 9000]))
    assert len(index) == 1
    index.add("in", 0, int64([7]), int64([9000]))
    index.add_entries(index_entries(messages([{"topic": "in", "offset": 7, "deliver_at_ms": 9000}]), 10), 10)
    assert (len(index), index.slot_of("in", 0, 7)) == (1, TimeSlot(1024, 2048))
    assert index.before(10**6) == Bounds(1, 1)


def test_ids_due_before_the_cutoff_are_not_added_again() -> None:
    index = MessageIndex(10)
    assert index.forget_before(2048) == 0
    index.add("in", 0, int64([1, 2]), int64([2047, 2048]))
    assert (len(index), ("in", 0, 1) in index, ("in", 0, 2) in index) == (1, False, True)


def test_a_cutoff_that_goes_back_forgets_nothing_and_restores_nothing() -> None:
    index = MessageIndex(10)
    index.add("in", 0, int64([1, 2]), int64([0, 5000]))
    assert (index.forget_before(2048), index.forget_before(0)) == (1, 0)
    index.add("in", 0, int64([1]), int64([0]))
    assert len(index) == 1


def test_forgotten_ids_free_their_memory() -> None:
    index = MessageIndex(BITS)
    due_ms = np.random.default_rng(1).integers(0, 10_000, 100_000)
    index.add("in", 0, np.arange(100_000), due_ms)
    before = index.nbytes
    for cutoff_ms in range(0, 9_000, 500):
        index.forget_before(cutoff_ms)
    assert index.nbytes < before / 2
    index.forget_before(10_000)
    assert (len(index), index.nbytes) == (0, 0)


def test_an_empty_index_answers() -> None:
    index = MessageIndex(10)
    index.add("in", 0, int64([]), int64([]))
    index.add_entries([], 10)
    assert (len(index), index.nbytes, index.next_due(), index.forget_before(10**6)) == (0, 0, None, 0)
    assert index.between(0, 10**6) == Bounds(0, 0)
    assert ("in", 0, 0) not in index
    assert index.offsets_of("in", 0) == BitMap64()


def test_the_returned_offsets_are_a_copy() -> None:
    index = MessageIndex(10)
    index.add("in", 0, int64([1]), int64([5]))
    index.offsets_of("in", 0).add(2)
    assert index.offsets_of("in", 0) == BitMap64([1])


def an_entry(**changes: Any) -> dict[str, Any]:
    return {**entries_of([("in", 3, 8, 1040)])[0], **changes}


@pytest.mark.parametrize(
    "changes",
    [
        {"offsets": b""},
        {"offsets": b"no bitmap"},
        {"offsets": BitMap64([1, 2**40]).serialize()[:-1]},
        {"count": 2},
        {"count": 0, "offsets": BitMap64().serialize()},
        {"offsets": BitMap64([2**63]).serialize()},
    ],
)
def test_an_unreadable_bitmap_is_an_error_that_names_its_source(changes: dict[str, Any]) -> None:
    with pytest.raises(BucketUnreadable, match="in/3 due from 1040 ms"):
        MessageIndex(BITS).add_entries([an_entry(**changes)], BITS)


def test_an_entry_of_another_precision_is_refused() -> None:
    with pytest.raises(BucketUnreadable, match="was not written with 10 precision bits"):
        MessageIndex(10).add_entries([an_entry()], 10)


def test_entries_of_a_coarser_precision_are_refused_even_if_their_slots_would_fit() -> None:
    with pytest.raises(ValueError, match="entries of 10 bits do not fit an index of 4"):
        MessageIndex(BITS).add_entries(entries_of([("in", 3, 8, 1040)], 10), 10)


def test_entries_of_several_precisions_get_the_precision_of_the_index() -> None:
    index = MessageIndex(10)
    for bits, offset in ((0, 1), (4, 2), (10, 3)):
        index.add_entries(entries_of([("in", 3, offset, 1040 + offset)], bits), bits)
    assert [index.slot_of("in", 3, offset) for offset in (1, 2, 3)] == [TimeSlot(1024, 2048)] * 3
    assert index.offsets_of("in", 3) == BitMap64([1, 2, 3])


def test_if_one_entry_is_bad_none_is_added() -> None:
    index = MessageIndex(BITS)
    with pytest.raises(BucketUnreadable):
        index.add_entries([an_entry(), an_entry(count=5)], BITS)
    assert len(index) == 0


def test_entries_in_sparks_types_are_read() -> None:
    index = MessageIndex(BITS)
    entry = an_entry()
    index.add_entries([{**entry, "offsets": bytearray(entry["offsets"])}], BITS)
    assert index.slot_of("in", 3, 8) == TimeSlot(1040, 1056)


def test_offsets_are_listed_by_source_without_slots_that_are_over() -> None:
    entries = entries_of([("in", 0, 1, 5), ("in", 0, 2, 40), ("in", 1, 3, 50), ("x", 0, 4, 6)], BITS)
    assert offsets_by_source(entries, BITS, 16) == {("in", 0): BitMap64([2]), ("in", 1): BitMap64([3])}
    assert offsets_by_source(entries, BITS, 15)["x", 0] == BitMap64([4])
    with pytest.raises(BucketUnreadable):
        offsets_by_source([an_entry(count=5)], BITS, 0)
