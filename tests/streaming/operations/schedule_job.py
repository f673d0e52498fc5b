"""A job with messages that repeat, which loses its checkpoint: batches, a table and markers, all in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from sources.intake.accept import accept
from state.buckets.operator import BOUND, DUE, SEALED
from state.checkpoint.batch_settings import BatchSettings, DelayPolicy
from state.checkpoint.origin import CheckpointOrigin, Offsets
from state.checkpoint.progress import NOT_IN_TABLE, BatchSpan, InTable, Progress, occurrences_from
from state.checkpoint.staged import StagedMessages
from state.message import decode_chunk, empty_messages, encode_chunk
from state.message_ids import ID
from state.order import OrderKey, in_order, key_of
from state.repeats.occurrences import OccurrenceRows
from state.repeats.schedule import ALL
from state.repeats.waiting import waiting_in
from state.shards import by_shard
from streaming.operations import schedules
from streaming.operations.moved import Moved
from streaming.operations.rest import Rest
from streaming.operations.schedules import Superseded
from tests.messages import PARTITIONS, headers, records, some_batch_settings

SECOND = 1_000
START_MS = 1_798_000_000_000
HORIZON = 60 * SECOND
SHARDS = 2
TOPIC, FIRST = "delayline-in", 5
SETTINGS = some_batch_settings(
    shard_keys=(3, 5), policy=DelayPolicy(repeats=True), partitions=PARTITIONS | {"delayline-results": 1}
)


def record(
    offset: int, missed: str, every_s: int = 10, most: int | None = None, timestamp_ms: int = START_MS
) -> dict[str, Any]:
    """Return a record with a schedule, and the rule `missed` for missed occurrences."""
    pairs = [("delayline-repeat", b"every %ds" % every_s), ("delayline-repeat-missed", missed.encode())]
    pairs += [("delayline-repeat-count", b"%d" % most)] if most is not None else []
    return {"timestamp_ms": timestamp_ms, "offset": offset, "key": b"%d" % offset, "headers": headers(*pairs)}


def published(*missed: str, every_s: int = 10, most: int | None = None) -> pa.Table:
    """Return a message for each of `missed`, which are spread over the shards."""
    rows = [record(offset, each, every_s, most) for offset, each in enumerate(missed)]
    return accept(records(rows), SETTINGS, START_MS).messages


def at(offset: int) -> Offsets:
    """Return the offset of the input topic as offsets by topic."""
    return {TOPIC: {"0": offset}}


@dataclass
class Job:
    """Batches, a table and markers, without Spark, Kafka or Delta. Only occurrences of the messages are staged.

    `came` has the number and the instant of each staged occurrence, by offset. `read` has the records that batches of
    the checkpoint have read, from offset `FIRST` on.
    """

    batch_settings: BatchSettings = SETTINGS
    origin: CheckpointOrigin = field(default_factory=lambda: CheckpointOrigin("c", 1, SHARDS, 1, START_MS, at(FIRST)))
    table: list[tuple[int, pa.Table]] = field(default_factory=list)
    markers: dict[int, Progress] = field(default_factory=dict)
    came: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    batch_id: int = -1
    cutoff_ms: int = 0
    clock_ms: int = 0
    now_ms: int = START_MS
    in_table: InTable = NOT_IN_TABLE
    read: list[dict[str, Any]] = field(default_factory=list)
    # The checkpoints that the table knows.
    born: frozenset[str] = frozenset({"c"})

    def __post_init__(self) -> None:
        self.markers = {shard: Progress(BatchSpan(self.origin)) for shard in range(SHARDS)}

    def waiting(self) -> pa.Table:
        """Return the messages that wait in the table."""
        tables = [empty_messages()]
        for bucket, messages in self.table:
            is_overdue = not self.cutoff_ms and bucket == self.origin.overdue_bucket
            from_ms = 0 if is_overdue else max(self.cutoff_ms, self.origin.cutoff_ms)
            tables.append(messages.filter(pa.array(dues_of(messages) >= from_ms)))
        return in_order(pa.concat_tables(tables).combine_chunks())

    @property
    def end(self) -> Offsets:
        """The end of what is read."""
        return at(self.origin.offsets[TOPIC]["0"] + len(self.read))

    def run(
        self,
        clock_ms: int,
        ahead_ms: int,
        most: int | None = None,
        other: bool = False,
        arriving: Sequence[dict[str, Any]] = (),
    ) -> None:
        """Run a batch, with records `arriving`. It is cut off once each shard has staged so many occurrences, or never.

        With `other` each shard also stages a message that is due last.
        """
        # Each batch raises the cutoff. If one does not, a restore may give up occurrences (`occurrences_from`).
        cutoff_ms = max(self.cutoff_ms + 1, self.origin.cutoff_ms, clock_ms + ahead_ms)
        self.batch_id += 1
        self.now_ms = clock_ms
        span = BatchSpan(self.origin, self.batch_id, self.cutoff_ms, cutoff_ms, self.end, clock_ms=clock_ms)
        self.read += arriving
        span = replace(span, ends=self.end, previous_clock_ms=self.clock_ms, missed_before_ms=clock_ms - HORIZON)
        arrived = accept(records(arriving), self.batch_settings, clock_ms).messages if arriving else empty_messages()
        waiting = pa.concat_tables([self.waiting(), arrived]).combine_chunks()
        due = waiting.filter(pa.array(dues_of(waiting) < cutoff_ms))
        far = arrived.filter(pa.array(dues_of(arrived) >= cutoff_ms))
        following, is_over = [], True
        for shard, own in by_shard(due, SHARDS):
            rows = OccurrenceRows(self.batch_settings, span, shard)
            rows.add(own)
            made = [row for batch in (*rows.staged(own), *rows.finish()) for row in batch.to_pylist()]
            several = [decode_chunk(row["chunk"]) for row in made if row["kind"] == DUE]
            every = in_order(pa.concat_tables([empty_messages(), *several]).combine_chunks())
            done = every if most is None else every.slice(0, most)
            is_whole = most is None or every.num_rows < most
            bounds = [row["min_deliver_at_ms"] for row in made if row["kind"] == BOUND]
            last = key_of(done, -1) if done.num_rows else None
            if other and is_whole:
                last = OrderKey(cutoff_ms - 1, "z", 0, 0)
            if last is not None:
                below_ms, from_ms = bounds[0] if bounds else None, occurrences_from(self.markers[shard], span)
                self.markers[shard] = Progress(span, 1, last, 1, below_ms, self.in_table, from_ms)
            for row in done.to_pylist():
                found = int(row["headers"][-1]["value"]), row["deliver_at_ms"]
                self.came.setdefault(row["offset"], []).append(found)
            is_over &= is_whole
            following += [decode_chunk(row["chunk"]) for row in made if row["kind"] == SEALED]
        self.table += [(span.bucket, far)]
        if is_over:
            self.table += [(span.bucket, messages) for messages in following]
            self.cutoff_ms, self.clock_ms = cutoff_ms, clock_ms
        if far.num_rows:
            self.in_table = self.in_table._replace(sealed=self.batch_id)
        if is_over and following:
            self.in_table = self.in_table._replace(followed=self.batch_id)

    def rebuild(self) -> None:
        """Make a new checkpoint, as `streaming.operations.rebuild` does."""
        staged = StagedMessages(tuple(self.markers[shard] for shard in range(SHARDS)))
        is_older = any(own < known for own, known in zip(self.in_table, staged.in_table, strict=True))
        is_older |= self.origin.checkpoint not in self.born
        left = left_in(self.table, staged, is_older)
        superseded = Superseded(left.filter(left.column("chunk").is_null()).select([*ID, "deliver_at_ms"]))
        numbers = [bucket for bucket, _ in self.table]
        bucket = 1 + max([staged.origin.bucket_of(staged.last_batch), *numbers])
        generation = self.origin.generation + 1
        cutoff_ms = max(staged.cutoff_ms, superseded.end_ms)
        rest = [decode_chunk(chunk.as_py()) for chunk in left.column("chunk").drop_null()]
        rest += self.accepted_again(staged, is_older)
        self.origin = CheckpointOrigin(f"c{generation}", generation, SHARDS, bucket + 1, cutoff_ms, self.end)
        for own, messages in self.table:
            waits = dues_of(messages) < cutoff_ms
            waits &= ~staged.of_bucket(messages, own) & ~superseded.contains_mask(messages)
            rest.append(messages.filter(pa.array(waits)))
        self.table = [*self.table, (bucket, pa.concat_tables(rest).combine_chunks())]
        self.born |= {self.origin.checkpoint}
        self.batch_id, self.cutoff_ms, self.clock_ms, self.in_table, self.read = -1, 0, 0, NOT_IN_TABLE, []
        self.markers = {shard: Progress(BatchSpan(self.origin)) for shard in range(SHARDS)}

    def accepted_again(self, staged: StagedMessages, is_older: bool) -> list[pa.Table]:
        """Return what is left of the records that batches of the checkpoint have read."""
        offsets = BitMap64(offset for _, messages in self.table for offset in messages.column("offset").to_pylist())
        settings, moved = self.batch_settings, Moved(staged)
        rest = Rest(staged, {(TOPIC, 0): offsets}, {}, {}, settings, self.now_ms, moved, is_older=is_older)
        batches = rest.messages()(iter(records(self.read).to_batches())) if self.read else ()
        return [decode_chunk(chunk.as_py()) for batch in batches for chunk in batch.column("chunk")]


def dues_of(messages: pa.Table) -> np.ndarray:
    """Return the due times of messages (epoch ms)."""
    return np.asarray(messages.column("deliver_at_ms").to_numpy())


def left_in(table: Iterable[tuple[int, pa.Table]], staged: StagedMessages, is_older: bool) -> pa.Table:
    """Return the result of `left_in_table` for such a table."""
    chunks = [{"bucket": bucket, "chunk": encode_chunk(messages)} for bucket, messages in table]
    schema = pa.schema([("bucket", pa.int64()), ("chunk", pa.binary())])
    rows = iter([pa.RecordBatch.from_pylist(chunks, schema=schema)])
    every = schedules._occurrences(staged, {}, is_older)(rows)
    by_id = pa.Table.from_batches(every, schema=schedules._OCCURRENCES)
    by_id = by_id.sort_by([(name, "ascending") for name in (*ID, "number", "deliver_at_ms", "bucket")])
    return pa.Table.from_batches(schedules._left(staged)(by_id.to_batches()), schema=schedules._LEFT)


def check(job: Job, messages: pa.Table, every_s: int = 10, most: int | None = None) -> None:
    """Check the occurrences that came, and that one occurrence of each message waits, which is the next one."""
    waiting = job.waiting()
    offsets = waiting.column("offset").to_pylist()
    assert len(offsets) == len(set(offsets)), "one of each"
    next_one = dict(zip(offsets, waiting_in(waiting), strict=True))
    for message in messages.to_pylist():
        came = job.came.get(message["offset"], [])
        assert [number for number, _ in came] == list(range(1, len(came) + 1))
        dues = [due_ms for _, due_ms in came]
        assert dues == sorted(set(dues))
        if most is not None and len(came) >= most:
            assert message["offset"] not in next_one
            continue
        schedule, occurrence, *_ = next_one[message["offset"]]
        assert occurrence.number == len(came) + 1
        assert not dues or occurrence.at_ms > dues[-1]
        if schedule.missed == ALL:
            assert [*dues, occurrence.at_ms] == [START_MS + every_s * SECOND * each for each in range(1, len(came) + 2)]
