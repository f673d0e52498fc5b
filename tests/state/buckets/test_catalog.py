"""The catalog of segments against a plain list."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from state.buckets.catalog import SegmentCatalog
from state.buckets.segments import Segment
from tests.thorough import examples


def segment(bucket: int, number: int, start_ms: int, length_ms: int, part: str = "") -> Segment:
    return Segment(
        bucket=bucket,
        shard=0,
        segment=number,
        part=part or f"p{bucket}",
        min_deliver_at_ms=start_ms,
        max_deliver_at_ms=start_ms + length_ms,
        count=1,
        bytes=1,
    )


# Whole buckets. Each draw of a bucket may cut it into other segments.
SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 11)), min_size=1, max_size=4)
SEGMENTS = st.dictionaries(st.integers(0, 12), SPANS, max_size=4).map(
    lambda buckets: [
        segment(bucket, number, start_ms, length_ms)
        for bucket, spans in buckets.items()
        for number, (start_ms, length_ms) in enumerate(spans)
    ]
)
INSTANT = st.integers(0, 75)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), SEGMENTS),
        st.tuples(st.just("forget"), INSTANT),
        st.tuples(st.just("replace"), st.tuples(st.sets(st.integers(0, 12), max_size=4), SEGMENTS)),
        st.tuples(st.just("look"), st.tuples(INSTANT, INSTANT)),
    ),
    max_size=12,
)


def unknown(segments: list[Segment], model: list[Segment]) -> list[Segment]:
    """Return the `segments` of buckets that have no segment in `model`."""
    known = {each.bucket for each in model}
    return [each for each in segments if each.bucket not in known]


def in_start_order(segments: Any) -> list[tuple[int, int, int]]:
    return sorted((each.min_deliver_at_ms, each.bucket, each.segment) for each in segments)


@given(STEPS)
@settings(max_examples=examples(200))
def test_over_any_steps_the_catalog_answers_as_a_list_does(steps: list[tuple[str, Any]]) -> None:
    catalog, model = SegmentCatalog(), list[Segment]()
    for action, subject in steps:
        if action == "add":
            new = unknown(subject, model)
            assert catalog.add(subject) == new
            model += new
        elif action == "replace":
            buckets, replacement = subject
            catalog.replace(buckets, replacement)
            model = [each for each in model if each.bucket not in buckets]
            model += unknown(replacement, model)
        elif action == "forget":
            dropped = [each for each in model if each.max_deliver_at_ms < subject]
            assert in_start_order(catalog.forget_before(subject)) == in_start_order(dropped)
            model = [each for each in model if each not in dropped]
        else:
            start_ms, end_ms = subject
            inside = [each for each in model if each.min_deliver_at_ms < end_ms and each.max_deliver_at_ms >= start_ms]
            assert in_start_order(catalog.overlapping(start_ms, end_ms)) == in_start_order(inside)
        assert len(catalog) == catalog.messages == len(model)
        by_bucket = {bucket: in_start_order(segments) for bucket, segments in catalog.buckets.items()}
        assert by_bucket == {
            bucket: in_start_order(each for each in model if each.bucket == bucket)
            for bucket in {each.bucket for each in model}
        }
        starts = [each.min_deliver_at_ms for each in catalog.starting_before(10**9)]
        assert starts == sorted(each.min_deliver_at_ms for each in model)


def test_a_segment_includes_its_last_message_and_the_end_of_a_range_is_exclusive() -> None:
    only = segment(bucket=1, number=0, start_ms=10, length_ms=5)
    catalog = SegmentCatalog([only])
    ranges = [(0, 10), (0, 11), (15, 20), (16, 20), (10, 10)]
    assert [catalog.overlapping(*span) for span in ranges] == [[], [only], [only], [], []]
    assert catalog.forget_before(15) == []
    assert catalog.forget_before(16) == [only]


def test_a_known_bucket_keeps_its_segments_even_if_it_comes_cut_in_another_way() -> None:
    sealed = [segment(bucket=1, number=number, start_ms=10 * number, length_ms=5) for number in range(3)]
    catalog = SegmentCatalog(sealed)
    other_cut = [segment(bucket=1, number=0, start_ms=0, length_ms=25, part="other")]
    fourth = segment(bucket=1, number=3, start_ms=30, length_ms=5)
    later = segment(bucket=2, number=0, start_ms=7, length_ms=1)
    assert catalog.add(sealed) == catalog.add(other_cut) == catalog.add([fourth]) == []
    assert catalog.add([*other_cut, later]) == [later]
    assert in_start_order(catalog.overlapping(0, 100)) == in_start_order([*sealed, later])


def test_a_replayed_batch_seals_nothing_anew_into_the_bucket_that_its_own_was_merged_into() -> None:
    buckets = [segment(bucket, number=0, start_ms=bucket, length_ms=5) for bucket in (1, 2)]
    catalog, merged = SegmentCatalog(buckets), segment(2, number=0, start_ms=1, length_ms=6, part="m")
    catalog.replace([1, 2], [merged])
    assert catalog.add([buckets[1]]) == []
    assert catalog.overlapping(0, 100) == [merged]


def test_a_bucket_that_is_delivered_in_part_does_not_get_its_segments_back() -> None:
    sealed = [segment(bucket=1, number=number, start_ms=10 * number, length_ms=5) for number in range(2)]
    catalog = SegmentCatalog(sealed)
    catalog.forget_before(6)
    assert catalog.add(sealed) == []
    assert catalog.overlapping(0, 100) == sealed[1:]


def test_a_part_name_counts_once_however_many_segments_share_it() -> None:
    shared = [segment(bucket=1, number=number, start_ms=1000, length_ms=5, part="p" * 500) for number in range(10)]
    own = [replace(each, part=str(at) * 500) for at, each in enumerate(shared)]
    assert SegmentCatalog(own).nbytes - SegmentCatalog(shared).nbytes > 9 * 500


# While a merge is being finished


def parts(segments: list[Segment]) -> set[str]:
    return {each.part for each in segments}


def test_from_its_announcement_on_a_merge_is_looked_for_in_both_places_and_then_only_in_the_new_one() -> None:
    buckets = [segment(bucket, number=0, start_ms=bucket, length_ms=5) for bucket in (1, 2, 3)]
    merged = [segment(2, number, start_ms=number, length_ms=5, part=f"m{number}") for number in range(2)]
    catalog = SegmentCatalog(buckets)
    assert catalog.parts_of(buckets) == {"p1", "p2", "p3"}
    catalog.announce(buckets[:2], merged)
    assert catalog.parts_of(buckets) == {"p1", "p2", "p3", "m0", "m1"}
    assert catalog.parts_of(buckets[:1]) == {"p1", "m0", "m1"}
    # A bucket that no merge replaces is in one place only.
    assert catalog.parts_of(buckets[2:]) == {"p3"}
    catalog.replace([1, 2], merged)
    assert catalog.parts_of(catalog.overlapping(0, 100)) == {"p3", "m0", "m1"}
    assert catalog.parts_of(merged[:1]) == {"m0"}


def test_a_merge_whose_messages_are_all_delivered_meanwhile_has_no_new_place() -> None:
    only = segment(bucket=1, number=0, start_ms=1, length_ms=5)
    catalog = SegmentCatalog([only])
    catalog.announce([only], [])
    assert catalog.parts_of([only]) == {"p1"}
    catalog.replace([1], [])
    assert len(catalog) == 0


def test_a_merge_that_leaves_nothing_ends_no_other_such_merge() -> None:
    buckets = [segment(bucket, number=0, start_ms=bucket, length_ms=5) for bucket in (1, 2)]
    catalog = SegmentCatalog(buckets)
    for each in buckets:
        catalog.announce([each], [])
    catalog.replace([1], [])
    # Without the messages of bucket 2, its readers must ask as for any announced merge.
    assert catalog.unannounced(buckets[1:]) == []
    catalog.replace([2], [])
    assert catalog.unannounced([segment(2, number=0, start_ms=2, length_ms=5)]) != []


# Merges one after the other, each as a range of the live buckets by position; whether it is finished at once.
MERGES = st.lists(st.tuples(st.integers(0, 9), st.integers(2, 4), st.booleans()), max_size=8)


@given(st.integers(1, 10), MERGES)
def test_over_any_merges_a_reader_asks_for_each_part_that_may_have_its_messages_and_for_no_other(
    count: int, merges: list[tuple[int, int, bool]]
) -> None:
    catalog = SegmentCatalog(segment(bucket, 0, start_ms=bucket, length_ms=5) for bucket in range(count))
    announced: dict[int, tuple[list[int], list[Segment]]] = {}
    for at, (first, width, at_once) in enumerate(merges):
        numbers = sorted(catalog.buckets)[first : first + width]
        busy = {number for replaced, _ in announced.values() for number in replaced}
        if numbers and not busy.intersection(numbers):
            replaced = [each for number in numbers for each in catalog.buckets[number]]
            merged = [segment(numbers[-1], n, start_ms=n, length_ms=30, part=f"merge-{at}-{n}") for n in range(2)]
            catalog.announce(replaced, merged)
            announced[at] = (numbers, merged)
        if at_once and announced:
            catalog.replace(*announced.pop(min(announced)))
        for number, segments in catalog.buckets.items():
            becoming = [merged for replaced, merged in announced.values() if number in replaced]
            assert catalog.parts_of(segments) == parts([*segments, *(each for merged in becoming for each in merged)])
