"""How many records a batch takes in beside those that wait."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row

from state.buckets.operator import KEPT, SEALED
from streaming.job.admission import WaitingMessages, offsets_after

OFFSETS = st.dictionaries(st.sampled_from("0123"), st.integers(0, 1_000))


@given(OFFSETS, st.dictionaries(st.sampled_from("0123"), st.integers(0, 500)), st.integers(0, 3_000))
def test_as_many_records_are_taken_in_as_there_is_room_for(
    starts: dict[str, int], counts: dict[str, int], room: int
) -> None:
    ends = {partition: starts.get(partition, 0) + count for partition, count in counts.items()}
    offsets = offsets_after(room, starts, ends)
    total = sum(counts.values())
    if total <= room:
        assert offsets == {}
        return
    assert offsets.keys() == {partition for partition, count in counts.items() if count}
    taken_in = {partition: offset - starts.get(partition, 0) for partition, offset in offsets.items()}
    assert all(0 <= taken_in[partition] <= counts[partition] for partition in taken_in)
    assert max(0, room - len(taken_in)) < sum(taken_in.values()) + 1 <= room + 1


def kept(shard: int, **by_topic: int) -> Row:
    return _row(KEPT, shard, by_topic, 0, 0)


def sealed(first_ms: int, last_ms: int, **by_topic: int) -> Row:
    return _row(SEALED, 0, by_topic, first_ms, last_ms)


def _row(kind: str, shard: int, by_topic: dict[str, int], first_ms: int, last_ms: int) -> Row:
    columns: dict[str, Any] = {"kind": kind, "shard": shard, "count": sum(by_topic.values())}
    bounds = {"min_deliver_at_ms": first_ms, "max_deliver_at_ms": last_ms}
    return Row(**columns, **bounds, by_topic=json.dumps(by_topic))


def test_what_a_shard_keeps_takes_the_place_of_what_it_kept_before() -> None:
    waiting = WaitingMessages()
    waiting.add([kept(0, a=3, b=1), kept(1, a=4)])
    assert (waiting.count("a", 0), waiting.count("b", 0)) == (7, 1)
    # The second row of shard 1 is that of an overflow group.
    waiting.add([kept(1, a=2), kept(1)])
    assert waiting.count("a", 0) == 5
    waiting.add([kept(0)])
    assert (waiting.count("a", 0), waiting.count("b", 0)) == (2, 0)


def test_sealed_messages_count_until_they_are_handed_over() -> None:
    waiting = WaitingMessages()
    waiting.add([sealed(1_000, 1_999, a=100, b=1), sealed(5_000, 5_000, a=7)])
    assert [waiting.count("a", cutoff_ms) for cutoff_ms in (0, 1_000, 1_500, 2_000, 5_000, 5_001)] == [
        107,
        107,
        57,
        7,
        7,
        0,
    ]
    assert waiting.sealed["a"] == []


@pytest.mark.parametrize("topic", ["a", "b"])
def test_of_a_topic_that_was_never_seen_nothing_waits(topic: str) -> None:
    assert WaitingMessages().count(topic, 0) == 0
