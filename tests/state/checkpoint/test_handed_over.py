"""Which messages are staged according to the markers, against a small model of the whole service."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from conf.errors import CheckpointMismatch
from state.checkpoint.handed_over import HandedOver, newest_checkpoint, restored_marker
from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.planned_batch import PlannedBatch
from state.checkpoint.progress import BatchSpan, Progress, committed_messages
from state.order import ORDER, OrderKey
from state.shards import shards_of
from tests.messages import messages
from tests.thorough import examples

Row = dict[str, Any]


def id_of(row: Row) -> tuple[int, int]:
    return row["partition"], row["offset"]


def order_key(row: Row) -> OrderKey:
    return OrderKey(*(row[name] for name in ORDER))


@dataclass
class Model:
    """Batches, shards, buckets and markers of an application, without Spark, Kafka or Delta."""

    chance: random.Random
    # How often a batch cancels a message that waits.
    cancels: float = 0.0
    # How often the progress topic loses markers after a batch.
    loses: float = 0.0
    origin: CheckpointOrigin = field(default_factory=lambda: CheckpointOrigin("c-1", 1, 2))
    clock_ms: int = 0
    batch_id: int = -1
    cutoff_ms: int = 0
    read: dict[str, dict[str, int]] = field(default_factory=lambda: {"in": {"0": 0, "1": 0}})
    mutable: list[Row] = field(default_factory=list)
    sealed: dict[int, list[Row]] = field(default_factory=dict)
    accepted: list[Row] = field(default_factory=list)
    handed_over: set[tuple[int, int]] = field(default_factory=set)
    markers: dict[int, Progress] = field(default_factory=dict)
    # The ids that were ever cancelled, and the rows that say so: the due time of a sealed message, or -1.
    cancelled: set[tuple[int, int]] = field(default_factory=set)
    cancelled_rows: dict[tuple[int, int], int] = field(default_factory=dict)
    # Records for the first batch of a checkpoint, which begins to read at the offsets of its origin.
    unread: int = 0

    def __post_init__(self) -> None:
        self.announce()

    def read_so_far(self) -> dict[str, dict[str, int]]:
        return {topic: dict(offsets) for topic, offsets in self.read.items()}

    def announce(self) -> None:
        self.markers |= {shard: Progress(BatchSpan(self.origin)) for shard in range(self.origin.shards)}

    def accept(self, count: int) -> None:
        for _ in range(count):
            partition = self.chance.randrange(2)
            offset = self.read["in"][str(partition)]
            self.read["in"][str(partition)] += 1
            bad = self.chance.random() < 0.1
            # As `accept` does: a bad record is due now.
            due = self.clock_ms if bad else max(0, self.clock_ms + self.chance.randrange(-30, 60))
            row = {
                "deliver_at_ms": due, "topic": "in", "partition": partition, "offset": offset,
                "output_partition": self.chance.randrange(5), "error_code": "bad" if bad else None,
            }  # fmt: skip
            self.accepted.append(row)
            self.mutable.append(row)

    def batch(self, finished: bool = True) -> None:
        """Run a batch. If it is not `finished`, it ends after some of each shard's messages."""
        self.batch_id += 1
        starts = self.read_so_far()
        previous_ms = self.cutoff_ms if self.batch_id else 0
        # The watermark of a batch is the clock of the previous batch.
        self.cutoff_ms = self.origin.cutoff_ms if not self.batch_id else max(self.cutoff_ms, self.clock_ms + 5)
        self.clock_ms += self.chance.randrange(1, 20)
        self.accept(self.unread + self.chance.randrange(6))
        self.unread = 0
        batch = BatchSpan(self.origin, self.batch_id, previous_ms, self.cutoff_ms, starts, self.read_so_far())
        self.cancel(max(previous_ms, self.origin.cutoff_ms))
        due = [row for row in self.mutable if row["deliver_at_ms"] < self.cutoff_ms or row["error_code"]]
        self.mutable = [row for row in self.mutable if row not in due]
        for bucket, rows in self.sealed.items():
            overdue_only = bucket == self.origin.overdue_bucket and not self.batch_id
            first_ms = 0 if overdue_only else max(previous_ms, self.origin.cutoff_ms)
            due += [
                row for row in rows
                if first_ms <= row["deliver_at_ms"] < self.cutoff_ms and id_of(row) not in self.cancelled_rows
            ]  # fmt: skip
        if self.chance.random() < 0.4:
            far = [row for row in self.mutable if self.chance.random() < 0.5]
            self.mutable = [row for row in self.mutable if row not in far]
            self.sealed[self.origin.first_bucket + self.batch_id] = far
        for shard in range(self.origin.shards):
            shard_rows = sorted((row for row in due if self.shard_of(row) == shard), key=order_key)
            if not finished:
                shard_rows = shard_rows[: self.chance.randrange(len(shard_rows) + 1)]
            if shard_rows:
                assert not set(map(id_of, shard_rows)) & self.handed_over, "the model itself delivers twice"
                assert not set(map(id_of, shard_rows)) & self.cancelled, "a cancelled message is handed over"
                self.handed_over |= set(map(id_of, shard_rows))
                self.markers[shard] = Progress(batch, len(shard_rows), order_key(shard_rows[-1]))
        if finished and self.chance.random() < self.loses:
            self.lose_markers()
        if finished:
            self.forget()

    def lose_markers(self) -> None:
        """Lose the markers of some shards, and start again."""
        committed = PlannedBatch(self.batch_id, self.clock_ms, self.cutoff_ms, self.read_so_far())
        for shard in range(self.origin.shards):
            if self.chance.random() < 0.5:
                self.markers[shard] = restored_marker(self.origin, committed, {})

    def cancel(self, waits_from_ms: int) -> None:
        """Cancel some of the waiting messages. Sealed messages stay in their buckets."""
        for row in [row for row in self.mutable if not row["error_code"] and self.chance.random() < self.cancels]:
            self.mutable.remove(row)
            self.cancelled_rows[id_of(row)] = -1
        for row in (row for rows in self.sealed.values() for row in rows):
            waits = (
                row["deliver_at_ms"] >= waits_from_ms and not row["error_code"] and id_of(row) not in self.handed_over
            )
            if waits and self.chance.random() < self.cancels:
                self.cancelled_rows[id_of(row)] = row["deliver_at_ms"]
        self.cancelled |= self.cancelled_rows.keys()

    def forget(self) -> None:
        """Delete some input records, and the rows of cancelled messages that would be staged by now."""
        newest = newest_checkpoint([self.markers.get(shard) for shard in range(self.origin.shards)])
        assert newest is not None
        for own, due in list(self.cancelled_rows.items()):
            if due < newest.whole_before_ms and self.chance.random() < 0.5:
                del self.cancelled_rows[own]
                self.accepted = [row for row in self.accepted if id_of(row) != own]

    def shard_of(self, row: Row) -> int:
        return int(shards_of(messages([row]), self.origin.shards)[0])

    def rescale(self, shards: int) -> None:
        """Seal the mutable buckets, and begin a checkpoint with `shards`."""
        bucket = self.origin.first_bucket + self.batch_id + 1
        self.sealed[bucket], self.mutable = self.mutable, []
        self.origin = replace(
            self.origin, checkpoint=f"c-{self.origin.generation + 1}", generation=self.origin.generation + 1,
            shards=shards, first_bucket=bucket + 1, cutoff_ms=self.cutoff_ms, offsets=self.read_so_far(),
        )  # fmt: skip
        self.batch_id = -1
        self.announce()

    def rebuild(self, shards: int) -> None:
        """Lose the checkpoint, and make another as `streaming.operations.rebuild` does."""
        newest = newest_checkpoint([self.markers.get(shard) for shard in range(max(self.markers) + 1)])
        assert newest is not None
        in_bucket = {id_of(row) for rows in self.sealed.values() for row in rows} | self.cancelled_rows.keys()
        ends = newest.ends.get("in", {})
        for partition, offset in in_bucket:
            ends[str(partition)] = max(ends.get(str(partition), 0), offset + 1)
        rest = [
            row for row in self.accepted
            if row["offset"] < ends.get(str(row["partition"]), 0)
            and id_of(row) not in in_bucket
            and not newest.of_input(messages([row]))[0]
        ]  # fmt: skip
        rest += [
            row for bucket, rows in self.sealed.items() for row in rows
            if row["deliver_at_ms"] < newest.cutoff_ms and not newest.of_bucket(messages([row]), bucket)[0]
            and id_of(row) not in self.cancelled_rows
        ]  # fmt: skip
        bucket = max([newest.origin.first_bucket + newest.last_batch, *self.sealed]) + 1
        self.sealed[bucket] = rest
        self.origin = CheckpointOrigin(
            f"c-{newest.origin.generation + 1}", newest.origin.generation + 1, shards, bucket + 1, newest.cutoff_ms,
            {"in": {number: ends.get(number, 0) for number in ("0", "1")}},
        )  # fmt: skip
        self.batch_id, self.cutoff_ms, self.mutable = -1, newest.cutoff_ms, []
        # Records beyond the ends are unknown to the rebuilt checkpoint, and are read as new.
        read_again = [row for row in self.accepted if row["offset"] >= self.origin.offsets["in"][str(row["partition"])]]
        self.accepted = [row for row in self.accepted if row not in read_again]
        self.cancelled = {own for own in self.cancelled if own[1] < self.origin.offsets["in"][str(own[0])]}
        self.read = {"in": dict(self.origin.offsets["in"])}
        self.unread = len(read_again)
        self.announce()


