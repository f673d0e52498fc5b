"""Input records that were deleted before they were read: which ones, and whether the job continues without them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from confluent_kafka import KafkaException

from conf.errors import BrokerUnreachable, CheckpointMismatch, RecordsExpired
from conf.kafka.options import librdkafka_options
from conf.kafka.rights import is_refusal
from conf.settings import Settings
from sinks.buckets.bucket_table import BucketTable
from sinks.internal_topics.broker_retry import BrokerRetry
from sinks.topics.input_ends import input_bounds
from sinks.topics.topic_ids import TopicIds
from state.checkpoint.origin import InputIds, Offsets
from state.checkpoint.progress import BatchSpan, Ranges
from state.taken import Taken
from streaming.checkpoint.checkpoint import Checkpoint
from streaming.checkpoint.recreated_inputs import recreated_inputs
from streaming.checkpoint.switch_over import newest_sealed

log = logging.getLogger(__name__)

# For each input topic and partition: its first offset, and the offset after its last.
Bounds = Mapping[tuple[str, int], tuple[int, int]]
# Returns which records in ranges of topics with these ids forwarders have taken.
TakenIn = Callable[[Ranges, InputIds], Taken]


@dataclass(frozen=True)
class DeletedRange:
    """Records of one input partition that were deleted unread: from offset `start` up to, but not including, `end`.

    Forwarders have `taken` some of them, which are delivered all the same.
    """

    topic: str
    partition: int
    start: int
    end: int
    taken: int = 0

    def __str__(self) -> str:
        taken = f", of which forwarders have taken {self.taken}" if self.taken else ""
        return f"{self.topic}/{self.partition}: offsets {self.start} to {self.end - 1} ({self.count} in all{taken})"

    @property
    def count(self) -> int:
        """The number of offsets."""
        return self.end - self.start


def deleted_ranges(bounds: Bounds, read: Offsets, until: Offsets | None = None) -> list[DeletedRange]:
    """Return the deleted ranges at or after the offsets `read`, and before `until` if that is given.

    A partition that `read` does not name is new: all of it is unread. If `read` is empty, nothing is lost: a job begins
    with the first record that exists.
    """
    ranges = []
    for (topic, partition), (first, _) in sorted(bounds.items()) if read else ():
        start = read.get(topic, {}).get(str(partition), 0)
        end = first if until is None else min(first, until.get(topic, {}).get(str(partition), 0))
        if end > start:
            ranges.append(DeletedRange(topic, partition, start, end))
    return ranges


def with_taken(ranges: Iterable[DeletedRange], ids: InputIds, taken_in: TakenIn) -> list[DeletedRange]:
    """Return `ranges` with how many records forwarders have taken: none of a topic without `ids`."""
    own = {(each.topic, each.partition): each for each in ranges}
    wanted = {source: (each.start, each.end) for source, each in own.items() if source[0] in ids}
    taken = taken_in(wanted, ids).offsets if wanted else {}
    return [replace(each, taken=len(taken.get(source, ()))) for source, each in own.items()]


def truncated(bounds: Bounds, read: Offsets) -> list[str]:
    """Return a sentence for each input partition that is gone, or ends before the offset up to which it was `read`.

    Nothing is lost with a partition that was read up to offset 0.
    """
    sentences = []
    for topic, offsets in sorted(read.items()):
        for number, offset in sorted(offsets.items(), key=lambda item: int(item[0])):
            _, last = bounds.get((topic, int(number)), (0, None))
            if not offset:
                continue
            if last is None:
                sentences.append(f"{topic}/{number} is gone, but records up to offset {offset} were read")
            elif offset > last:
                sentences.append(f"{topic}/{number} ends at offset {last}, but records up to offset {offset} were read")
    return sentences


def check_input_loss(
    settings: Settings,
    checkpoint: Checkpoint,
    store: BucketTable,
    known: InputIds,
    unread: Collection[str],
    taken_in: TakenIn,
) -> list[str]:
    """Check that the input topics still have the records that the next batch needs.

    Returns the topics that were created again since the checkpoint read them, by the `known` ids, and former input
    topics of which a planned batch can read nothing. Raises RecordsExpired if such records were deleted, and says how
    many of them forwarders have taken, by `taken_in`. Raises CheckpointMismatch if an input topic that is not `unread`
    was created again, or ends before the offset up to which it was read, or if Spark's log has a topic that is not an
    input any more. With `topics.skip_expired`, raises RecordsExpired only if a planned batch cannot be replayed without
    its deleted records (`check_replay`). Raises BrokerUnreachable, and the errors of `taken_in`.
    """
    gone = recreated_inputs(settings, known, unread)
    read, bounds = checkpoint.read_offsets(), input_bounds(settings)
    newest = checkpoint.last_planned()
    # The batch that was cut off.
    planned = None if newest is None or newest == checkpoint.last_committed() else newest
    until = {} if planned is None else checkpoint.planned(planned).offsets
    # Spark refuses to go on without a partition of its log, also if nothing was read of it.
    in_log = {topic for topic, own in read.items() if read != checkpoint.origin.offsets or any(own.values())}
    former = sorted({*in_log, *until} - {*settings.topics.input})
    if former and not settings.topics.skip_expired:
        raise CheckpointMismatch(
            f"topics.input no longer names {', '.join(former)}. Put it back. To leave it out, start with "
            "topics.skip_expired=true: its unread records are ignored, and if the job has read any, topics.input can "
            "never name it again"
        )
    gone += _unreadable(settings, [topic for topic in former if topic in until], read, known)
    if (sentences := truncated(bounds, read)) and not settings.topics.skip_expired:
        raise CheckpointMismatch(
            f"{'; '.join(sentences)}. The topic was deleted, or it lost its newest records. Messages that "
            "were accepted from it still wait. To continue at the topic's present end, start with "
            "topics.skip_expired=true. If forwarders have read the topic, first delete it and create it "
            "again"
        )
    # Claims on a topic that is gone say nothing about its successor.
    ids = {topic: own for topic, own in known.items() if topic not in gone}
    ranges = deleted_ranges(bounds, read)
    if ranges and not settings.topics.skip_expired:
        raise input_loss_error(with_taken(ranges, ids, taken_in))
    if planned is not None:
        sealed = newest_sealed(store, checkpoint.origin.checkpoint)
        # All planned records of a topic that is gone are deleted.
        ends = {(topic, int(number)): end for topic in gone for number, end in until.get(topic, {}).items()}
        ranges = deleted_ranges({**bounds, **{source: (end, end) for source, end in ends.items()}}, read, until)
        check_replay(planned, with_taken(ranges, ids, taken_in) if sealed >= planned else [], sealed)
    return gone


def _unreadable(settings: Settings, former: Collection[str], read: Offsets, known: InputIds) -> list[str]:
    """Return the `former` input topics of which Spark could not read the records that a batch was planned to read.

    Such a topic was deleted, perhaps created again, or Spark's log has no offset where the batch begins.
    """
    if not former:
        return []
    try:
        present = TopicIds(librdkafka_options(settings.kafka)).of(former)
    except KafkaException as problem:
        # Often the login has no rights on former inputs. Spark could not read them either.
        if is_refusal(problem.args[0]):
            return [*former]
        raise BrokerUnreachable(f"cannot read the ids of {', '.join(former)}: {problem}") from problem
    return [topic for topic in former if topic not in read or known.get(topic, [])[-1:] != [present.get(topic)]]


def check_replay(batch_id: int, ranges: Sequence[DeletedRange], sealed: int) -> None:
    """Raise RecordsExpired if the batch that was cut off cannot be replayed without its deleted `ranges`.

    `sealed` is the last batch that sealed a bucket, or -1. If it is this batch, the table already has its bucket. A
    replay with fewer messages could divide them differently, and also keep some of the sealed ones in the mutable
    bucket. A batch never has records that forwarders have taken.
    """
    lost = [each for each in ranges if each.taken < each.count]
    if lost and sealed >= batch_id:
        raise RecordsExpired(
            f"{listed(lost)} were deleted, but the interrupted batch {batch_id} has already sealed "
            "messages and cannot be replayed without these records. `delayline rebuild "
            "--discard-checkpoint` makes a checkpoint without this batch"
        )


def input_loss_error(ranges: Sequence[DeletedRange]) -> RecordsExpired:
    """Return the error for records that were deleted unread."""
    if all(each.taken == each.count for each in ranges):
        lost = "Forwarders have taken them all, so nothing is lost"
    elif any(each.taken for each in ranges):
        lost = "Those that forwarders have taken are delivered. The others are lost, and nothing else"
    else:
        lost = "These records are lost, and nothing else"
    return RecordsExpired(
        f"{listed(ranges)} were deleted before they were read, by retention or by hand. {lost}. To continue without "
        "them, start with topics.skip_expired=true. Then raise the retention of the topic"
    )


def warn_of_input_loss(bounds: Bounds, batch: BatchSpan, taken_in: TakenIn) -> None:
    """Log which records of a batch were deleted unread, and which partitions have lost records that were read.

    `bounds` are the bounds of the input after the batch has read it. `taken_in` tells what forwarders have taken.
    """
    for topic, offsets in batch.ends.items():
        for number, end in offsets.items():
            if end < (start := batch.starts.get(topic, {}).get(number, 0)):
                log.warning(
                    "batch %d: %s/%s ends at offset %d, but records up to %d were read: the topic has lost "
                    "its newest records. The job continues at its end. New records get the ids of lost ones",
                    batch.batch_id, topic, number, end, start,
                )  # fmt: skip
    if ranges := with_taken(deleted_ranges(bounds, batch.starts, batch.ends), batch.input_ids, taken_in):
        log.warning(
            "batch %d continues without records: %s were deleted before they were read", batch.batch_id, listed(ranges)
        )


def read_bounds(settings: Settings, batch_id: int) -> Bounds:
    """Read the present bounds of the input for batch `batch_id`.

    Waits through an outage; raises BrokerUnreachable after `kafka.outage_limit`.
    """
    retry = BrokerRetry(f"batch {batch_id}, offsets of the input", settings.kafka.outage_limit)
    while True:
        try:
            return input_bounds(settings)
        except BrokerUnreachable as problem:
            retry.wait(problem)


def listed(ranges: Iterable[DeletedRange]) -> str:
    """Return deleted ranges as part of a sentence."""
    return "; ".join(map(str, ranges))
