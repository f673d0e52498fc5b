"""What the job says of waiting messages, against the messages themselves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from state.buckets.segments import ANY_SHARD, Segment
from streaming.monitor.estimate import SPANS_MS, MutableBounds, WaitingEstimate

dues = st.lists(st.integers(0, 100_000_000), min_size=1, max_size=30).map(sorted)
instants = st.integers(0, 100_000_000)


def segment(number: int, shard: int, dues_ms: list[int]) -> Segment:
    return Segment(number, shard, 0, "p", dues_ms[0], dues_ms[-1], len(dues_ms), 10 * len(dues_ms))


@given(st.lists(dues, max_size=4), st.lists(dues, max_size=4), instants, instants)
def test_counts_agree_with_each_other_and_with_what_no_border_cuts(
    mutable: list[list[int]], sealed: list[list[int]], cutoff_ms: int, at_ms: int
) -> None:
    bounds = {shard: MutableBounds(own[0], own[-1], len(own), len(own)) for shard, own in enumerate(mutable)}
    segments = [segment(number, ANY_SHARD if number % 2 else 0, own) for number, own in enumerate(sealed)]
    waiting = WaitingEstimate(bounds, segments, cutoff_ms)
    groups = [own for own in mutable + sealed if own[-1] >= cutoff_ms]
    waits = [due_ms for own in groups for due_ms in own if due_ms >= cutoff_ms]
    assert (waiting.next_due_ms is None, waiting.last_due_ms) == (not waits, max(waits, default=None))
    shards = waiting.by_shard(2)
    assert sum(shard.mutable for shard in shards) == waiting.mutable
    assert sum(shard.sealed for shard in shards) + waiting.merged == waiting.sealed
    assert sum(waiting.due(at_ms).values()) == waiting.mutable + waiting.sealed
    # A group is wrong by its own size at most, and exact if neither the cutoff nor the instant is inside it.
    uncertain = sum(len(own) for own in groups if own[0] < cutoff_ms or own[0] < at_ms <= own[-1])
    assert abs(waiting.mutable + waiting.sealed - len(waits)) <= uncertain
    assert abs(waiting.due_before(at_ms) - sum(due_ms < at_ms for due_ms in waits)) <= uncertain + 0.5


def test_a_segment_that_is_partly_handed_over_counts_from_the_cutoff() -> None:
    waiting = WaitingEstimate({}, [Segment(0, 1, 0, "p", 1_000, 1_999, 100, 1_000)], cutoff_ms=1_900)
    assert (waiting.sealed, waiting.sealed_bytes, waiting.next_due_ms) == (10, 100, 1_900)
    assert [(shard.shard, shard.sealed) for shard in waiting.by_shard(1)] == [(0, 0), (1, 10)]


def test_a_year_ahead_is_in_spans_of_its_own() -> None:
    dues_ms = {"30d": 29, "90d": 31, "366d": 365, "later": 367}
    segments = [segment(number, 0, [days * 86_400_000]) for number, days in enumerate(dues_ms.values())]
    due = WaitingEstimate({}, segments, cutoff_ms=0).due(0)
    assert {span: count for span, count in due.items() if count} == dict.fromkeys(dues_ms, 1)


def test_nothing_waits_after_the_last_message_is_handed_over() -> None:
    waiting = WaitingEstimate({0: MutableBounds(-1, -1, 0, 0)}, [segment(0, 0, [1_000])], cutoff_ms=1_001)
    assert waiting.due(0) == dict.fromkeys([*SPANS_MS, "later"], 0)
    assert (waiting.next_due_ms, waiting.last_due_ms) == (None, None)
