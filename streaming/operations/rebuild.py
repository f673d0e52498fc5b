"""`delayline rebuild`: a new checkpoint in place of a lost one, from markers, table and input.

| message | known by |
| --- | --- |
| staged | the markers in the progress topic |
| sealed, or cancelled | the message ids in the table |
| made due at once, and staged then | these ids, and the markers |
| took over the due time of a message that it replaced | these ids have its due time, by which the others count |
| accepted, and neither | was only in the mutable buckets of the lost checkpoint: it is read from the input again |
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass, replace

import pyarrow as pa
from pyroaring import BitMap64
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from conf.errors import CheckpointMismatch, UsageError
from conf.kafka.options import java_options
from conf.settings import Settings
from sinks.buckets.bucket_table import ALL_BUCKETS, BucketTable
from sinks.buckets.merge_commits import merge_token
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
from state.buckets.reseal import LEFT_SCHEMA
from state.buckets.table_rows import STORED_SCHEMA
from state.checkpoint.batch_settings import batch_settings_from
from state.checkpoint.input_ids import shared_ids, with_left_out, with_present
from state.checkpoint.origin import CheckpointOrigin, Offsets
from state.checkpoint.staged import newest_checkpoint
from state.index.offset_bitmaps import bitmaps_of, in_bitmaps
from state.name_holders import HOLDER_SCHEMA, NamesLeft
from state.names import KEEP_TIME
from streaming.checkpoint.checkpoint import Checkpoint
from streaming.checkpoint.current import current_checkpoint
from streaming.checkpoint.recreated_inputs import begun_ids, recreated_inputs, refuse_returned
from streaming.checkpoint.switch_over import (
    begin_rest,
    is_announced_only,
    rest_bucket,
    rest_partitions,
    seal_rest,
    switch_over,
    writer_of_birth,
    writer_of_following,
    writer_of_input,
    writer_of_state,
)
from streaming.operations.interrupted_rest import sealed_rest
from streaming.operations.moved import moved_in, retimed_in, with_ids, without_ids
from streaming.operations.reread import (
    decided_offsets,
    recalled_messages,
    refuse_cut,
    reread_range,
    taken_records,
    warn_of_left_out,
)
from streaming.operations.rest import Rest
from streaming.operations.schedules import (
    Superseded,
    as_holders,
    as_left_rows,
    lacks_following,
    left_in_table,
    superseded_in,
)
from streaming.operations.table_contents import (
    buckets_of_ids,
    ids_left,
    index_of,
    left_of_moved,
    names_of,
    overdue_in_table,
    taken_over_in,
)
from streaming.processes.drain import drain
from streaming.spark.exclusive_session import exclusive_session
from streaming.storage.checks import check_storage
from streaming.storage.failures import translate_storage_errors
from streaming.storage.guarded_log import guarded_log
from streaming.storage.paths import buckets_path

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rebuilt:
    """The result of a rebuild.

    `resealed` counts the messages that were accepted again from the input, or were overdue in the table. `offsets` is
    where the new checkpoint begins to read. `replaced` is where the old checkpoint is, or None if there was none.
    """

    resealed: int
    offsets: Offsets
    replaced: str | None


def rebuild(settings: Settings, discard: bool, now_ms: int) -> Rebuilt:
    """Make a new checkpoint for a job that lost its own. `discard` replaces one that still exists.

    `now_ms` (epoch ms) is taken as the time at which the records were accepted. Raises UsageError if there is a
    checkpoint and not `discard`, CheckpointMismatch if the progress topic does not show which messages are staged, or
    the ids of an input topic do not show which are accepted,
    BucketUnreadable if the table is damaged, ApplicationHeld while the job runs.
    """
    check_storage(settings)
    check_topics(settings)
    with exclusive_session(settings, "rebuild") as (spark, lease):
        with translate_storage_errors(settings):
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

    1. Close the lanes of forwarders, fence the writers of the old job, release all staged messages, and read from the
       markers which these are.
    2. Fence what the old job may still write to the table, and read from the table's metadata what is sealed. From here
       on, the old checkpoint cannot continue.
    3. Choose the origin of the new checkpoint.
    4. Accept the rest of the input again, and seal it in one bucket, with the overdue messages of the table. Cancel
       messages that wait under the name of another message.
    5. Switch over to the new checkpoint.
    """
    # 1. Read the markers.
    claims = [writer.claim for writer in close_lanes(settings, lease.check_now).values()]
    fence_writers(settings, partition_counts(settings, [settings.progress_topic])[settings.progress_topic])
    drain(settings)
    staged = newest_checkpoint(read_markers(settings))
    if staged is None:
        raise CheckpointMismatch(
            f"the progress topic {settings.progress_topic} does not have a marker for every shard, so "
            "nothing records which messages are staged. `delayline run --fresh` delivers all messages again "
            "that are still in the input topics"
        )
    present = input_ids(settings)
    known = begun_ids(settings, staged.input_ids, present, staged.origin.epoch)
    gone = recreated_inputs(settings, known, present=present)
    if is_announced_only(store.spark, settings, current, staged.origin, lease):
        # An earlier try has announced their new ids. Nothing was accepted from the new topics yet.
        gone += [topic for topic in shared_ids(known) if not any(staged.ends.get(topic, {}).values())]
    if shared := [topic for topic in shared_ids(known) if topic not in gone]:
        raise CheckpointMismatch(
            f"{', '.join(shared)} was deleted and created again since the job read the first topic of that "
            "name. Messages of both topics have the same ids, so the table does not show which new records "
            "are accepted. Run `delayline run --fresh` with another storage.path: it delivers all messages "
            "again that are still in the input topics. Keep the old folder"
        )
    # Before the fences, behind which nothing else goes on.
    refuse_returned(settings, known, staged.newest.ends or staged.origin.offsets)
    refuse_cut(input_bounds(settings), staged.ends, gone)
    warn_of_left_out(staged, settings.topics.input)
    # 2. Read the table.
    guard = guarded_log(store.spark, settings)
    guard.restore(store)
    store.create(from_arrow_schema(STORED_SCHEMA))
    store.check_log()
    guard.take_over(store, merge_token(store, lease.fencing_token))
    lease.note_fenced()
    # A batch of the old job, or a rescale, may be paused between its check of the lease and its commit.
    before = staged.origin.checkpoint
    for writer_id in (before, writer_of_following(before), writer_of_state(before)):
        store.fence(writer_id)
    bounds = input_bounds(settings)
    sealed_before = rest_bucket(store, before)
    inputs = settings.topics.input
    sealed_in = None if sealed_before is None else sealed_rest(store, sealed_before, inputs, staged, bounds, gone)
    if sealed_before is not None and sealed_in is None:
        # It stays until it is replaced: its records may expire before a next try.
        store = store.without(rest_partitions(sealed_before))
    index = index_of(store, store.version())
    cancelled, moved = moved_in(store.ids_before(IdRows.CANCELLED, ALL_BUCKETS), staged)
    # These no longer wait where they were. But a moved message may not be staged yet.
    not_there = with_ids(cancelled, moved.ids)
    retimed = retimed_in(store.ids_before(IdRows.RETIMED, ALL_BUCKETS), staged)
    stored = with_ids(not_there, bitmaps_of([retimed]))
    recalled = recalled_messages(settings, staged)
    none = BitMap64()
    seen = {source: index.offsets_of(*source) | stored.get(source, none) for source in bounds}
    decided = decided_offsets(bounds, claims, present, staged.origin.epoch)
    starts, ends = reread_range(bounds, staged, seen, decided, gone)
    done = without_ids(not_there, moved.perhaps_left)
    in_table = {source: index.offsets_of(*source) | done.get(source, none) for source in bounds}
    read_ids = {topic: [own] for topic, own in present.items()} | known
    taken = taken_records(settings, read_ids, staged.origin.epoch, starts, ends, gone)
    settled = {source: own | taken.get(source, none) | recalled.get(source, none) for source, own in in_table.items()}
    is_older = lacks_following(store, staged)
    repeating = left_in_table(store, staged, with_ids(not_there, recalled), sealed_in, is_older)
    if repeating is not None:
        repeating = repeating.persist()
    superseded = Superseded() if repeating is None else superseded_in(repeating)
    # 3. Choose the origin. The rest gets the next free bucket number, unless an earlier try has sealed it already.
    numbers = [*(row["bucket"] for row in store.metadata()), *buckets_of_ids(store)]
    if sealed_before is not None:
        numbers.append(sealed_before)
    next_bucket = 1 + max([staged.origin.bucket_of(staged.last_batch), *numbers])
    bucket = begin_rest(store, next_bucket, inputs) if sealed_in is None else sealed_in
    origin = CheckpointOrigin(
        checkpoint=str(uuid.uuid4()),
        generation=staged.origin.generation + 1,
        shards=settings.bucket.shards,
        first_bucket=bucket + 1,
        # Messages that wait below the cutoff are sealed again, without the superseded ones.
        cutoff_ms=max(staged.cutoff_ms, superseded.end_ms),
        offsets=ends,
        input_ids=with_left_out(with_present(known, present), settings.topics.input, staged.ends),
        epoch=staged.origin.epoch,
    )
    # 4. Seal the rest.
    resealed = 0
    if sealed_in is None:
        counts, most_bytes = offered_topics(settings), dead_letter_bytes(settings)
        batch_settings = batch_settings_from(settings, counts, range(origin.shards), origin, most_bytes)
        records = read_range(store.spark, java_options(settings.kafka), settings.topics.input, starts, ends)
        # Mostly nobody asks for these again.
        retimed = retimed.filter(pa.array(~in_bitmaps(retimed, with_ids(in_table, cancelled))))
        accepted = Rest(staged, settled, cancelled, recalled, batch_settings, now_ms, moved, retimed, is_older)
        overdue = overdue_in_table(store, cancelled, moved, superseded, origin)
        if repeating is not None:
            overdue = overdue.union(repeating.mapInArrow(as_left_rows(origin.shards), from_arrow_schema(LEFT_SCHEMA)))
        if (due_then := left_of_moved(store, moved, origin)) is not None:
            overdue = overdue.union(due_then)
        ids = None
        if gives_names(batch_settings):
            names_left = NamesLeft(origin, not_there, ids_left(overdue), batch_settings.name_mode)

            def named() -> DataFrame:
                own = records.mapInArrow(accepted.names(origin.overdue_bucket), from_arrow_schema(HOLDER_SCHEMA))
                return own if repeating is None else own.union(as_holders(repeating, origin.overdue_bucket))

            if KEEP_TIME in map(batch_settings.name_mode, settings.topics.input):
                # By these, more is left, with its name.
                taken_over = taken_over_in(store, named(), names_left)
                accepted = replace(accepted, retimed=pa.concat_tables([retimed, taken_over]))
            ids = names_of(store, named(), names_left)
        # The rest is chosen by what was read of the table, and sealed once.
        guard.check()
        rest = records.mapInArrow(accepted.messages(), from_arrow_schema(LEFT_SCHEMA)).union(overdue)
        resealed = seal_rest(store, rest, origin, writer_of_input(before), batch_settings, ids, sealed_before)
    if repeating is not None:
        repeating.unpersist()
    # 5. Switch over.
    guard.check()
    store.fence(writer_of_birth(origin.checkpoint))
    switch_over(settings, origin, store.spark, lease)
    return Rebuilt(resealed, ends, current.path if current.exists() else None)
