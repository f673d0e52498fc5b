"""One checkpoint takes over from another: what the earlier left is sealed, then the new one is put in its place.

Each step leaves a state that the next try goes on from, whatever cuts it off.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from conf.errors import InvariantViolated
from conf.failpoints import failpoint
from conf.settings import Settings
from sinks.bucket_table import BucketTable
from sinks.internal_topics.lease import HeldLease
from sinks.internal_topics.progress import announce_origin
from state.buckets.reseal import resealed
from state.buckets.table_rows import METADATA_PART, STORED_SCHEMA
from state.checkpoint.batch_settings import BatchSettings
from state.checkpoint.origin import CheckpointOrigin
from streaming.checkpoint.checkpoint import Checkpoint


def seal_rest(
    store: BucketTable,
    rest: DataFrame,
    origin: CheckpointOrigin,
    checkpoint: str,
    cutoff_ms: int,
    batch_settings: BatchSettings,
) -> int:
    """Seal `rest` (`reseal.LEFT_SCHEMA`) into the bucket before the first of `origin`; return its messages.

    `checkpoint` is the id of the one that left it: for that it is done once (`rest_bucket`). Time partitions are those
    of a seal at `cutoff_ms`. Raises InvariantViolated, with nothing sealed, if any were lost or doubled on the way.
    """
    rest = rest.persist()
    try:
        count = int(rest.selectExpr("coalesce(sum(count), 0)").collect()[0][0])
        if count:
            rows = rest.repartition(origin.shards, "shard").mapInArrow(
                resealed(origin.overdue_bucket, cutoff_ms, batch_settings), from_arrow_schema(STORED_SCHEMA)
            )
            rows = rows.persist()
            try:
                sealed = rows.where(f"part = '{METADATA_PART}'").selectExpr("sum(count)").collect()[0][0]
                if sealed != count:
                    raise InvariantViolated(f"{count} messages were left, and {sealed} of them would be sealed")
                store.append(rows, _writer_of_rest(checkpoint), origin.overdue_bucket)
            finally:
                rows.unpersist()
    finally:
        rest.unpersist()
    failpoint("rest-sealed")
    return count


def rest_bucket(store: BucketTable, checkpoint: str) -> int | None:
    """Return the bucket that holds what `checkpoint` left, or None if it is not sealed yet."""
    return store.newest_of(_writer_of_rest(checkpoint))


def _writer_of_rest(checkpoint: str) -> str:
    # Not the id itself, under which the batches seal.
    return f"{checkpoint}-rest"


def switch_over(
    settings: Settings,
    origin: CheckpointOrigin,
    successor: Checkpoint,
    current: Checkpoint,
    aside: str | None,
    lease: HeldLease,
) -> None:
    """Let `successor` be born, announce it, and move it to the place of `current`, which is moved to `aside` if given.

    Raises ApplicationHeld, with the rest undone, as soon as another process is known to have taken the lease.
    """
    lease.check_now()
    successor.remove()
    successor.initialize(origin)
    lease.check_now()
    announce_origin(settings, origin)
    failpoint("successor-born")
    if aside is not None:
        lease.check_now()
        current.move(aside)
    failpoint("predecessor-moved")
    lease.check_now()
    successor.move(current.path)
