"""Messages that repeat, across lost checkpoints: one occurrence of each waits, and it is the right one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from sources.intake.accept import accept
from state.buckets.operator import BOUND, DUE, SEALED
from state.checkpoint.batch_settings import BatchSettings, DelayPolicy
from state.checkpoint.handed_over import HandedOver
from state.checkpoint.origin import CheckpointOrigin, Offsets
from state.checkpoint.progress import NOT_IN_TABLE, BatchSpan, InTable, Progress, occurrences_from
from state.message import decode_chunk, empty_messages, encode_chunk
from state.message_ids import ID
from state.order import OrderKey, in_order, key_of
from state.repeats.occurrences import OccurrenceRows
from state.repeats.schedule import ALL, MISSED, NONE, ONE
from state.repeats.waiting import waiting_in
from state.shards import by_shard
from streaming.checkpoint.handover import writer_of_birth, writer_of_following, writer_of_repair
from streaming.operations import schedules
from streaming.operations.moved import Moved
from streaming.operations.rest import Rest
from streaming.operations.schedules import Superseded, lacks_following
from tests.messages import PARTITIONS, headers, records, some_batch_settings
from tests.thorough import examples

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
    pairs = [("delayline-repeat", b"every %ds" % every_s), ("delayline-repeat-missed", missed.encode())]
    pairs += [("delayline-repeat-count", b"%d" % most)] if most is not None else []
    return {"timestamp_ms": timestamp_ms, "offset": offset, "key": b"%d" % offset, "headers": headers(*pairs)}


def published(*missed: str, every_s: int = 10, most: int | None = None) -> pa.Table:
    """Return a message for each of `missed`, which are spread over the shards."""
    rows = [record(offset, each, every_s, most) for offset, each in enumerate(missed)]
    return accept(records(rows), SETTINGS, START_MS).messages


def at(offset: int) -> Offsets:
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
        staged: int | None = None,
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
            done = every if staged is None else every.slice(0, staged)
            is_whole = staged is None or every.num_rows < staged
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
        handed_over = HandedOver(tuple(self.markers[shard] for shard in range(SHARDS)))
        is_older = any(own < known for own, known in zip(self.in_table, handed_over.in_table, strict=True))
        is_older |= self.origin.checkpoint not in self.born
        left = left_in(self.table, handed_over, is_older)
        superseded = Superseded(left.filter(left.column("chunk").is_null()).select([*ID, "deliver_at_ms"]))
        numbers = [bucket for bucket, _ in self.table]
        bucket = 1 + max([handed_over.origin.bucket_of(handed_over.last_batch), *numbers])
        generation = self.origin.generation + 1
        cutoff_ms = max(handed_over.cutoff_ms, superseded.end_ms)
        rest = [decode_chunk(chunk.as_py()) for chunk in left.column("chunk").drop_null()]
        rest += self.accepted_again(handed_over, is_older)
        self.origin = CheckpointOrigin(f"c{generation}", generation, SHARDS, bucket + 1, cutoff_ms, self.end)
        for own, messages in self.table:
            waits = dues_of(messages) < cutoff_ms
            waits &= ~handed_over.of_bucket(messages, own) & ~superseded.among(messages)
            rest.append(messages.filter(pa.array(waits)))
        self.table = [*self.table, (bucket, pa.concat_tables(rest).combine_chunks())]
        self.born |= {self.origin.checkpoint}
        self.batch_id, self.cutoff_ms, self.clock_ms, self.in_table, self.read = -1, 0, 0, NOT_IN_TABLE, []
        self.markers = {shard: Progress(BatchSpan(self.origin)) for shard in range(SHARDS)}

    def accepted_again(self, handed_over: HandedOver, is_older: bool) -> list[pa.Table]:
        """Return what is left of the records that batches of the checkpoint have read."""
        offsets = BitMap64(offset for _, messages in self.table for offset in messages.column("offset").to_pylist())
        settings, moved = self.batch_settings, Moved(handed_over)
        rest = Rest(handed_over, {(TOPIC, 0): offsets}, {}, {}, settings, self.now_ms, moved, is_older=is_older)
        batches = rest.messages()(iter(records(self.read).to_batches())) if self.read else ()
        return [decode_chunk(chunk.as_py()) for batch in batches for chunk in batch.column("chunk")]


def dues_of(messages: pa.Table) -> np.ndarray:
    return np.asarray(messages.column("deliver_at_ms").to_numpy())


def left_in(table: Iterable[tuple[int, pa.Table]], handed_over: HandedOver, is_older: bool) -> pa.Table:
    """Return the result of `left_in_table` for such a table."""
    chunks = [{"bucket": bucket, "chunk": encode_chunk(messages)} for bucket, messages in table]
    schema = pa.schema([("bucket", pa.int64()), ("chunk", pa.binary())])
    rows = iter([pa.RecordBatch.from_pylist(chunks, schema=schema)])
    every = schedules._occurrences(handed_over, {}, is_older)(rows)
    by_id = pa.Table.from_batches(every, schema=schedules._OCCURRENCES)
    by_id = by_id.sort_by([(name, "ascending") for name in (*ID, "number", "deliver_at_ms", "bucket")])
    return pa.Table.from_batches(schedules._left(handed_over)(by_id.to_batches()), schema=schedules._LEFT)


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


STEPS = st.lists(
    st.tuples(st.integers(0, 200), st.integers(1, 80), st.none() | st.integers(0, 9), st.booleans()),
    min_size=1,
    max_size=6,
)


@pytest.mark.takes(30)
@settings(max_examples=examples(60), deadline=None)
@given(STEPS, st.sampled_from([1, 200, 10**6]), st.none() | st.integers(1, 20))
def test_one_occurrence_waits_after_each_rebuild(
    steps: list[tuple[int, int, int | None, bool]], group_bytes: int, most: int | None
) -> None:
    """Wherever the last batch was cut off, and however many occurrences a batch may stage."""
    messages = published(ONE, ALL, NONE, ALL, NONE, most=most)
    job = Job(replace(SETTINGS, group_bytes=group_bytes), table=[(0, messages)])
    clock_ms = START_MS
    for passed_s, ahead_s, staged, other in steps:
        clock_ms += passed_s * SECOND
        job.run(clock_ms, ahead_s * SECOND, None, other)
        check(job, messages, most=most)
        clock_ms += passed_s * SECOND
        job.run(clock_ms, ahead_s * SECOND, staged, other)
        if staged is not None:
            job.rebuild()
        check(job, messages, most=most)


@pytest.mark.takes(30)
@settings(max_examples=examples(25), deadline=None)
@given(STEPS, STEPS, st.sampled_from([1, 200, 10**6]), st.none() | st.integers(1, 20))
def test_schedules_go_on_after_a_restore_of_an_older_table(
    before: list[tuple[int, int, int | None, bool]],
    after: list[tuple[int, int, int | None, bool]],
    group_bytes: int,
    most: int | None,
) -> None:
    """Also if the last batches have each staged as many occurrences as a batch may."""
    messages = published(ONE, ALL, NONE, ALL, NONE, most=most)
    job = Job(replace(SETTINGS, group_bytes=group_bytes), table=[(0, messages)])
    clock_ms = START_MS
    for passed_s, ahead_s, _, other in before:
        clock_ms += passed_s * SECOND
        job.run(clock_ms, ahead_s * SECOND, None, other)
    copied, in_table, born = [*job.table], job.in_table, job.born
    # The copy does not have these. Their records are read again.
    later_ms = clock_ms + after[0][0] * SECOND
    later = [record(FIRST + number, missed, most=most, timestamp_ms=later_ms) for number, missed in enumerate(MISSED)]
    begun_ms = dict.fromkeys(range(FIRST), START_MS) | dict.fromkeys(range(FIRST, FIRST + len(MISSED)), later_ms)
    for number, (passed_s, ahead_s, _, other) in enumerate(after):
        clock_ms += passed_s * SECOND
        job.run(clock_ms, ahead_s * SECOND, None, other, later if number == 0 else [])
    # The last one is cut off.
    job.run(clock_ms, after[0][1] * SECOND, after[0][2])
    job.table, job.in_table = copied, in_table
    job.rebuild()
    waiting = job.waiting()
    waits = dict(zip(waiting.column("offset").to_pylist(), waiting_in(waiting), strict=True))
    assert len(waits) == waiting.num_rows, "one of each"
    for offset, missed in enumerate([ONE, ALL, NONE, ALL, NONE, *MISSED]):
        came = job.came.get(offset, [])
        if missed == ALL:
            # Nothing of these is missed, so their numbers are exact.
            assert (offset in waits) == (most is None or len(came) < most)
        if most is None:
            assert offset in waits
        if offset in waits:
            number, at_ms, *_ = waits[offset].occurrence
            assert number > len(came) if missed != ALL else number == len(came) + 1
            assert (at_ms - begun_ms[offset]) % (10 * SECOND) == 0
            assert not came or at_ms > came[-1][1]
            assert missed != ALL or at_ms == begun_ms[offset] + 10 * SECOND * number
    # The same copy again, before the new checkpoint has run. Its records begin later.
    job.table, job.born = copied, born
    job.rebuild()
    waiting = job.waiting()
    again = dict(zip(waiting.column("offset").to_pylist(), waiting_in(waiting), strict=True))
    assert len(again) == waiting.num_rows, "one of each"
    if most is None:
        assert set(again) == {*range(5)}
    for offset, each in again.items():
        came = job.came.get(offset, [])
        assert each.occurrence.number > len(came)
        assert not came or each.occurrence.at_ms > came[-1][1]
    # The same after a batch.
    job.run(clock_ms + 100 * SECOND, 60 * SECOND)
    job.rebuild()
    if most is None:
        assert set(job.waiting().column("offset").to_pylist()) == {*range(5)}


@pytest.mark.parametrize(
    ("stored", "followed", "repaired", "lacks"),
    [
        (7, 6, False, False),
        (9, 9, False, False),
        (6, 6, False, True),
        # A copy that was made between the two commits of a batch.
        (7, 5, False, True),
        (7, None, False, True),
        (None, 6, False, True),
        (7, 6, True, True),
    ],
)
def test_a_table_lacks_what_followed_if_markers_know_more_or_it_was_repaired(
    stored: int | None, followed: int | None, repaired: bool, lacks: bool
) -> None:
    span = BatchSpan(CheckpointOrigin("c", 1, 2), 9)
    handed_over = HandedOver((Progress(span, in_table=InTable(7, 3)), Progress(span, in_table=InTable(5, 6))))
    versions = {"c": stored, writer_of_following("c"): followed}.get
    store = SimpleNamespace(newest_of=versions, is_fenced={writer_of_repair("c"): repaired}.get)
    assert lacks_following(cast(Any, store), handed_over) == lacks
    new = HandedOver((Progress(span),))
    assert not lacks_following(cast(Any, SimpleNamespace(newest_of=lambda _: None, is_fenced=lambda _: False)), new)


@pytest.mark.parametrize(("first_bucket", "generation", "lacks"), [(0, 1, False), (0, 2, False), (9, 2, True)])
def test_a_copy_from_before_a_checkpoint_replaced_another_lacks_what_followed(
    first_bucket: int, generation: int, lacks: bool
) -> None:
    """Even before a batch of the checkpoint has stored following occurrences. A fresh one has a new generation too."""
    new = HandedOver((Progress(BatchSpan(CheckpointOrigin("c", generation, 1, first_bucket))),))
    fences: dict[str, bool] = {}
    store = cast(Any, SimpleNamespace(newest_of=lambda _: None, is_fenced=lambda writer: fences.get(writer, False)))
    assert lacks_following(store, new) == lacks
    fences[writer_of_birth("c")] = True
    assert not lacks_following(store, new)


def test_a_restored_schedule_goes_on_with_what_the_bound_of_the_last_batch_of_its_shard_put_off() -> None:
    """The newest batch was cut off before it staged anything of the shard."""
    messages = published(*[ALL] * 5)
    origin = CheckpointOrigin("c", 1, SHARDS, 1, START_MS)
    bounded = BatchSpan(origin, 1, START_MS + 10 * SECOND, START_MS + 100 * SECOND)
    newest = BatchSpan(origin, 2, START_MS + 100 * SECOND, START_MS + 200 * SECOND)
    last, other = (OrderKey(START_MS + each * SECOND, "z", 0, 0) for each in (45, 120))
    markers = Progress(bounded, 1, last, 1, START_MS + 50 * SECOND), Progress(newest, 1, other)

    def numbers(*markers: Progress) -> list[set[int]]:
        left = schedules._left_of_lost(HandedOver(markers), messages)
        return [{each.occurrence.number for each in waiting_in(own)} for _, own in by_shard(left, SHARDS)]

    assert numbers(*markers) == [{5}, {13}]
    # The batch before the newest one had a bound too, so the newest one has begun with what that put off.
    begun = replace(markers[1], last=OrderKey(START_MS + 80 * SECOND, "z", 0, 0))
    assert numbers(markers[0], replace(begun, occurrences_from_ms=START_MS + 60 * SECOND)) == [{5}, {9}]


def test_an_occurrence_that_was_taken_in_an_intact_table_has_ended() -> None:
    """The message was cancelled, and its id is forgotten."""
    job = Job(table=[(0, published(ONE))])
    job.run(START_MS, 60 * SECOND)
    job.run(START_MS + 60 * SECOND, 60 * SECOND, other=True)
    job.table = job.table[:1]
    job.rebuild()
    assert not job.waiting().num_rows


def test_occurrences_that_several_batches_left_out_begin_no_second_chain() -> None:
    """Such batches stage nothing, so no marker says that they ran."""
    messages = published(NONE, NONE, every_s=600)
    job = Job(table=[(0, messages)])
    clock_ms = START_MS + 590 * SECOND
    job.run(clock_ms, 60 * SECOND)
    for _ in range(3):
        # Nothing is staged in time, and the next one is not due before the cutoff.
        clock_ms += 700 * SECOND
        job.run(clock_ms, SECOND)
    job.rebuild()
    check(job, messages, every_s=600)
    job.run(clock_ms + 1_200 * SECOND, 60 * SECOND)
    check(job, messages, every_s=600)


@pytest.mark.parametrize("due_ms", [10, 20, 30])
def test_all_occurrences_before_the_one_that_waits_are_superseded(due_ms: int) -> None:
    messages = published(NONE).set_column(0, "deliver_at_ms", pa.array([due_ms]))
    own = messages.select(ID).append_column("deliver_at_ms", pa.array([30]))
    assert Superseded(own).among(messages).tolist() == [due_ms < 30]
    assert Superseded(own).end_ms == 30
    assert not Superseded()
