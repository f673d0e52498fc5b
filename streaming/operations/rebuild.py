"""`delayline rebuild`: a new checkpoint in place of a lost one, from markers, table and input.

| message | known by |
| --- | --- |
| handed over | the markers in the progress topic |
| sealed, or cancelled | the message ids in the table |
| moved to another due time, and handed over at that | these ids, and the markers |
| accepted, and neither | was only in the mutable buckets of the lost checkpoint: it is read from the input again |
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
from pyroaring import BitMap64
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from conf.errors import BrokerUnreachable, CheckpointMismatch, UsageError
from conf.kafka.options import java_options
from conf.settings import Settings
from sinks.buckets.bucket_table import ALL_BUCKETS, BucketTable
from sinks.buckets.merge_commits import merge_token
from sinks.buckets.packed_rows import packed, unpacked
from sinks.buckets.segment_figures import index_entries, precisions
from sinks.internal_topics.broker_retry import BrokerRetry
from sinks.internal_topics.lease import HeldLease
from sinks.internal_topics.progress import read_markers
from sinks.lanes.opening import close_lanes
from sinks.ready_log.writer import fence_writers
from sinks.topics.input_ends import input_bounds
from sinks.topics.limits import dead_letter_bytes
from sinks.topics.partitions import offered_topics, partition_counts
from sinks.topics.topic_ids import input_ids
from sinks.topics.topics import check_topics
from sources.intake.kafka_reader import read_range
from sources.intake.names import gives_names
from state.buckets.parts import IdRows
from state.buckets.reseal import LEFT_SCHEMA, left_rows
from state.buckets.table_rows import STORED_SCHEMA, described_segment
from state.cancel import without_named
from state.checkpoint.batch_settings import batch_settings_from
from state.checkpoint.handed_over import HandedOver, newest_checkpoint
from state.checkpoint.input_ids import shared_ids, with_present
from state.checkpoint.origin import CheckpointOrigin, Offsets, as_offsets
from state.index.message_index import MessageIndex
from state.index.offset_bitmaps import OffsetBitmaps, bitmaps_of, in_bitmaps
from state.message import decode_chunk
from state.message_ids import ID, ID_SCHEMA, ids_in
from state.name_holders import HOLDER_SCHEMA, settled
from streaming.checkpoint.checkpoint import Checkpoint
from streaming.checkpoint.current import current_checkpoint
from streaming.checkpoint.handover import (
    rest_bucket,
    seal_rest,
    switch_over,
    writer_of_following,
    writer_of_input,
    writer_of_state,
)
from streaming.checkpoint.recreated_inputs import recreated_inputs
from streaming.job.lanes.claim_watch import ClaimWatch
from streaming.job.requests.recalled import RecalledMessages
from streaming.operations.moved import Moved, moved_in, with_ids, without_ids
from streaming.operations.rest import Rest
from streaming.operations.schedules import Superseded, as_holders, as_left_rows, left_in_table, superseded_in
from streaming.processes.drain import drain
from streaming.spark.exclusive_session import exclusive_session
from streaming.storage.checks import check_storage
from streaming.storage.failures import translate_storage_errors
from streaming.storage.guarded_log import guarded_log
from streaming.storage.paths import buckets_path

# For each input topic and partition: its first offset and the offset after its last.
Bounds = Mapping[tuple[str, int], tuple[int, int]]


@dataclass(frozen=True)
class Rebuilt:
    """What a rebuild did.

    `resealed` counts the messages that were accepted again from the input, or were overdue in the table. `offsets` is
    where the new checkpoint begins to read. `replaced` is where the old checkpoint is, or None if there was none.
    """

    resealed: int
    offsets: Offsets
    replaced: str | None


def rebuild(settings: Settings, discard: bool, now_ms: int) -> Rebuilt:
    """Make a new checkpoint for a job that lost its own. `discard` replaces one that still exists.

    `now_ms` (epoch ms) is taken as the time at which the records were accepted. Raises UsageError if there is a
    checkpoint and not `discard`, CheckpointMismatch if the progress topic does not show what is handed over, or the ids
    of an input topic do not show what is accepted,
    BucketUnreadable if the table is damaged, ApplicationHeld while the job runs.
    """
    check_storage(settings)
    check_topics(settings)
    with exclusive_session(settings, "rebuild") as (spark, lease):
        current = current_checkpoint(spark, settings)
        if current.exists() and not discard:
            raise UsageError(
                f"there is a checkpoint at {current.path}, from which `delayline run` continues. If it "
                "cannot be used, or if a rebuild was interrupted, replace it with --discard-checkpoint"
            )
        store = BucketTable(spark, buckets_path(settings), lease.check, lease.check_now)
        with translate_storage_errors(settings):
            return _rebuild(store, settings, current, now_ms, lease)


def _rebuild(store: BucketTable, settings: Settings, current: Checkpoint, now_ms: int, lease: HeldLease) -> Rebuilt:
    """Rebuild the checkpoint. After a crash, a second try recognises the steps that are done.

    1. Close the lanes of forwarders, fence the writers of the old job, release all that was handed over, and read from
       the markers what that is.
    2. Fence what the old job may still write to the table, and read from the table's metadata what is sealed. From here
       on nothing goes on from the old checkpoint.
    3. Choose the origin of the new checkpoint.
    4. Accept the rest of the input again, and seal it in one bucket, with the overdue messages of the table. Cancel
       what waits under the name of another message.
    5. Switch over to the new checkpoint.
    """
    # 1. Read the markers.
    close_lanes(settings, lease.check_now)
    fence_writers(settings, partition_counts(settings, [settings.progress_topic])[settings.progress_topic])
    drain(settings)
    handed_over = newest_checkpoint(read_markers(settings))
    if handed_over is None:
        raise CheckpointMismatch(
            f"the progress topic {settings.progress_topic} does not have a marker for every shard, so "
            "nothing records which messages are staged. `delayline run --fresh` delivers all messages again "
            "that are still in the input topics"
        )
    known, gone = handed_over.input_ids, recreated_inputs(settings, handed_over.input_ids)
    if shared := [topic for topic in shared_ids(known) if topic not in gone]:
        raise CheckpointMismatch(
            f"{', '.join(shared)} was deleted and created again since the job read the first topic of that "
            "name. Messages of both topics have the same ids, so the table does not show which new records "
            "are accepted. Run `delayline run --fresh` with another storage.path: it delivers all messages "
            "again that are still in the input topics. Keep the old folder"
        )
    # Before the fences, behind which nothing else goes on.
    refuse_cut(input_bounds(settings), handed_over.ends, gone)
    # 2. Read the table.
    guard = guarded_log(store.spark, settings)
    guard.restore(store)
    store.create(from_arrow_schema(STORED_SCHEMA))
    store.check_log()
    guard.take_over(store, merge_token(store, lease.fencing_token))
    # A batch of the old job, or a rescale, may be paused between its check of the lease and its commit.
    before = handed_over.origin.checkpoint
    for writer_id in (before, writer_of_following(before), writer_of_state(before)):
        store.fence(writer_id)
    bounds = input_bounds(settings)
    index = index_of(store, store.version())
    cancelled, moved = moved_in(store.ids_before(IdRows.CANCELLED, ALL_BUCKETS), handed_over)
    # None of these waits where it was. But one that was moved may not be handed over.
    not_there = with_ids(cancelled, moved.ids)
    recalled = _recalled(settings, handed_over)
    none = BitMap64()
    seen = {source: index.offsets_of(*source) | not_there.get(source, none) for source in bounds}
    starts, ends = _range(bounds, handed_over, seen, gone)
    done = without_ids(not_there, moved.perhaps_left)
    in_table = {source: index.offsets_of(*source) | done.get(source, none) for source in bounds}
    taken = _taken(settings, handed_over, starts, ends, gone)
    settled = {source: own | taken.get(source, none) | recalled.get(source, none) for source, own in in_table.items()}
    repeating = left_in_table(store, handed_over, with_ids(not_there, recalled))
    if repeating is not None:
        repeating = repeating.persist()
    superseded = Superseded() if repeating is None else superseded_in(repeating)
    # 3. Choose the origin. The rest gets the next free bucket number, unless an earlier try has sealed it already.
    numbers = [*(row["bucket"] for row in store.metadata()), *_buckets_of_ids(store)]
    sealed_in = rest_bucket(store, handed_over.origin.checkpoint)
    next_bucket = 1 + max([handed_over.origin.bucket_of(handed_over.last_batch), *numbers])
    bucket = next_bucket if sealed_in is None else sealed_in
    origin = CheckpointOrigin(
        checkpoint=str(uuid.uuid4()),
        generation=handed_over.origin.generation + 1,
        shards=settings.bucket.shards,
        first_bucket=bucket + 1,
        # What waits below the cutoff is sealed again, without those that wait no more.
        cutoff_ms=max(handed_over.cutoff_ms, superseded.end_ms),
        offsets=ends,
        input_ids=with_present(known, input_ids(settings)),
        epoch=handed_over.origin.epoch,
    )
    # 4. Seal the rest.
    resealed = 0
    if sealed_in is None:
        counts, most_bytes = offered_topics(settings), dead_letter_bytes(settings)
        batch_settings = batch_settings_from(settings, counts, range(origin.shards), origin, most_bytes)
        records = read_range(store.spark, java_options(settings.kafka), settings.topics.input, starts, ends)
        accepted = Rest(handed_over, settled, cancelled, recalled, batch_settings, now_ms, moved)
        overdue = _overdue(store, cancelled, moved, superseded, origin)
        if repeating is not None:
            overdue = overdue.union(repeating.mapInArrow(as_left_rows(origin.shards), from_arrow_schema(LEFT_SCHEMA)))
        if (due_then := _left_of_moved(store, moved, origin)) is not None:
            overdue = overdue.union(due_then)
        ids = None
        if gives_names(batch_settings):
            named = records.mapInArrow(accepted.names(origin.overdue_bucket), from_arrow_schema(HOLDER_SCHEMA))
            if repeating is not None:
                named = named.union(as_holders(repeating, origin.overdue_bucket))
            ids = names_of(store, named, origin, not_there, ids_left(overdue), batch_settings.keeps_names)
        # The rest is chosen by what was read of the table, and sealed once.
        guard.check()
        rest = records.mapInArrow(accepted.messages(), from_arrow_schema(LEFT_SCHEMA)).union(overdue)
        resealed = seal_rest(store, rest, origin, writer_of_input(handed_over.origin.checkpoint), batch_settings, ids)
    if repeating is not None:
        repeating.unpersist()
    # 5. Switch over.
    guard.check()
    switch_over(settings, origin, store.spark, lease)
    return Rebuilt(resealed, ends, current.path if current.exists() else None)


def _recalled(settings: Settings, handed_over: HandedOver) -> OffsetBitmaps:
    """Return which messages release processes have recalled: an instant that was shortened may not tell."""
    found: dict[tuple[str, int], BitMap64] = {}
    with closing(RecalledMessages(settings, handed_over.origin.epoch, has_run=True)) as recalled:
        retry = BrokerRetry("the recalled topic", settings.kafka.outage_limit)
        recalled.read(handed_over.cutoff_ms)
        while not recalled.knows_all:
            # A commit is done before it is seen.
            retry.wait(BrokerUnreachable(f"{settings.recalled_topic} has an open transaction"))
            recalled.read(handed_over.cutoff_ms)
        for source, offsets in recalled.every():
            found.setdefault(source, BitMap64()).update(offsets)
    return found


def _taken(
    settings: Settings, handed_over: HandedOver, starts: Offsets, ends: Offsets, gone: Collection[str]
) -> OffsetBitmaps:
    """Return which records from `starts` up to `ends` forwarders have taken. The lanes must be closed.

    Of the topics that are `gone` nothing is read. Raises CheckpointMismatch if a forwarder has found that another is
    cut: new records would count as taken.
    """
    ids, epoch = handed_over.input_ids, handed_over.origin.epoch
    ranges = {
        (topic, int(number)): (starts[topic][number], end) for topic, own in ends.items() for number, end in own.items()
    }
    with closing(ClaimWatch(settings, 0, epoch, starts, ids)) as claims:
        claims.check_ends({}, {topic: own for topic, own in ids.items() if topic not in gone})
        return claims.taken({source: own for source, own in ranges.items() if source[0] in ids}, ids).offsets


def _buckets_of_ids(store: BucketTable) -> Iterator[int]:
    for kind in IdRows:
        yield from store.id_partitions(kind)


def _range(
    bounds: Bounds, handed_over: HandedOver, in_table: OffsetBitmaps, gone: Collection[str]
) -> tuple[Offsets, Offsets]:
    """Return the offsets from which, and up to which, records are read again: they may be in no bucket.

    The end is the highest offset that a marker or a bucket has. The new checkpoint reads what follows as new records:
    all records of a topic in place of one that is `gone`.
    """
    accepted = handed_over.ends
    for (topic, partition), offsets in in_table.items():
        if offsets:
            known = accepted.setdefault(topic, {})
            known[str(partition)] = max(known.get(str(partition), 0), offsets.max() + 1)
    refuse_cut(bounds, accepted, gone)
    starts, ends = dict.fromkeys(bounds, 0), dict.fromkeys(bounds, 0)
    for (topic, partition), (first, _) in bounds.items():
        if topic in gone:
            continue
        number = str(partition)
        start = max(first, handed_over.origin.offsets.get(topic, {}).get(number, 0))
        end = accepted.get(topic, {}).get(number, 0)
        starts[topic, partition] = start
        ends[topic, partition] = max(start, end)
    return as_offsets(starts), as_offsets(ends)


def refuse_cut(bounds: Bounds, accepted: Offsets, gone: Collection[str]) -> None:
    """Raise CheckpointMismatch if an input topic ends before the records that were accepted from it.

    New records that fill the gap have the ids of lost ones, and would count as accepted. Topics that are `gone` have a
    successor, which is read from its beginning.
    """
    for (topic, partition), (_, last) in bounds.items():
        end = accepted.get(topic, {}).get(str(partition), 0)
        if topic not in gone and end > last:
            raise CheckpointMismatch(
                f"{topic}/{partition} ends at offset {last}, but records up to {end} were accepted: "
                "the topic has lost its newest records. New records would get their ids, and be left out. Stop the "
                "publishers, create the topic again, and run this command with topics.skip_expired=true: see "
                "docs/operate/runbooks/input-topic-cut.md"
            )


def names_of(
    store: BucketTable,
    named: DataFrame,
    origin: CheckpointOrigin,
    cancelled: OffsetBitmaps,
    overdue: OffsetBitmaps,
    keeps_names: Callable[[str], bool],
) -> DataFrame:
    """Return the rows of `STORED_SCHEMA` for the names of what is accepted again, and for what they are taken from.

    Args:
        store: the table of sealed buckets.
        named: the messages that got names, of the records that are read again (`HOLDER_SCHEMA`).
        origin: the origin of the new checkpoint.
        cancelled: what was cancelled before.
        overdue: what waits in the table, and is due before the cutoff of `origin`.
        keeps_names: says of an input topic whether messages keep their names there.
    """
    stored = store.ids(IdRows.NAMED)
    if stored is not None:
        columns = ("name", *ID, "deliver_at_ms", "max_deliver_at_ms", "keeps", "bucket", "false AS is_left")
        named = named.union(stored.selectExpr(*columns))
    by_name = named.repartition("name").sortWithinPartitions("name", "partition", "offset")
    return by_name.mapInArrow(settled(origin, cancelled, overdue, keeps_names), from_arrow_schema(STORED_SCHEMA))


def _overdue(
    store: BucketTable, cancelled: OffsetBitmaps, moved: Moved, superseded: Superseded, origin: CheckpointOrigin
) -> DataFrame:
    """Return the messages that wait in the table below the new cutoff (`state.buckets.reseal.LEFT_SCHEMA`)."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for bucket, chunk in zip(batch.column("bucket").to_pylist(), batch.column("chunk"), strict=True):
                messages = decode_chunk(chunk.as_py())
                waiting = ~moved.handed_over.of_bucket(messages, bucket)
                waiting &= messages.column("deliver_at_ms").to_numpy() < origin.cutoff_ms
                if superseded:
                    waiting &= ~superseded.among(messages)
                left = messages.filter(pa.array(waiting))
                left = without_named(left, in_bitmaps(left, cancelled) | moved.are_gone(left, bucket))
                yield from left_rows(left, origin.shards)

    parts = {described_segment(row.asDict()).part for row in store.metadata()}
    return store.chunks(0, origin.cutoff_ms, parts).mapInArrow(run, from_arrow_schema(LEFT_SCHEMA))


