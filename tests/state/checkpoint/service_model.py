"""A small model of the service: batches, shards, buckets and markers of an application."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.planned_batch import PlannedBatch
from state.checkpoint.progress import BatchSpan, Progress
from state.checkpoint.staged import newest_checkpoint, restored_marker
from state.order import ORDER, OrderKey
from state.shards import shards_of
from tests.messages import messages

Row = dict[str, Any]


def id_of(row: Row) -> tuple[int, int]:
    """Return the partition and offset of a message, which no other one has."""
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
    staged: set[tuple[int, int]] = field(default_factory=set)
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
                assert not set(map(id_of, shard_rows)) & self.staged, "the model itself delivers twice"
                assert not set(map(id_of, shard_rows)) & self.cancelled, "a cancelled message is staged"
                self.staged |= set(map(id_of, shard_rows))
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
            waits = row["deliver_at_ms"] >= waits_from_ms and not row["error_code"] and id_of(row) not in self.staged
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
