"""`delayline rescale`: move a stopped job to another number of shards, with a new checkpoint.

Spark fixes the number of state partitions when a checkpoint begins. So `rescale` seals the state into a bucket, and
makes a checkpoint without state that begins at the same input offsets and the same cutoff.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from conf.errors import UsageError
from conf.settings import Settings
from sinks.buckets.bucket_table import BucketTable
from sinks.buckets.merge_commits import merge_token
from sinks.internal_topics.lease import HeldLease
from sinks.internal_topics.progress import read_markers
from sinks.lanes.opening import close_lanes
from sinks.ready_log.writer import fence_writers
from sinks.topics.topics import ensure_shards
from state.buckets.reseal import LEFT_SCHEMA, left_in_state
from state.buckets.table_rows import STORED_SCHEMA
from state.checkpoint.batch_settings import BatchSettings
from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.progress import Progress, refuse_older
from state.group_keys import state_partitions
from streaming.checkpoint.checkpoint import Checkpoint
from streaming.checkpoint.current import current_checkpoint
from streaming.checkpoint.refusals import refuse_lost_plan, refuse_missing_table, refuse_older_table, refuse_rebuilt
from streaming.checkpoint.switch_over import (
    check_rest,
    is_repaired,
    rest_bucket,
    seal_rest,
    switch_over,
    writer_of_birth,
    writer_of_state,
)
from streaming.job.lanes.lane_start import without_forwarders
from streaming.job.unfinished_batch import finish_planned
from streaming.processes.drain import drain
from streaming.spark.exclusive_session import exclusive_session
from streaming.storage.checks import check_storage
from streaming.storage.failures import translate_storage_errors
from streaming.storage.guarded_log import GuardedLog, guarded_log
from streaming.storage.paths import buckets_path


@dataclass(frozen=True)
class Rescaled:
    """The result of a rescale: the shard counts, how many messages it sealed, and where the old checkpoint is."""

    before: int
    after: int
    sealed: int
    replaced: str


def rescale(settings: Settings, shards: int) -> Rescaled:
    """Move the application to `shards` shards. Ignores `bucket.shards` of `settings`.

    Raises UsageError if there is nothing to do, CheckpointMismatch, CheckpointUnreadable or CheckpointVersion if the
    checkpoint cannot be used, BucketUnreadable if what an earlier try has sealed is damaged, ApplicationHeld while the
    job runs.
    """
    check_storage(settings)
    with exclusive_session(settings, "rescale") as (spark, lease), translate_storage_errors(settings):
        return _rescale(spark, settings, shards, lease)


def with_shards(settings: Settings, shards: int) -> Settings:
    """Return `settings` with another `bucket.shards`."""
    return settings.model_copy(update={"bucket": settings.bucket.model_copy(update={"shards": shards})})


def _rescale(spark: SparkSession, settings: Settings, shards: int, lease: HeldLease) -> Rescaled:
    """Rescale the checkpoint. After a crash, a second try recognises the steps that are done.

    1. Refuse a checkpoint that another has replaced, or that lost its newest batches, and a lost or older table. Guard
       the table's log.
    2. Create the missing partitions of the progress topic.
    3. Replay the batch that was cut off, and retire the checkpoint.
    4. Close the lanes of forwarders, fence the writers of the old job, and release all staged messages: each
       message then goes to another shard, which does not know what is ready in its old one.
    5. Seal the state, and switch over to a new checkpoint.
    """
    current = current_checkpoint(spark, settings, lease.check_now)
    if not current.exists():
        raise UsageError(f"no checkpoint at {current.path}. Set bucket.shards and start the job")
    before = current.origin
    if before.shards == shards and not current.is_retired():
        raise UsageError(f"the checkpoint at {current.path} already has {shards} shards")
    # 1. Refuse such a checkpoint, and guard the log.
    markers, planned = read_markers(settings), current.last_planned()
    refuse_replaced(current, markers, planned)
    store = BucketTable(spark, buckets_path(settings), lease.check, lease.check_now)
    guard = guarded_log(spark, settings)
    refuse_missing_table(current, guard, planned)
    guard.restore(store)
    # The job may have begun no batch yet.
    store.create(from_arrow_schema(STORED_SCHEMA))
    store.check_log()
    refuse_rebuilt(current, store)
    # Step 3 would not: it finds nothing to replay. The state would get the bucket number of the lost batch.
    refuse_lost_plan(current, store, planned)
    refuse_older_table(current, store, markers)
    if lease.after_a_crash:
        guard.take_over(store, merge_token(store, lease.fencing_token))
        lease.note_fenced()
    # 2. Create partitions of the progress topic.
    ensure_shards(settings, shards)
    # 3. Replay and retire. The old checkpoint must not run again: its state will be in a bucket as well.
    if not current.is_retired():
        spark.conf.set("spark.sql.shuffle.partitions", str(state_partitions(before.shards)))
        finish_planned(spark, without_forwarders(with_shards(settings, before.shards)), current, lease)
        # All that step 5 reads: after a refusal there, this command would be the only one that goes on from it.
        current.check_logs()
        current.settings_history()
        current.retire()
    # 4. Fence and release.
    close_lanes(settings, lease.check_now)
    fence_writers(settings, max(before.shards, shards))
    drain(with_shards(settings, before.shards))
    # 5. Seal and switch over.
    return _stage(store, guard, settings, shards, current, lease)


def refuse_replaced(current: Checkpoint, markers: Iterable[Progress | None], planned: int | None) -> None:
    """Raise CheckpointMismatch if a marker is newer than the checkpoint, as when a newer one's pointer is lost.

    An earlier try may have announced the next checkpoint. That has staged nothing, since the job refuses to start.
    """
    origin = current.origin
    for marker in markers:
        if marker is None:
            continue
        batch = marker.batch
        is_announced = batch.origin.generation == origin.generation + 1 and batch.batch_id < 0
        if not (is_announced and current.is_retired()):
            refuse_older(marker, origin, -1 if planned is None else planned)


def _stage(
    store: BucketTable, guard: GuardedLog, settings: Settings, shards: int, current: Checkpoint, lease: HeldLease
) -> Rescaled:
    before, committed = current.origin, current.last_committed()
    origin = replace(before, checkpoint=str(uuid.uuid4()), generation=before.generation + 1, shards=shards)
    sealed = 0
    if committed is not None:
        last = current.planned(committed)
        # The state gets the next bucket number of the old checkpoint. The new checkpoint begins at the number after it.
        first_bucket = 1 + _bucket_of_state(store, before.checkpoint, before.first_bucket + committed + 1)
        ids = current.settings_history().newest.input_ids
        origin = replace(
            origin, first_bucket=first_bucket, cutoff_ms=last.cutoff_ms, offsets=last.offsets, input_ids=ids
        )
        sealed = _seal_state(store, current, committed, origin)
    guard.check()
    store.fence(writer_of_birth(origin.checkpoint))
    switch_over(settings, origin, store.spark, lease)
    return Rescaled(before.shards, shards, sealed, current.path)


def _bucket_of_state(store: BucketTable, checkpoint: str, bucket: int) -> int:
    """Return the bucket for the state of `checkpoint`: `bucket`, or the one in which an earlier try has sealed it."""
    sealed = rest_bucket(store, checkpoint)
    if sealed is None:
        return bucket
    if is_repaired(store, sealed):
        # The state may have all of it. The rest stays until it is replaced.
        return sealed + 1
    check_rest(store, sealed)
    return sealed


def _seal_state(store: BucketTable, current: Checkpoint, committed: int, origin: CheckpointOrigin) -> int:
    batch_settings: BatchSettings = current.settings_history().newest
    state = store.spark.read.format("statestore").option("batchId", committed).load(current.path)
    rest = state.selectExpr("value.groupState.bucket AS bucket").mapInArrow(
        left_in_state(origin.shards), from_arrow_schema(LEFT_SCHEMA)
    )
    # Under the id of the old checkpoint: a second try finds it sealed, even with another number of shards.
    checkpoint = current.origin.checkpoint
    replaced = rest_bucket(store, checkpoint)
    return seal_rest(store, rest, origin, writer_of_state(checkpoint), batch_settings, replaced=replaced)