def _left_of_moved(store: BucketTable, moved: Moved, origin: CheckpointOrigin) -> DataFrame | None:
    """Return what was moved, waits in the table, and is not handed over (`LEFT_SCHEMA`); None if nothing was found."""
    version = store.version()
    places = store.locate(ids_in(moved.perhaps_left), origin.overdue_bucket, 0, version)
    if not places.num_rows:
        return None
    chunks = store.chunks_at(places, version).select("bucket", "chunk")
    return chunks.mapInArrow(moved.left_in_table(origin.shards), from_arrow_schema(LEFT_SCHEMA))


def ids_left(left: DataFrame) -> OffsetBitmaps:
    """Return the ids of messages that are left (`LEFT_SCHEMA`)."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for chunk in batch.column("chunk"):
                yield from decode_chunk(chunk.as_py()).select(ID).cast(ID_SCHEMA).to_batches()

    return bitmaps_of(unpacked(packed(left, run).toLocalIterator()))


def index_of(store: BucketTable, version: int) -> MessageIndex:
    """Return the index of all messages in the table at `version`.

    It includes messages that are handed over until their part is deleted. Its time slots are as long as the longest in
    the metadata, or 1 ms without metadata. Raises BucketUnreadable if the metadata is damaged.
    """
    index = MessageIndex(max(precisions(store, version), default=0))
    for row in index_entries(store, version):
        index.add_entries(row["index_entries"], row["precision_bits"])
    return index
