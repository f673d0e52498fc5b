"""Reads the status of an application from its storage, whether the job runs or not. Writes nothing, locks nothing.

All values describe one committed batch. If the running job removes that batch's files meanwhile, the reader starts
again with a newer batch.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import SparkSession

from conf.settings import Settings
from sinks.buckets.bucket_table import BucketTable
from state.due_spans import LATER, SPANS_MS
from streaming.checkpoint.current import current_checkpoint
from streaming.checkpoint.mutable_buckets import MutableBucket, dues_by_shard, mutable_buckets
from streaming.monitor.estimate import WaitingEstimate
from streaming.status.broker import ask_broker
from streaming.status.ready import EVERY_BATCH
from streaming.status.sealed import SealedBuckets, sealed_buckets
from streaming.status.status import Status, first_of, histogram_of, shard_statuses
from streaming.status.storage_reader import consistent_versions, reader_session, retry_while_files_vanish
from streaming.storage.paths import buckets_path, storage_path


def read_status(settings: Settings, clock_ms: Callable[[], int]) -> Status:
    """Read the status with a separate Spark session. `clock_ms` returns the current time, epoch ms.

    Raises StorageFailed if the checkpoint or the tables cannot be read in a few tries; otherwise the errors of
    `reader_session`.
    """
    with reader_session(settings) as spark:
        return retry_while_files_vanish(lambda: _read(spark, settings, clock_ms), storage_path(settings))


def _read(spark: SparkSession, settings: Settings, clock_ms: Callable[[], int]) -> Status:
    checkpoint, store = current_checkpoint(spark, settings), BucketTable(spark, buckets_path(settings))
    last_committed, version = consistent_versions(checkpoint, store)
    last_planned = checkpoint.last_planned()
    committed = None if last_committed is None else checkpoint.planned(last_committed)
    in_flight = last_planned is not None and (last_committed is None or last_planned > last_committed)
    planned = checkpoint.planned(last_planned) if in_flight and last_planned is not None else None
    # Taken before the counting, which may take long: the counts describe this moment.
    now_ms = clock_ms()
    if committed is not None:
        broker = ask_broker(settings, committed.offsets, committed.batch_id)
    else:
        is_new = checkpoint.is_initialized()
        last_batch = EVERY_BATCH if is_new and planned is None else -1
        broker = ask_broker(settings, checkpoint.origin.offsets if is_new else {}, last_batch)
    mutable: list[MutableBucket] = []
    sealed = SealedBuckets(store, None, [])
    if committed is not None:
        batch_id, cutoff_ms = committed.batch_id, committed.cutoff_ms
        last_bucket = checkpoint.origin.bucket_of(batch_id)
        # Read the table before the state: the job keeps the state of its last few batches, but deletes messages of
        # buckets that are staged.
        if version is not None:
            sealed = sealed_buckets(store, version, last_bucket, cutoff_ms)
        mutable = mutable_buckets(spark, checkpoint.path, batch_id, checkpoint.settings_history().at(batch_id))
    elif version is not None and checkpoint.is_initialized():
        # A checkpoint that `rescale` or `rebuild` has made goes on with buckets of the one before.
        origin = checkpoint.origin
        sealed = sealed_buckets(store, version, origin.overdue_bucket, origin.cutoff_ms, origin.overdue_bucket)
    ready = broker.ready or []
    segments, histogram = sealed.segments, histogram_of(ready, now_ms)
    for bucket in mutable:
        histogram.add_instants(bucket.dues_ms)
    sealed.count_into(histogram)
    # Exact: nothing is among these that does not wait.
    waiting = WaitingEstimate(dues_by_shard(mutable, now_ms), segments, cutoff_ms=0)
    shards = shard_statuses(waiting.by_shard(settings.bucket.shards), ready)
    return Status(
        read_from="storage",
        checkpoint=checkpoint.path,
        now_ms=now_ms,
        committed=committed,
        planned=planned,
        shards=shards,
        merged=waiting.merged,
        mutable_bytes=waiting.mutable_bytes,
        sealed_bytes=waiting.sealed_bytes,
        next_due_ms=first_of(waiting.next_due_ms, *(shard.next_due_ms for shard in shards)),
        buckets=len({segment.bucket for segment in segments}),
        segments=len(segments),
        due=dict(zip([*SPANS_MS, LATER], histogram.counts, strict=True)),
        due_is_estimated=histogram.estimated,
        broker=broker,
    )
