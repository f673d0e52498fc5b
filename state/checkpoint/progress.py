"""The delivery marker: how far a shard's delivery is committed, and what that says of each message."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from conf.errors import CheckpointMismatch
from state.checkpoint.origin import Birth, Offsets, birth_of, check_offsets
from state.message import Key


@dataclass(frozen=True)
class BatchSpan:
    """A batch as its marker names it: of which checkpoint, what it read, its cutoff and that of the batch before.

    It accepted the records from `starts` up to `ends`. Cutoffs are epoch ms, `previous_ms` is 0 for a first batch.
    `batch_id` -1 stands for a checkpoint that has delivered nothing yet.
    """

    birth: Birth
    batch_id: int = -1
    previous_ms: int = 0
    cutoff_ms: int = 0
    starts: Offsets = field(default_factory=dict)
    ends: Offsets = field(default_factory=dict)


@dataclass(frozen=True)
class Progress:
    """Of a shard's due messages in `batch`, the first `messages` are committed; `last` is the place of the last one."""

    batch: BatchSpan
    messages: int = 0
    last: Key | None = None

    def to_bytes(self) -> bytes:
        """Write it as the value of a marker record."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_bytes(value: bytes) -> Progress:
        """Read a marker record. Raises CheckpointMismatch if it is none."""
        try:
            facts = json.loads(value)
            batch = dict(facts.pop("batch"))
            last = facts.pop("last")
            span = BatchSpan(birth=birth_of(batch.pop("birth")), **batch)
            progress = Progress(batch=span, last=None if last is None else _key(*last), **facts)
            if any(type(number) is not int for number in _numbers(progress)):
                raise TypeError("a marker counts in whole numbers")
            check_offsets(span.starts)
            check_offsets(span.ends)
            return progress
        except (AttributeError, KeyError, TypeError, ValueError) as problem:
            raise CheckpointMismatch(
                f"the progress topic holds {value[:80]!r}, which is no marker of this version of Delayline; "
                "nothing but the job may write to it"
            ) from problem


def _numbers(progress: Progress) -> tuple[int, ...]:
    batch = progress.batch
    return batch.batch_id, batch.previous_ms, batch.cutoff_ms, progress.messages


def _key(deliver_at_ms: int, topic: str, partition: int, offset: int) -> Key:
    if [type(part) for part in (deliver_at_ms, topic, partition, offset)] != [int, str, int, int]:
        raise TypeError("a message's place is its due time, topic, partition and offset")
    return deliver_at_ms, topic, partition, offset


def refuse_older(last: Progress, birth: Birth, batch_id: int) -> None:
    """Raise CheckpointMismatch if the checkpoint of `birth`, at `batch_id`, is older than what `last` tells of."""
    other = last.batch.birth
    if other.generation > birth.generation:
        raise CheckpointMismatch(
            f"checkpoint {birth.checkpoint} was replaced by {other.checkpoint}, which has taken over the delivery; "
            "going on would deliver twice. Put back the newer checkpoint"
        )
    if other.checkpoint == birth.checkpoint and last.batch.batch_id > batch_id:
        raise CheckpointMismatch(
            f"batch {last.batch.batch_id} has been delivered, but the checkpoint is at batch {batch_id}; "
            "going on would deliver twice. Put back the newest checkpoint"
        )


def committed_messages(last: Progress | None, batch: BatchSpan) -> int:
    """Return how many messages of `batch` are committed already: those a replay must skip.

    Raises CheckpointMismatch if a later batch was delivered, or another of the same number, as when an old checkpoint
    was put back, or if a newer checkpoint of the application has taken over.
    """
    if last is None:
        return 0
    refuse_older(last, batch.birth, batch.batch_id)
    if last.batch.birth.checkpoint != batch.birth.checkpoint or last.batch.batch_id < batch.batch_id:
        return 0
    if last.batch != batch:
        raise CheckpointMismatch(
            f"batch {batch.batch_id} has been delivered up to cutoff {last.batch.cutoff_ms}, and the offset log has it "
            f"with cutoff {batch.cutoff_ms}: its entry was lost, and planned anew. Put back the newest checkpoint, or "
            "let `delayline rebuild --discard-checkpoint` make a new one"
        )
    return last.messages
