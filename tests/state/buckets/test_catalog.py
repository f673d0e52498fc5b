"""The catalog of segments against a plain list."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from state.buckets.catalog import SegmentCatalog
from state.buckets.segments import Segment


def segment(bucket: int, number: int, start_ms: int, length_ms: int) -> Segment:
    return Segment(
        bucket=bucket,
        shard=0,
        segment=number,
        time_partition="",
        min_deliver_at_ms=start_ms,
        max_deliver_at_ms=start_ms + length_ms,
        count=1,
        bytes=1,
    )


# A segment's span follows from its identity, as in the table. Some segments occur twice.
SEGMENTS = st.lists(
    st.builds(lambda bucket, number: segment(bucket, number, bucket * 7 % 40 + number * 5, bucket * 3 % 11),
              st.integers(0, 12), st.integers(0, 4)),
    max_size=12,
)  # fmt: skip
INSTANT = st.integers(0, 70)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), SEGMENTS),
        st.tuples(st.just("forget"), INSTANT),
        st.tuples(st.just("replace"), st.tuples(st.sets(st.integers(0, 12), max_size=4), SEGMENTS)),
        st.tuples(st.just("look"), st.tuples(INSTANT, INSTANT)),
    ),
    max_size=12,
)


def in_start_order(segments: Any) -> list[tuple[int, int, int]]:
    return sorted((each.min_deliver_at_ms, each.bucket, each.segment) for each in segments)


@given(STEPS)
@settings(max_examples=200)
def test_over_any_steps_the_catalog_answers_as_a_list_does(steps: list[tuple[str, Any]]) -> None:
    catalog, model = SegmentCatalog(), list[Segment]()
    for action, subject in steps:
        if action == "add":
            new = list(dict.fromkeys(each for each in subject if each not in model))
            assert catalog.add(subject) == new
            model += new
        elif action == "replace":
            buckets, replacement = subject
            catalog.replace(buckets, replacement)
            model = [each for each in model if each.bucket not in buckets]
            model += dict.fromkeys(each for each in replacement if each not in model)
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


def test_a_segment_of_the_same_identity_is_the_same_segment() -> None:
    first = segment(bucket=1, number=0, start_ms=10, length_ms=5)
    catalog = SegmentCatalog([first])
    assert catalog.add([segment(bucket=1, number=0, start_ms=10, length_ms=5)]) == []
    assert len(catalog) == 1
