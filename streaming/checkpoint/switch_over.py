"""The switch from one checkpoint to another: seal the messages of the earlier one, then switch to the new one.

Each step can be cut off. The next try goes on from the state that it left.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from conf.errors import CheckpointMismatch, InvariantViolated
from conf.failpoints import failpoint
from conf.settings import Settings
from sinks.buckets.bucket_table import BucketTable
from sinks.internal_topics.lease import HeldLease
from sinks.internal_topics.progress import announce_origin
from state.buckets.parts import IS_METADATA, IdRows, chunks_of, metadata_of, sealed_part
from state.buckets.reseal import resealed
from state.buckets.table_rows import STORED_SCHEMA
from state.checkpoint.batch_settings import BatchSettings
from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.progress import InTable
from state.order import ORDER
from streaming.checkpoint.checkpoint import Checkpoint
from streaming.checkpoint.current import checkpoint_of, make_current
from streaming.storage.paths import pointers_path


def seal_rest(
    store: BucketTable,
    rest: DataFrame,
    origin: CheckpointOrigin,
    writer_id: str,
    batch_settings: BatchSettings,
    ids: DataFrame | None = None,
    replaced: int | None = None,
) -> int:
    """Seal the waiting messages that a checkpoint leaves, in the bucket before the first of `origin`.

    Args:
        store: the table of sealed buckets.
        rest: the messages (`reseal.LEFT_SCHEMA`).
        origin: the origin of the new checkpoint.
        writer_id: `writer_of_state` or `writer_of_input` of the checkpoint that leaves them. It seals each
            bucket once.
        batch_settings: how segments are cut.
        ids: the rows of their names, and of what is cancelled with them (`STORED_SCHEMA`), if any has a name.
        replaced: the bucket of an earlier rest of the checkpoint, if any. Its rows are removed in the same commit.

    Returns the number of messages. Raises InvariantViolated, with nothing sealed, if messages would be lost or doubled,
    and ApplicationHeld if another process has fenced the writer.
    """
    rest = rest.persist()
    try:
        count = int(rest.selectExpr("coalesce(sum(count), 0)").collect()[0][0])
        # Names may be all that is left.
        if count or ids is not None or replaced is not None:
            ordered = rest.repartition(origin.shards, "shard").sortWithinPartitions("shard", *ORDER)
            rows = ordered.mapInArrow(resealed(origin.overdue_bucket, batch_settings), from_arrow_schema(STORED_SCHEMA))
            rows = rows.persist()
            try:
                sealed = rows.where(IS_METADATA).selectExpr("coalesce(sum(count), 0)").collect()[0][0]
                if sealed != count:
                    raise InvariantViolated(f"{count} messages were left, but {sealed} would be sealed")
                bucket = origin.overdue_bucket
                partitions = set() if replaced is None else rest_partitions(replaced) | rest_partitions(bucket)
                store.append(rows if ids is None else rows.union(ids), writer_id, bucket, partitions)
            finally:
                rows.unpersist()
    finally:
        rest.unpersist()
    failpoint("rest-sealed")
    return count


def rest_bucket(store: BucketTable, checkpoint: str) -> int | None:
    """Return the number of the bucket in which the rest of `checkpoint` is sealed, or None if it is not."""
    sealed = (store.newest_of(writer_id(checkpoint)) for writer_id in (writer_of_state, writer_of_input))
    return max((bucket for bucket in sealed if bucket is not None), default=None)


def rest_partitions(bucket: int) -> set[str]:
    """Return the Delta partitions of the rest of a checkpoint that is sealed in `bucket`."""
    part = sealed_part(bucket)
    return {chunks_of(part), metadata_of(part), *(kind.partition(bucket) for kind in IdRows)}


def is_repaired(store: BucketTable, bucket: int) -> bool:
    """Return whether `repair` has removed messages while `bucket` had the rest of a checkpoint.

    The rest was chosen by what the table had. So it should be sealed again, in a later bucket.
    """
    return store.is_fenced(writer_of_repaired_rest(bucket))


def has_other_inputs(store: BucketTable, bucket: int, checkpoint: str, inputs: Collection[str]) -> bool:
    """Return whether `bucket` has the rest of `checkpoint` that was accepted from other topics than `inputs`."""
    is_of_input = store.newest_of(writer_of_input(checkpoint)) == bucket
    return is_of_input and not store.is_fenced(_writer_of_rest_of(bucket, inputs))


def begin_rest(store: BucketTable, bucket: int, inputs: Collection[str]) -> int:
    """Return the bucket for a rest that is accepted from topics `inputs`: `bucket`, or a later one.

    A try with other inputs, which was cut off before it sealed anything, may have begun the bucket.
    """
    while store.is_fenced(_writer_of_rest(bucket)) and not store.is_fenced(_writer_of_rest_of(bucket, inputs)):
        bucket += 1
    for writer_id in (_writer_of_rest(bucket), _writer_of_rest_of(bucket, inputs)):
        store.fence(writer_id)
    return bucket


def check_rest(store: BucketTable, bucket: int) -> None:
    """Read the rest of a checkpoint that an earlier try has sealed in `bucket`. Raises the errors of Spark.

    Its newest files may be lost if the power failed. After the switch, it could not be sealed again.
    """
    rows = store.rows().where(F.col("part").isin(sorted(rest_partitions(bucket))))
    rows.agg(F.max(F.xxhash64(*STORED_SCHEMA.names))).collect()


# None of these is the checkpoint's id itself: the batches seal under that.
def writer_of_following(checkpoint: str) -> str:
    """Return the writer, in the table, of the occurrences that follow the ones staged by batches of `checkpoint`."""
    return f"{checkpoint}-following"


def in_table(store: BucketTable, checkpoint: str) -> InTable:
    """Return the newest batches of `checkpoint` in the table."""
    newest = (store.newest_of(writer_id) for writer_id in (checkpoint, writer_of_following(checkpoint)))
    return InTable(*(-1 if each is None else each for each in newest))


def writer_of_repair(checkpoint: str) -> str:
    """Return the writer that is fenced once `repair` has removed messages that repeat from the table."""
    return f"{checkpoint}-repair"


def writer_of_repaired_rest(bucket: int) -> str:
    """Return the writer that is fenced before `repair` removes messages while `bucket` has the rest of a checkpoint.

    Not named by the checkpoint: once the next one is announced, the markers do not have the one before.
    """
    return f"rest-{bucket}-repaired"


def _writer_of_rest(bucket: int) -> str:
    """Return the writer that is fenced before the rest of a checkpoint is accepted again for `bucket`."""
    return f"rest-{bucket}-begun"


def _writer_of_rest_of(bucket: int, inputs: Collection[str]) -> str:
    """Return the writer that is fenced too if that rest is of topics `inputs`."""
    names = "\0".join(sorted(inputs)).encode()
    return f"rest-{bucket}-of-{hashlib.sha256(names).hexdigest()[:16]}"


def writer_of_birth(checkpoint: str) -> str:
    """Return the writer that is fenced before `checkpoint` replaces another: a copy from before lacks the fence."""
    return f"{checkpoint}-born"


def newest_sealed(store: BucketTable, checkpoint: str) -> int:
    """Return the newest batch of `checkpoint` that has stored rows in the table, or -1."""
    return max(in_table(store, checkpoint))


def is_older(store: BucketTable, origin: CheckpointOrigin, known: InTable) -> bool:
    """Return whether the table is older than the checkpoint of `origin`: it is a copy, or was created again.

    `known` is what the table has had, as far as the markers of the checkpoint know.
    """
    # A checkpoint that replaces none, after `--fresh` too, begins with bucket 0 and an empty table.
    is_unborn = origin.first_bucket > 0 and not store.is_fenced(writer_of_birth(origin.checkpoint))
    found = in_table(store, origin.checkpoint)
    return is_unborn or found.sealed < known.sealed or found.followed < known.followed


def writer_of_state(checkpoint: str) -> str:
    """Return the writer, in the table, of the rest of `checkpoint` that `rescale` seals from its state."""
    return f"{checkpoint}-rest"


def writer_of_input(checkpoint: str) -> str:
    """Return the writer, in the table, of the rest of `checkpoint` that `rebuild` accepts again from the input.

    Not the one of `rescale`, which `rebuild` fences.
    """
    return f"{checkpoint}-rest-of-input"


def switch_over(settings: Settings, origin: CheckpointOrigin, spark: SparkSession, lease: HeldLease) -> None:
    """Switch over from the current checkpoint to a new one, which begins with `origin`.

    1. Write the origin, in the folder of its generation.
    2. Announce the origin in the progress topic. A job that runs from the checkpoint before finds it there, and stops.
    3. Write the pointer to the new checkpoint.

    Asks the broker before each step that this process still holds the lease, and again once it has fenced whoever may
    announce. The checkpoint before stays in its folder.

    Raises ApplicationHeld, without the remaining steps, if another process has taken the lease; CheckpointMismatch if
    there is a newer checkpoint than that before.
    """
    successor = checkpoint_of(spark, settings, origin.generation, lease.check_now)
    # 1. Write the origin, in place of one that an earlier try has left.
    if successor.last_planned() is not None:
        raise CheckpointMismatch(
            f"{successor.path} has already run, so it is newer than the checkpoint to be replaced, but no "
            f"pointer names it. Restore the file {pointers_path(settings)}/{origin.generation}"
        )
    successor.initialize(origin)
    failpoint("successor-initialized")
    # 2. Announce it.
    lease.check_now()
    announce_origin(settings, origin, lease.check_now)
    failpoint("successor-born")
    # 3. Write the pointer.
    lease.check_now()
    make_current(spark, settings, successor)
    failpoint("switched-over")


def is_announced_only(
    spark: SparkSession, settings: Settings, current: Checkpoint, origin: CheckpointOrigin, lease: HeldLease
) -> bool:
    """Return whether `switch_over` was cut off after it announced `origin`, which no job can have run from then."""
    successor = checkpoint_of(spark, settings, origin.generation, lease.check_now)
    return (
        successor.path != current.path
        and successor.is_initialized()
        and successor.origin.checkpoint == origin.checkpoint
        and successor.last_planned() is None
    )
