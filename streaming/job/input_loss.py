"""Input records that are gone before they were read, or with their topic: which those are, and when the job goes on."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from conf.errors import BrokerUnreachable, CheckpointMismatch, RecordsExpired
from conf.settings import Settings
from sinks.bucket_table import BucketTable
from sinks.delivery.broker_retry import BrokerRetry
from sinks.topics.topics import input_bounds
from state.checkpoint.origin import Offsets
from state.checkpoint.progress import BatchSpan
from streaming.checkpoint.checkpoint import Checkpoint

log = logging.getLogger(__name__)

# Of each input topic and partition: its first offset and the one after its last.
Bounds = Mapping[tuple[str, int], tuple[int, int]]


@dataclass(frozen=True)
class DeletedRange:
    """Records of one input partition that are gone: from offset `start` up to `end`."""

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        count = self.end - self.start
        return f"{self.topic}/{self.partition}: offsets {self.start} to {self.end - 1} ({count} in all)"


def deleted_ranges(bounds: Bounds, read: Offsets, until: Offsets | None = None) -> list[DeletedRange]:
    """Return what is gone of the records from the offsets `read` on, and before `until` if that is given.

    A partition that `read` does not name is new, and all of it is unread. Nothing is gone where nothing was ever read:
    a job begins with the first record that there is.
    """
    found = []
    for (topic, partition), (first, _) in sorted(bounds.items()) if read else ():
        start = read.get(topic, {}).get(str(partition), 0)
        end = first if until is None else min(first, until.get(topic, {}).get(str(partition), 0))
        if end > start:
            found.append(DeletedRange(topic, partition, start, end))
    return found


def truncated(bounds: Bounds, read: Offsets) -> list[str]:
    """Say of each input partition that ends before the offset up to which it was `read`, or that is gone."""
    found = []
    for topic, offsets in sorted(read.items()):
        for number, offset in sorted(offsets.items(), key=lambda item: int(item[0])):
            _, last = bounds.get((topic, int(number)), (0, None))
            if last is None:
                found.append(f"{topic}/{number} is gone, of which records up to offset {offset} were read")
            elif offset > last:
                found.append(f"{topic}/{number} ends at offset {last}, and records up to offset {offset} were read")
    return found


def check_input_loss(settings: Settings, checkpoint: Checkpoint, store: BucketTable) -> None:
    """Raise RecordsExpired if records are gone that the next batch needs, unless the job may go on without them.

    Raises CheckpointMismatch if an input topic ends before what was read of it, unless the job may go on from its end;
    BrokerUnreachable.
    """
    read, bounds = checkpoint.read_offsets(), input_bounds(settings)
    if (anew := truncated(bounds, read)) and not settings.topics.skip_expired:
        raise CheckpointMismatch(
            f"{'; '.join(anew)}: it is not the topic that was read, or has lost its newest records. What was accepted "
            "of it waits as before. To go on with what comes behind its present end start with topics.skip_expired=true"
        )
    ranges = deleted_ranges(bounds, read)
    if ranges and not settings.topics.skip_expired:
        raise input_loss_error(ranges)
    planned = checkpoint.last_planned()
    if planned is not None and planned != checkpoint.last_committed():
        sealed = store.newest_of(checkpoint.origin.checkpoint)
        check_replay(planned, deleted_ranges(bounds, read, checkpoint.planned(planned).offsets), sealed)


def check_replay(batch_id: int, ranges: Sequence[DeletedRange], sealed: int | None) -> None:
    """Raise RecordsExpired if the batch that was cut off cannot be replayed without `ranges` of its own.

    `sealed` is the last batch that has sealed. If it is this one, its bucket holds what another division of fewer
    messages would keep in the mutable bucket as well.
    """
    if ranges and sealed is not None and sealed >= batch_id:
        raise RecordsExpired(
            f"{_described(ranges)} deleted, and batch {batch_id}, which was cut off, has sealed messages of them: it "
            "cannot be replayed without them. `delayline rebuild --discard-checkpoint` makes a checkpoint without that "
            "batch"
        )


def input_loss_error(ranges: Iterable[DeletedRange]) -> RecordsExpired:
    """Return the error for records that are gone."""
    return RecordsExpired(
        f"{_described(ranges)} deleted, by retention or by hand, before they were read. They are lost, and nothing "
        "else is. To go on without them start with topics.skip_expired=true; and let the topic keep its records "
        "for longer"
    )


def warn_of_input_loss(settings: Settings, batch: BatchSpan) -> None:
    """Log what is gone of the records of a batch that has read what there was of them.

    And where it goes back in a partition, which was made anew then.
    """
    for topic, offsets in batch.ends.items():
        for number, end in offsets.items():
            if end < (start := batch.starts.get(topic, {}).get(number, 0)):
                log.warning(
                    "batch %d: %s/%s ends at offset %d, and records up to %d were read of the topic before: it goes on "
                    "from there, and reads nothing below", batch.batch_id, topic, number, end, start,
                )  # fmt: skip
    if batch.starts != batch.ends and (ranges := deleted_ranges(_bounds(settings, batch), batch.starts, batch.ends)):
        log.warning(
            "batch %d goes on without records: %s deleted before they were read", batch.batch_id, _described(ranges)
        )


def _bounds(settings: Settings, batch: BatchSpan) -> Bounds:
    outage = BrokerRetry(f"batch {batch.batch_id}, offsets of the input", settings.kafka.outage_limit)
    while True:
        try:
            return input_bounds(settings)
        except BrokerUnreachable as problem:
            outage.wait(problem)


def _described(ranges: Iterable[DeletedRange]) -> str:
    return f"{'; '.join(map(str, ranges))} were"