SEEDS = st.integers(0, 10**9)


@pytest.mark.parametrize("loses", [0.0, 0.5])
@given(SEEDS, st.integers(0, 12), st.integers(0, 12), st.integers(1, 4), st.booleans())
@settings(max_examples=examples(100))
def test_the_markers_determine_exactly_which_messages_are_delivered(
    loses: float, seed: int, before: int, after: int, shards: int, finished: bool
) -> None:
    model = Model(random.Random(seed), loses=loses)
    for _ in range(before):
        model.batch()
    if before:
        model.rescale(shards)
    for _ in range(after):
        model.batch()
    model.batch(finished)
    newest = newest_checkpoint([model.markers.get(shard) for shard in range(max(model.markers) + 1)])
    assert newest is not None
    for row in model.accepted:
        is_handed_over = id_of(row) in model.handed_over
        buckets = [bucket for bucket, rows in model.sealed.items() if row in rows]
        if buckets:
            assert newest.of_bucket(messages([row]), buckets[0])[0] == is_handed_over
            assert is_handed_over or row["deliver_at_ms"] >= newest.whole_before_ms
        else:
            assert newest.of_input(messages([row]))[0] == is_handed_over
        if is_handed_over and not row["error_code"]:
            assert row["deliver_at_ms"] < newest.cutoff_ms


