"""Markers and checkpoint origins as values. The tests of the writer read markers back from a broker."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.errors import CheckpointMismatch, FormatMismatch
from state.checkpoint.origin import CheckpointOrigin, InputIds, Offsets
from state.checkpoint.progress import BatchSpan, Progress, committed_messages, occurrences_from, refuse_older
from state.order import OrderKey
from tests.thorough import examples

NUMBER = st.integers(0, 2**62)
TEXT = st.text(max_size=20)
OFFSETS = st.dictionaries(TEXT, st.dictionaries(st.integers(0, 99).map(str), NUMBER, max_size=3), max_size=2)
IDS = st.dictionaries(TEXT, st.lists(TEXT, min_size=1, max_size=2), max_size=2)
ORIGINS = st.builds(CheckpointOrigin, TEXT, NUMBER, st.integers(1, 1024), NUMBER, NUMBER, OFFSETS, IDS)
KEYS = st.none() | st.tuples(NUMBER, TEXT, st.integers(0, 99), NUMBER)


def span(
    origin: CheckpointOrigin, batch_id: int, cutoff_ms: int, starts: Offsets, read: list[int], ids: InputIds
) -> BatchSpan:
    """Return a batch that has read so many records in each partition of `starts`, in turn."""
    counts = cycle(read)
    ends = {topic: {number: start + next(counts) for number, start in each.items()} for topic, each in starts.items()}
    return BatchSpan(origin, batch_id, cutoff_ms // 2, cutoff_ms, starts, ends, ids)


READ = st.lists(st.integers(0, 9), min_size=1, max_size=5)
MARKERS = st.builds(
    Progress,
    st.builds(span, ORIGINS, st.integers(-1, 2**62), NUMBER, OFFSETS, READ, IDS),
    NUMBER,
    KEYS,
    NUMBER,
)

ORIGIN = CheckpointOrigin("c", 3, 2, offsets={"in": {"0": 5}})
MARKER = Progress(BatchSpan(ORIGIN, 7, 10, 20, {"in": {"0": 5}}, {"in": {"0": 9}}), 40, OrderKey(11, "in", 0, 6), 90)


@given(MARKERS)
@settings(max_examples=examples(100))
def test_a_marker_is_read_as_it_was_written(marker: Progress) -> None:
    assert Progress.from_bytes(marker.to_bytes()) == marker


def test_a_marker_has_the_offsets_of_an_idle_partition_once() -> None:
    starts = {"in": {str(number): 10**12 + number for number in range(1000)}}
    ends = {"in": starts["in"] | {"7": 10**12 + 9}}
    idle, busy = (Progress(BatchSpan(ORIGIN, 7, 10, 20, starts, each)).to_bytes() for each in (starts, ends))
    assert len(busy) - len(idle) < 30
    assert all(idle.count(b"%d" % offset) == 1 for offset in starts["in"].values())


def test_a_batch_reads_the_partitions_whose_end_is_not_their_start() -> None:
    starts = {"a": {"0": 5, "1": 5}, "b": {"0": 5}}
    ends = {"a": {"0": 5, "1": 6, "2": 1, "3": 0}, "b": {"0": 9}}
    assert BatchSpan(ORIGIN, 7, 10, 20, starts, ends).read_partitions == 3
    assert BatchSpan(ORIGIN, 7, 10, 20, starts, starts).read_partitions == 0


@given(ORIGINS)
@settings(max_examples=examples(50))
def test_an_origin_is_read_as_it_was_written(origin: CheckpointOrigin) -> None:
    assert CheckpointOrigin.from_json(origin.to_json()) == origin


def changed(path: str, value: Any) -> bytes:
    """Return `MARKER` as bytes, with the field at `path` set to `value`."""
    fields = json.loads(MARKER.to_bytes())
    *outer, name = path.split(".")
    parent = fields
    for step in outer:
        parent = parent[step]
    parent[name] = value
    return json.dumps(fields).encode()


def test_a_marker_of_another_format_names_both() -> None:
    with pytest.raises(FormatMismatch, match=r"a marker in the progress topic has format 2, but .* reads format 1"):
        Progress.from_bytes(changed("format", 2))


@pytest.mark.parametrize(
    "value",
    [
        b"", b"x", b"\xff", b"7", b"[]", b"[1, 2, 3]", b"null", b"{}",
        b'{"checkpoint": "c", "batch_id": 1, "messages": 2}',
        changed("more", 3), changed("messages", None), changed("messages", "40"), changed("batch", 1),
        changed("batch.batch_id", "1"), changed("batch.more", 1), changed("batch.starts", []),
        changed("batch.read", []), changed("batch.read", {"in": {"0": "4"}}), changed("batch.read", {"in": 4}),
        changed("batch.ends", {"in": {"0": "9"}}), changed("batch.origin", None), changed("batch.origin.shards", 2.5),
        changed("batch.origin.checkpoint", 7), changed("last", 5), changed("last", [1, "in", 0]),
        changed("last", [1, 2, 0, 0]), changed("staged", None), changed("staged", "90"),
    ],
)  # fmt: skip
def test_a_value_that_is_not_a_marker_is_refused(value: bytes) -> None:
    with pytest.raises(CheckpointMismatch, match="not a marker of this Delayline version"):
        Progress.from_bytes(value)


def marker(checkpoint: str, generation: int, batch_id: int, messages: int) -> Progress:
    return Progress(BatchSpan(CheckpointOrigin(checkpoint, generation, 1), batch_id), messages)


@pytest.mark.parametrize(
    ("last", "skipped"),
    [
        (None, 0),
        (marker("c", 2, 6, 40), 0),
        (marker("c", 2, 7, 40), 40),
        (marker("c", 2, 7, 0), 0),
        (marker("c", 2, -1, 0), 0),
        # Batches of an earlier checkpoint are other batches.
        (marker("other", 1, 7, 40), 0),
        (marker("other", 1, 99, 40), 0),
    ],
)
def test_a_replay_skips_messages_that_its_own_batch_committed_and_no_others(
    last: Progress | None, skipped: int
) -> None:
    assert committed_messages(last, BatchSpan(CheckpointOrigin("c", 2, 1), 7)) == skipped


def test_a_checkpoint_older_than_a_delivered_batch_is_refused() -> None:
    with pytest.raises(CheckpointMismatch, match="batch 8 is already staged, but the checkpoint is at batch 7"):
        committed_messages(marker("c", 2, 8, 0), BatchSpan(CheckpointOrigin("c", 2, 1), 7))


def test_of_two_checkpoints_of_one_generation_the_one_that_has_run_goes_on() -> None:
    with pytest.raises(CheckpointMismatch, match="checkpoint c was replaced by d"):
        committed_messages(marker("d", 2, 0, 0), BatchSpan(CheckpointOrigin("c", 2, 1), 7))
    # A try that was interrupted has announced it only.
    assert committed_messages(marker("d", 2, -1, 0), BatchSpan(CheckpointOrigin("c", 2, 1), 7)) == 0
    # Not for a shard of its own, of which its own announcement would be newer.
    with pytest.raises(CheckpointMismatch, match="checkpoint c was replaced by d"):
        refuse_older(marker("d", 2, -1, 0), CheckpointOrigin("c", 2, 1), 7, is_own=True)


@pytest.mark.parametrize("change", [{"cutoff_ms": 1}, {"previous_ms": 1}, {"ends": {"in": {"0": 1}}}])
def test_a_partly_delivered_batch_with_another_plan_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(CheckpointMismatch, match=r"batch 7 was staged up to cutoff 0.*delayline rebuild"):
        committed_messages(marker("c", 2, 7, 40), BatchSpan(CheckpointOrigin("c", 2, 1), 7, **change))


def test_a_replay_knows_its_batch_by_a_partition_that_began_at_its_first_record() -> None:
    batch = BatchSpan(ORIGIN, 7, 10, 20, {"in": {"0": 5}}, {"in": {"0": 9, "1": 3}})
    stored = Progress.from_bytes(Progress(batch, 40).to_bytes())
    assert committed_messages(stored, batch) == 40


def test_a_checkpoint_that_another_one_replaced_is_refused() -> None:
    with pytest.raises(CheckpointMismatch, match="checkpoint c was replaced by d"):
        committed_messages(marker("d", 3, -1, 0), BatchSpan(CheckpointOrigin("c", 2, 1), 7))


def test_a_replay_without_the_records_of_a_topic_that_was_deleted_is_the_same_batch() -> None:
    batch = BatchSpan(ORIGIN, 7, 10, 20, {"in": {"0": 5}}, {"in": {"0": 9}}, {"in": ["id"]})
    without = replace(batch, starts=batch.ends)
    assert not without.read_by_topic
    assert committed_messages(Progress(batch, 40), without) == 40
    with pytest.raises(CheckpointMismatch, match="batch 7 was staged up to cutoff"):
        committed_messages(Progress(batch, 40), replace(batch, input_ids={"in": ["id", "another"]}))


def test_occurrences_that_a_batch_with_a_bound_put_off_come_in_the_next_one() -> None:
    def of_batch(batch_id: int, origin: CheckpointOrigin = ORIGIN) -> BatchSpan:
        return BatchSpan(origin, batch_id, 100 * batch_id, 100 * batch_id + 100)

    assert occurrences_from(None, of_batch(7)) is None
    whole = Progress(of_batch(7))
    assert whole.occurrences_whole_below_ms == 700
    assert occurrences_from(whole, of_batch(8)) is None
    bounded = replace(whole, occurrences_below_ms=740)
    assert occurrences_from(bounded, of_batch(8)) == 740
    # A batch in between has not raised the cutoff.
    assert occurrences_from(bounded, BatchSpan(ORIGIN, 9, 800, 900)) == 740
    late = Progress(BatchSpan(ORIGIN, 8, 800, 800), occurrences_from_ms=740)
    assert occurrences_from(late, BatchSpan(ORIGIN, 9, 800, 900)) is None
    # The next transaction of the same batch, and a batch behind one that had nothing to stage.
    assert occurrences_from(bounded, of_batch(7)) is None
    assert occurrences_from(bounded, of_batch(9)) is None
    assert occurrences_from(bounded, of_batch(8, replace(ORIGIN, checkpoint="d"))) is None
    following = Progress(of_batch(8), occurrences_below_ms=760, occurrences_from_ms=740)
    assert occurrences_from(following, of_batch(8)) == following.occurrences_whole_below_ms == 740
    assert occurrences_from(following, of_batch(9)) == 760
    # A message that was read late came earlier than all others.
    assert occurrences_from(replace(bounded, occurrences_below_ms=20), of_batch(8)) == 700
