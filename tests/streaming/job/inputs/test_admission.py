"""How many records a batch takes in, on top of the messages that already wait."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64
from pyspark.sql import Row

from conf.settings import Settings
from sources.intake.accept import accept
from state.buckets.operator import KEPT, SEALED, ShardRows
from state.checkpoint.batch_settings import NONE_REFUSED, DelayPolicy, Refusal
from state.checkpoint.origin import CheckpointOrigin, Offsets
from state.checkpoint.progress import BatchSpan
from state.message import decode_chunk
from state.order import in_order
from state.repeats.occurrences import OccurrenceRows
from streaming.checkpoint.checkpoint import Checkpoint
from streaming.job.inputs import admission
from streaming.job.inputs.admission import Admission, WaitingMessages, offsets_after
from streaming.job.inputs.input_loss import Bounds
from tests.messages import PARTITIONS, headers, records, some_batch_settings

TOPIC, START_MS = "delayline-in", 1_798_000_000_000
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


@given(st.integers(0, 20), st.sets(st.integers(0, 40)), st.integers(0, 40))
def test_records_that_forwarders_took_need_no_room(start: int, taken: set[int], room: int) -> None:
    end = start + 20
    # Taken records may lie before the start, if they were deleted since.
    offsets = offsets_after(room, {"0": start}, {"0": end}, {"0": BitMap64(taken)})
    left = [offset for offset in range(start, end) if offset not in taken]
    if len(left) <= room:
        assert offsets == {}
    else:
        assert [offset for offset in left if offset < offsets["0"]] == left[:room]


@dataclass
class FirstCheckpoint:
    """A checkpoint without a batch, with the methods that `Admission` calls."""

    written: dict[int, Refusal] = field(default_factory=dict)

    def refused(self, batch_id: int) -> Refusal:
        return self.written.get(batch_id, NONE_REFUSED)

    def write_refused(self, batch_id: int, refusal: Refusal) -> None:
        self.written[batch_id] = refusal


@dataclass
class Table:
    """A table with `segments`, each with one message of the topic `in`, and with the method that `Admission` calls."""

    segments: int = 0
    counted: int = 0

    def counted_by_topic(self, *_: Any) -> list[Row]:
        self.counted += 1
        row = Row(topic="in", count=1, deliver_at_ms=100, max_deliver_at_ms=200)
        return [row] * self.segments


def refused(batch_id: int, most: int, starts: Offsets, ends: Offsets, **topics: Any) -> Offsets:
    """Return the offset from which on a batch refuses records from `starts` to `ends`, by partition (`refusal`)."""
    return refusal(batch_id, most, starts, ends, **topics).from_offsets


def refusal(batch_id: int, most: int, starts: Offsets, ends: Offsets, clock_ms: int = 0, **topics: Any) -> Refusal:
    """Return what a batch refuses from `starts` to `ends` if `most` messages of a topic may wait. Nothing waits yet."""
    checkpoint = FirstCheckpoint()
    settings = Settings()
    settings = settings.model_copy(update={"topics": settings.topics.model_copy(update=topics)})
    decides = Admission(cast(Checkpoint, checkpoint), cast(Any, Table()), settings)
    # Without it, a later batch would count the messages in Spark's state that the batch before has kept.
    decides._counted_s = 0.0 if batch_id else None
    span = BatchSpan(CheckpointOrigin("c", 1, 2), batch_id, 0, 10, starts, ends)
    batch_settings = some_batch_settings(policy=DelayPolicy(most_waiting=most))
    found = decides.refusal(batch_settings, span, clock_ms)
    assert checkpoint.written == ({batch_id: found} if found.from_offsets else {})
    return found


def test_what_is_due_within_the_horizon_of_the_clock_is_not_refused_after_a_time_without_batches() -> None:
    starts, ends = {"in": {"0": 0}}, {"in": {"0": 9}}
    horizon_ms = Settings().clock.horizon
    # The cutoff comes from the last batch, before the job was down.
    assert refusal(7, 4, starts, ends, clock_ms=90_000).due_from_ms == 90_000 + horizon_ms
    # This host's clock was set back.
    assert refusal(7, 4, starts, ends, clock_ms=-horizon_ms).due_from_ms == 10


def test_a_first_batch_counts_from_where_it_begins_to_read() -> None:
    starts, ends = {"in": {"0": 1_000, "1": 0}}, {"in": {"0": 1_006, "1": 4}}
    assert refused(0, 10, starts, ends) == {}
    assert refused(0, 5, starts, ends) == {"in": {"0": 1_003, "1": 2}}


@pytest.mark.parametrize(("cutoff_ms", "accepted"), [(0, 1), (151, 5), (201, 10)])
def test_a_first_batch_does_not_count_what_an_earlier_checkpoint_has_staged(cutoff_ms: int, accepted: int) -> None:
    decides = Admission(cast(Checkpoint, FirstCheckpoint()), cast(Any, Table(segments=9)), Settings())
    origin = CheckpointOrigin("c", 2, 2, first_bucket=8, cutoff_ms=cutoff_ms)
    span = BatchSpan(origin, 0, 0, 500, {"in": {"0": 0}}, {"in": {"0": 11}})
    found = decides.refusal(some_batch_settings(policy=DelayPolicy(most_waiting=10)), span, 0)
    assert found.from_offsets == {"in": {"0": accepted}}


@pytest.mark.parametrize(
    ("has_left", "recorded", "accepted"), [(False, None, 4), (True, None, 11), (False, 7, 7), (True, 7, 7)]
)
def test_a_batch_that_was_planned_only_decides_anew_and_one_that_has_run_as_before(
    has_left: bool, recorded: int | None, accepted: int
) -> None:
    checkpoint = FirstCheckpoint({} if recorded is None else {0: Refusal({"in": {"0": recorded}}, 10)})
    decides = Admission(cast(Checkpoint, checkpoint), cast(Any, Table()), Settings(), 0, has_left)
    span = BatchSpan(CheckpointOrigin("c", 1, 2), 0, 0, 10, {"in": {"0": 0}}, {"in": {"0": 11}})
    found = decides.refusal(some_batch_settings(policy=DelayPolicy(most_waiting=4)), span, 0)
    assert found.from_offsets.get("in", {}).get("0", 11) == accepted


def test_offsets_that_were_deleted_unread_are_no_records(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = {("in", 0): (900, 1_006), ("in", 1): (50, 54), ("in", 2): (0, 3)}
    monkeypatch.setattr(admission, "read_bounds", lambda *_: bounds)
    starts, ends = {"in": {"0": 100, "2": 8}}, {"in": {"0": 906, "1": 54, "2": 3, "3": 2}}
    # Partition 2 was created again, and 3 is gone.
    assert refused(7, 12, starts, ends, skip_expired=True) == {}
    assert refused(7, 6, starts, ends, skip_expired=True) == {"in": {"0": 903, "1": 52, "3": 1}}
    bounds["in", 0] = (2_000, 2_000)
    assert refused(7, 6, starts, ends, skip_expired=True) == {}


def test_the_broker_is_asked_only_where_offsets_may_be_missing_and_seem_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nobody(*_: Any) -> Bounds:
        raise AssertionError

    monkeypatch.setattr(admission, "read_bounds", nobody)
    starts, ends = {"in": {"0": 100}}, {"in": {"0": 110}}
    assert refused(7, 10, starts, ends, skip_expired=True) == {}
    assert refused(7, 4, starts, ends) == {"in": {"0": 104}}


def test_what_is_known_of_sealed_segments_is_bounded_without_a_count_of_the_table() -> None:
    table = Table(segments=9)
    decides = Admission(cast(Checkpoint, FirstCheckpoint()), cast(Any, table), Settings(), few_spans=500)
    batch_settings = some_batch_settings(policy=DelayPolicy(most_waiting=10**6))
    ends = {"in": {"0": 0}}
    for batch_id in range(1_000):
        span = BatchSpan(CheckpointOrigin("c", 1, 2), batch_id, 0, 10, ends, ends)
        # The job no longer reads the other topic.
        assert not decides.refusal(batch_settings, span, 0).from_offsets
        spans = [[100 << number, 200 << number, 1] for number in range(20)]
        by_topic = json.dumps({"in": spans, "former": spans})
        decides.done([Row(kind=SEALED, shard=0, count=40, by_topic=by_topic)])
        assert decides._waiting.spans <= 500 + 40
    assert table.counted == 1
    assert [decides._waiting.count(topic, 0) for topic in ("in", "former")] == [20_009, 20_000]


SPANS = st.lists(st.tuples(st.integers(0, 10**8), st.integers(0, 10**8), st.integers(1, 100)), max_size=50)


@given(SPANS, st.integers(0, 10**8))
def test_spans_that_are_joined_have_about_the_same_bounds(found: list[tuple[int, int, int]], cutoff_ms: int) -> None:
    spans: list[admission.Span] = [(first_ms, first_ms + length_ms, count) for first_ms, length_ms, count in found]
    joined = admission._joined(spans, cutoff_ms)
    assert len({(first_ms, last_ms) for first_ms, last_ms, _ in joined}) == len(joined)
    before, after = WaitingMessages(sealed={"a": spans}), WaitingMessages(sealed={"a": joined})
    assert abs(before.count("a", cutoff_ms) - after.count("a", cutoff_ms)) <= 1
    for first_ms, last_ms, _ in before.sealed["a"]:
        left_ms = max(first_ms, cutoff_ms)
        near_ms, far_ms = (0.1 * (1_000 + bound_ms - cutoff_ms) for bound_ms in (left_ms, last_ms))
        assert any(
            left_ms - near_ms <= first <= left_ms and last_ms - far_ms - 1 <= last <= last_ms + near_ms + far_ms + 1
            for first, last, _ in joined
        )


def test_spans_that_are_joined_again_and_again_count_until_they_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, joined = WaitingMessages(), WaitingMessages()
    for batch_id in range(1_000):
        at_ms = 5_000 * batch_id
        dues = [(60_000, 70_000), (3_600_000, 3_605_000), (60_000, 1_800_000), (300_000, 301_000)]
        rows = [sealed(at_ms + first_ms, at_ms + last_ms, a=100) for first_ms, last_ms in dues]
        whole.add(rows)
        joined.add(rows)
        joined.sealed["a"] = admission._joined(joined.sealed["a"], at_ms)
        count = whole.count("a", at_ms)
        assert 0.97 * count <= joined.count("a", at_ms) <= 1.03 * count
    assert len(joined.sealed["a"]) < 500 < len(whole.sealed["a"])


def kept(shard: int, **by_topic: int) -> Row:
    return Row(kind=KEPT, shard=shard, count=sum(by_topic.values()), by_topic=json.dumps(by_topic))


def sealed(first_ms: int, last_ms: int, **by_topic: int) -> Row:
    spans = {topic: [[first_ms, last_ms, count]] for topic, count in by_topic.items()}
    return Row(kind=SEALED, shard=0, count=sum(by_topic.values()), by_topic=json.dumps(spans))


def test_what_a_shard_keeps_takes_the_place_of_what_it_kept_before() -> None:
    waiting = WaitingMessages()
    waiting.add([kept(0, a=3, b=1), kept(1, a=4)])
    assert (waiting.count("a", 0), waiting.count("b", 0)) == (7, 1)
    # The second row of shard 1 belongs to an overflow group.
    waiting.add([kept(1, a=2), kept(1)])
    assert waiting.count("a", 0) == 5
    waiting.add([kept(0)])
    assert (waiting.count("a", 0), waiting.count("b", 0)) == (2, 0)


def test_sealed_messages_count_until_they_are_staged() -> None:
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
def test_a_topic_never_seen_has_no_waiting_messages(topic: str) -> None:
    assert WaitingMessages().count(topic, 0) == 0


def test_a_message_that_repeats_counts_once() -> None:
    """A hundred come every ten seconds, and twenty every hour. Each batch stores those that follow the staged ones."""
    settings = some_batch_settings(
        shard_keys=(3,), partitions=PARTITIONS, policy=DelayPolicy(repeats=True, most_waiting=10**6)
    )
    rules = [b"every 10s"] * 100 + [b"every 1h"] * 20
    rows = [
        {"timestamp_ms": START_MS + 90 * offset, "offset": offset, "headers": headers(("delayline-repeat", rule))}
        for offset, rule in enumerate(rules)
    ]
    table = in_order(accept(records(rows), settings, START_MS + 10_000).messages)
    origin, previous_ms, waiting = CheckpointOrigin("c", 1, 1), 0, WaitingMessages()
    waiting.add(as_rows(ShardRows(settings, 0, 0, START_MS, 0).sealed(table)))
    for batch_id in range(1, 60):
        clock_ms = START_MS + 5_000 * batch_id
        cutoff_ms = clock_ms + 60_000
        span = BatchSpan(origin, batch_id, previous_ms, cutoff_ms, clock_ms=clock_ms)
        dues = table.column("deliver_at_ms").to_numpy()
        due, left = (
            table.filter(pa.array(chosen)).combine_chunks() for chosen in (dues < cutoff_ms, dues >= cutoff_ms)
        )
        made = OccurrenceRows(settings, span, 0)
        made.add(due)
        rows_made = [row for batch in (*made.staged(due), *made.finish()) for row in batch.to_pylist()]
        following = [row for row in rows_made if row["kind"] == SEALED]
        waiting.add(as_rows(following))
        table = in_order(pa.concat_tables([left, *(decode_chunk(row["chunk"]) for row in following)]).combine_chunks())
        assert table.num_rows == 120
        assert 105 <= waiting.count(TOPIC, cutoff_ms) <= 140, batch_id
        previous_ms = cutoff_ms


def as_rows(rows: Iterable[dict[str, Any]]) -> list[Row]:
    return [Row(**row) for row in rows]
