"""The job's estimates of waiting messages, against the messages themselves."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from state.buckets.segments import ANY_SHARD, Segment
from state.due_spans import SPANS_MS, DueRun, due_runs
from streaming.monitor.estimate import MutableDues, WaitingEstimate

dues = st.lists(st.integers(0, 100_000_000), min_size=1, max_size=30).map(sorted)
instants = st.integers(0, 100_000_000)


def segment(number: int, shard: int, dues_ms: list[int]) -> Segment:
    return Segment(number, shard, 0, "p", dues_ms[0], dues_ms[-1], len(dues_ms), 10 * len(dues_ms))


@given(st.lists(dues, max_size=4), st.lists(dues, max_size=4), instants, instants)
def test_counts_agree_with_each_other_and_with_what_no_border_cuts(
    mutable: list[list[int]], sealed: list[list[int]], cutoff_ms: int, at_ms: int
) -> None:
    bounds = {shard: MutableDues([DueRun(own[0], own[-1], len(own))], len(own)) for shard, own in enumerate(mutable)}
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


def test_a_segment_that_is_partly_staged_counts_from_the_cutoff() -> None:
    waiting = WaitingEstimate({}, [Segment(0, 1, 0, "p", 1_000, 1_999, 100, 1_000)], cutoff_ms=1_900)
    assert (waiting.sealed, waiting.sealed_bytes, waiting.next_due_ms) == (10, 100, 1_900)
    assert [(shard.shard, shard.sealed) for shard in waiting.by_shard(1)] == [(0, 0), (1, 10)]


def test_a_repeating_message_counts_once() -> None:
    """Those that were staged lie in the table until all of their part was."""
    staged = Segment(0, 0, 0, "p", 1_000, 1_999, 100, 1_000, repeats=100)
    following = Segment(1, 0, 0, "q", 2_000, 2_999, 100, 1_000, repeats=40)
    assert WaitingEstimate({}, [staged, following], cutoff_ms=2_000).repeating == 40
    assert WaitingEstimate({}, [staged, following], cutoff_ms=3_000).repeating == 0


def test_a_year_ahead_is_in_spans_of_its_own() -> None:
    dues_ms = {"30d": 29, "90d": 31, "366d": 365, "later": 367}
    segments = [segment(number, 0, [days * 86_400_000]) for number, days in enumerate(dues_ms.values())]
    due = WaitingEstimate({}, segments, cutoff_ms=0).due(0)
    assert {span: count for span, count in due.items() if count} == dict.fromkeys(dues_ms, 1)


def test_nothing_waits_after_the_last_message_is_staged() -> None:
    waiting = WaitingEstimate({0: MutableDues((), 0)}, [segment(0, 0, [1_000])], cutoff_ms=1_001)
    assert waiting.due(0) == dict.fromkeys([*SPANS_MS, "later"], 0)
    assert (waiting.next_due_ms, waiting.last_due_ms) == (None, None)


def test_one_message_in_four_weeks_does_not_spread_those_due_in_five_minutes_over_the_weeks() -> None:
    minute_ms, week_ms = 60_000, 7 * 86_400_000
    dues_ms = np.append(5 * minute_ms + np.arange(3_000), 4 * week_ms)
    waiting = WaitingEstimate({0: MutableDues(due_runs(dues_ms, 0), 3_001)}, [], cutoff_ms=0)
    # Now, and when no batch has changed the bucket for some minutes.
    for now_ms, soon in ((0, "10m"), (minute_ms, "10m"), (4 * minute_ms + 5_000, "1m")):
        due = waiting.due(now_ms)
        assert {span: count for span, count in due.items() if count} == {soon: 3_000, "30d": 1}
    assert (waiting.mutable, waiting.mutable_bytes) == (3_001, 3_001)
    assert (waiting.next_due_ms, waiting.last_due_ms) == (5 * minute_ms, 4 * week_ms)
