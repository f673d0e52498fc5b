"""Why a start refuses a checkpoint: the table, a marker or a rebuild shows that it is not the newest state."""

from __future__ import annotations

from collections.abc import Iterable

from conf.errors import CheckpointMismatch
from sinks.buckets.bucket_table import BucketTable
from state.checkpoint.progress import Progress, newest_in_table, refuse_older
from state.checkpoint.staged import StagedMessages
from streaming.checkpoint.checkpoint import Checkpoint
from streaming.checkpoint.switch_over import is_older, newest_sealed, rest_bucket, writer_of_input
from streaming.storage.failures import CHECKPOINT_REMEDY
from streaming.storage.guarded_log import GuardedLog

_TABLE_REMEDY = (
    "Is its disk mounted? Otherwise put the newest table back completely. If that is lost, put a backup back and run "
    "`delayline rebuild --discard-checkpoint`: it accepts the messages again that the last rescale or rebuild has not "
    "read, and that are still in the input topics"
)


def refuse_lost_plan(checkpoint: Checkpoint, store: BucketTable, planned: int | None) -> None:
    """Raise CheckpointMismatch if a batch has sealed that is not in the offset log.

    Spark would plan the batch again, with other records. The table would then treat the batch's messages
    as sealed already, and drop them.
    """
    sealed = newest_sealed(store, checkpoint.origin.checkpoint)
    if sealed > (-1 if planned is None else planned):
        raise CheckpointMismatch(
            f"{store.path} holds messages that batch {sealed} sealed, but the offset log of "
            f"{checkpoint.path} ends with batch {planned}. Its newest entries are lost, or it is an older "
            f"checkpoint. {CHECKPOINT_REMEDY}"
        )


def refuse_missing_table(checkpoint: Checkpoint, guard: GuardedLog, planned: int | None) -> None:
    """Raise CheckpointMismatch if the table is gone, which exists before the first batch is planned.

    Call it before the table is created, which would then lack all sealed messages, and before its log is restored.
    """
    needs_table = planned is not None or (checkpoint.is_initialized() and checkpoint.origin.first_bucket)
    if needs_table and not guard.has_log():
        raise CheckpointMismatch(f"there is no table of sealed buckets next to {checkpoint.path}. {_TABLE_REMEDY}")


def refuse_older_table(checkpoint: Checkpoint, store: BucketTable, markers: Iterable[Progress | None]) -> None:
    """Raise CheckpointMismatch if the table lacks rows that a batch of `checkpoint` has stored.

    Call it before anything is written to the table: the newest one may be put back.
    """
    origin = checkpoint.origin
    own = (each for each in markers if each and each.batch.origin.checkpoint == origin.checkpoint)
    if is_older(store, origin, newest_in_table(own)):
        raise _older_table(store, checkpoint.path)


def refuse_older_copy(store: BucketTable, staged: StagedMessages) -> None:
    """Raise CheckpointMismatch if the table lacks rows that it had by the markers, unless a rebuild has begun with it.

    Call it before anything is written to the table: the newest one may be put back.
    """
    origin = staged.origin
    if is_older(store, origin, staged.in_table) and not store.is_fenced(origin.checkpoint):
        raise _older_table(store, origin.checkpoint)


def _older_table(store: BucketTable, checkpoint: str) -> CheckpointMismatch:
    return CheckpointMismatch(
        f"the table of sealed buckets at {store.path} is older than the checkpoint {checkpoint}, so it lacks "
        f"messages. {_TABLE_REMEDY}"
    )


def refuse_older_checkpoint(
    checkpoint: Checkpoint, store: BucketTable, markers: Iterable[Progress | None], planned: int | None
) -> None:
    """Raise CheckpointMismatch if a marker is newer than the checkpoint, or if a switch from it has begun.

    Each shard's writer checks its own marker too. But a shard that had staged less would already begin to deliver.
    """
    for shard, marker in enumerate(markers):
        if marker is not None:
            # An announcement writes a marker for each of the checkpoint's shards. Others may be of an earlier try.
            is_own = shard < checkpoint.origin.shards
            refuse_older(marker, checkpoint.origin, -1 if planned is None else planned, is_own)
    if rest_bucket(store, checkpoint.origin.checkpoint) is not None:
        raise CheckpointMismatch(_cut_off_rebuild(checkpoint))
    refuse_rebuilt(checkpoint, store)


def refuse_rebuilt(checkpoint: Checkpoint, store: BucketTable) -> None:
    """Raise CheckpointMismatch if a rebuild has begun to replace `checkpoint`."""
    own = checkpoint.origin.checkpoint
    if store.is_fenced(own) or store.newest_of(writer_of_input(own)) is not None:
        raise CheckpointMismatch(_cut_off_rebuild(checkpoint))


def _cut_off_rebuild(checkpoint: Checkpoint) -> str:
    return (
        f"`delayline rebuild` was replacing the checkpoint {checkpoint.path} and was interrupted. Continuing "
        "from it would lose or duplicate messages. Run `delayline rebuild --discard-checkpoint`"
    )
