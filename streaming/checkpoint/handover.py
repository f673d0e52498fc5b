"""One checkpoint takes over from another: what the earlier left is sealed, then the new one is put in its place.

Each step leaves a state that the next try goes on from, whatever cuts it off.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from conf.errors import BucketUnreadable
from conf.failpoints import failpoint
from conf.settings import Settings
from sinks.bucket_table import BucketStore
from sinks.internal_topics.lease import HeldLease
from sinks.internal_topics.progress import announce_birth
from state.buckets.reseal import resealed
from state.buckets.table_rows import METADATA_PART, STORED_SCHEMA
from state.checkpoint.batch_settings import BatchRules
from state.checkpoint.origin import Birth
from streaming.checkpoint.checkpoint import Checkpoint


def seal_rest(
    store: BucketStore, rest: DataFrame, birth: Birth, checkpoint: str, cutoff_ms: int, rules: BatchRules
) -> int:
    """Seal `rest` (`reseal.LEFT_SCHEMA`) into the bucket before the first of `birth`; return its messages.

    `checkpoint` is the id of the one that left it: for that it is done once (`rest_bucket`). Time partitions are those
    of a seal at `cutoff_ms`. Raises BucketUnreadable, with nothing sealed, if any were lost or doubled on the way.
    """
    rest = rest.persist()
    try:
        count = int(rest.selectExpr("coalesce(sum(count), 0)").first()[0])
        if count:
            rows = rest.repartition(birth.shards, "shard").mapInArrow(
                resealed(birth.overdue_bucket, cutoff_ms, rules), from_arrow_schema(STORED_SCHEMA)
            )
            rows = rows.persist()
            try:
                sealed = rows.where(f"part = '{METADATA_PART}'").selectExpr("sum(count)").first()[0]
                if sealed != count:
                    raise BucketUnreadable(f"{count} messages were left, and {sealed} of them would be sealed")
                store.append(rows, _writer_of_rest(checkpoint), birth.overdue_bucket)
            finally:
                rows.unpersist()
    finally:
        rest.unpersist()
    failpoint("rest-sealed")
    return count


def rest_bucket(store: BucketStore, checkpoint: str) -> int | None:
    """Return the bucket that holds what `checkpoint` left, or None if it is not sealed yet."""
    return store.newest_of(_writer_of_rest(checkpoint))


def _writer_of_rest(checkpoint: str) -> str:
    # Not the id itself, under which the batches seal.
    return f"{checkpoint}-rest"


def put_in_place(
    settings: Settings, birth: Birth, successor: Checkpoint, current: Checkpoint, aside: str | None, lease: HeldLease
) -> None:
    """Let `successor` be born, announce it, and move it to the place of `current`, which is moved to `aside` if given.

    Raises ApplicationHeld, with the rest undone, as soon as another process is known to have taken the lease.
    """
    lease.check_now()
    successor.remove()
    successor.be_born(birth)
    lease.check_now()
    announce_birth(settings, birth)
    failpoint("successor-born")
    if aside is not None:
        lease.check_now()
        current.move(aside)
    failpoint("predecessor-moved")
    lease.check_now()
    successor.move(current.path)