@pytest.mark.parametrize(("cancels", "loses"), [(0.0, 0.0), (0.3, 0.0), (0.9, 0.0), (0.3, 0.4)])
@given(SEEDS, st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4), st.booleans()), min_size=1, max_size=4))
@settings(max_examples=examples(50))
def test_repeatedly_lost_checkpoints_lose_and_duplicate_no_message_and_deliver_none_that_is_cancelled(
    cancels: float, loses: float, seed: int, checkpoints: list[tuple[int, int, bool]]
) -> None:
    model = Model(random.Random(seed), cancels, loses)
    for batches, shards, finished in checkpoints:
        for _ in range(batches):
            model.batch()
        model.batch(finished)
        model.rebuild(shards)
    model.clock_ms += 1000
    for _ in range(3):
        model.batch()
    model.clock_ms += 1000
    model.batch()
    due = {id_of(row) for row in model.accepted if row["deliver_at_ms"] < model.cutoff_ms or row["error_code"]}
    # Not if each message was cancelled, and forgotten.
    assume(due)
    assert due <= model.handed_over | model.cancelled


def test_without_a_marker_of_each_shard_the_newest_checkpoint_is_unknown() -> None:
    origin = CheckpointOrigin("c", 2, 2)
    mine, old = Progress(BatchSpan(origin)), Progress(BatchSpan(CheckpointOrigin("b", 2, 3)))
    assert newest_checkpoint([mine, None]) is None
    assert newest_checkpoint([mine, old]) is None
    assert newest_checkpoint([]) is None
    assert newest_checkpoint([mine, mine, old]) == HandedOver((mine, mine))


def test_a_restored_marker_says_that_all_is_handed_over_until_its_batch_which_must_not_run_again() -> None:
    origin = CheckpointOrigin("c", 2, 1)
    marker = restored_marker(origin, PlannedBatch(7, 80, 95, {"delayline-in": {"0": 5}}), {"delayline-in": ["id"]})
    newest = newest_checkpoint([Progress.from_bytes(marker.to_bytes())])
    assert newest is not None
    assert (newest.last_batch, newest.cutoff_ms, newest.whole_before_ms) == (7, 95, 95)
    rows: list[Row] = [{"deliver_at_ms": due, "offset": offset} for due, offset in ((94, 4), (95, 4), (94, 5))]
    rows.append({"deliver_at_ms": 99, "offset": 4, "error_code": "bad-deliver-at", "error_text": "bad"})
    assert newest.of_input(messages(rows)).tolist() == [True, False, False, True]
    # As if the entry of the commit log were lost later.
    replayed = BatchSpan(origin, 7, 80, 95, {}, {"delayline-in": {"0": 5}}, {"delayline-in": ["id"]}, 60)
    with pytest.raises(CheckpointMismatch, match="Its entry was lost"):
        committed_messages(marker, replayed)
    assert restored_marker(origin, None, {}) == Progress(BatchSpan(origin))


@pytest.mark.parametrize(("offset", "handed_over"), [(4, True), (5, False)])
def test_input_before_the_offsets_of_the_origin_is_handed_over(offset: int, handed_over: bool) -> None:
    newest = HandedOver((Progress(BatchSpan(CheckpointOrigin("c", 2, 1, offsets={"delayline-in": {"0": 5}}))),))
    assert newest.of_input(messages([{"offset": offset}])).tolist() == [handed_over]
    assert newest.of_input(messages([{"offset": 0, "partition": 1}])).tolist() == [False]
    assert np.array_equal(newest.of_input(messages([])), [])


def test_offsets_in_a_topic_that_was_deleted_say_nothing_of_the_topic_that_was_created_again() -> None:
    topic = "delayline-in"
    old, new = {topic: ["old"]}, {topic: ["old", "new"]}
    offsets = {topic: {"0": 5}}
    origin = CheckpointOrigin("c", 2, 2, offsets=offsets, input_ids=old)
    before = BatchSpan(origin, 3, 50, 60, offsets, {topic: {"0": 9}}, old)
    after = BatchSpan(origin, 7, 80, 90, {topic: {"0": 2}}, {topic: {"0": 4}}, new)
    lasts = [OrderKey(85, topic, 0, 3), OrderKey(55, topic, 0, 8)]
    records = messages([{"offset": offset, "deliver_at_ms": 70} for offset in range(6)])

    markers = (Progress(before, 1, lasts[1]), Progress(before, 1, lasts[1]))
    assert HandedOver(markers).ends == {topic: {"0": 9}}
    # All records below the offsets of the origin were staged or sealed when the checkpoint began.
    assert HandedOver(markers).of_input(records).tolist() == [True] * 5 + [False]

    for number in range(2):
        newest = HandedOver(
            tuple(Progress(after if at == number else before, 1, lasts[at != number]) for at in range(2))
        )
        assert newest.input_ids == new
        assert newest.ends == {topic: {"0": 4}}
        # Accepted before the newest batch, which has staged messages due below 80. Others may be its own.
        assert newest.of_input(records)[:2].tolist() == [True, True]
        assert newest.of_input(records)[4:].tolist() == [False, False]


def test_a_sealed_dead_letter_is_delivered_at_its_due_time_and_not_before() -> None:
    origin = CheckpointOrigin("c", 2, 1, first_bucket=5, cutoff_ms=60)
    # The shard's last message was a dead letter: the first batch staged it, with a cutoff far below its due time.
    marker = Progress(BatchSpan(origin, 0, 0, 61), 1, OrderKey(90, "delayline-in", 0, 9))
    sealed = messages([{"deliver_at_ms": 76, "offset": 7, "error_code": "bad-deliver-at", "error_text": "bad"}])
    assert HandedOver((marker,)).of_bucket(sealed, 4).tolist() == [False]
    assert HandedOver((Progress(BatchSpan(origin, 1, 77, 95)),)).of_bucket(sealed, 4).tolist() == [True]
