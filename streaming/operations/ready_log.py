"""`delayline repair --ready-log`: let the release go on behind a ready log that lost records, and count the loss."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace

from confluent_kafka import Consumer, KafkaException, TopicPartition

from conf.errors import DeliveryFailed, ReadyLogLost
from conf.kafka.client_log import client_log
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.internal_topics.lease import HeldLease
from sinks.internal_topics.position import Position
from sinks.internal_topics.progress import read_progress
from sinks.ready_log.chunk import ChunkSummary
from sinks.release.known_topics import Topics
from sinks.release.log_reader import LogReader
from sinks.release.pending import Planned
from sinks.release.recall import left_of, removed_before, uncounted
from sinks.release.ring import Ring
from sinks.topics.topic_ids import topic_id
from sinks.topics.topics import check_topics, partition_counts
from state.cancel import is_undecided
from state.message import decode_chunk, empty_messages
from state.message_ids import NO_IDS, united

log = logging.getLogger(__name__)

_TIMEOUT_S = 30.0
_POLL_S = 1.0


@dataclass(frozen=True)
class RepairedShard:
    """A shard whose part of the ready log had lost records.

    - `reason`: what was wrong
    - `lost`: how many messages were handed over, are not released, and are not in the log any more
    - `left`: how many of them are still there, and will be released
    """

    shard: int
    reason: str
    lost: int
    left: int


def repair_ready_log(settings: Settings) -> list[RepairedShard]:
    """Set the position of each shard whose ready log lost records to what is there. Return these shards.

    Raises ApplicationHeld while the job runs, TopicMissing, TopicMismatch, BrokerUnreachable, DeliveryFailed.
    """
    check_topics(settings)
    options = librdkafka_options(settings.kafka)
    with closing(HeldLease(settings, "repair")):
        try:
            return list(_repaired(settings, options))
        except KafkaException as problem:
            raise DeliveryFailed(f"the positions could not be set: {problem}. Run the command again") from problem


def _repaired(settings: Settings, options: Mapping[str, str]) -> Iterator[RepairedShard]:
    """Repair one shard after the other.

    1. Fence the release processes of the shard, and read its position.
    2. If the log can be read from there, leave it as it is.
    3. Count what is left in the log, and write a position for it.
    """
    topics = Topics(settings, options)
    # Also of shards that a rescale has left, in which something may lie.
    counts = partition_counts(settings, [settings.ready_topic, settings.position_topic])
    for shard in range(min(counts.values())):
        # 1. Fence.
        with Ring(settings, options, shard, topics) as ring:
            position = ring.position
            # 2. Try to read.
            try:
                LogReader(settings, options, shard, position).close()
                continue
            except ReadyLogLost as problem:
                reason = str(problem).partition(". ")[0]
            # 3. Count and write.
            there = _there(settings, options, shard, position)
            left = _left(settings, options, shard, there)
            marker = read_progress(options, settings.progress_topic, shard)
            handed_over = left if marker is None else marker.handed_over
            lost = handed_over - there.released - left
            there = replace(there, released=handed_over - left, member="repair")
            ring.write(Planned(empty_messages(), there, 0), there, None)
            ring.wait_all()
            yield RepairedShard(shard, reason, lost, left)


def _there(settings: Settings, options: Mapping[str, str], shard: int, position: Position | None) -> Position:
    """Return the position in the log as it is: nothing that it has is skipped, unless it is known to be released."""
    found = topic_id(options, settings.ready_topic)
    consumer = Consumer({**options, "group.id": f"{settings.ready_topic}-reader"}, logger=client_log(log))
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(settings.ready_topic, shard), timeout=_TIMEOUT_S)
    finally:
        consumer.close()
    if position is None or position.topic_id != found:
        return Position(found, taken_in=low, lowest=low, released=0 if position is None else position.released)
    taken_in = min(max(position.taken_in, low), high)
    return position.ending_at(taken_in, lowest=min(max(position.lowest, low), taken_in))


def _left(settings: Settings, options: Mapping[str, str], shard: int, position: Position) -> int:
    """Count the messages of the log that are not released at `position`, and were handed over in this shard."""
    removed = NO_IDS
    for offset, summary, payload in _chunks(settings, options, shard, position):
        if summary.asks and offset < position.taken_in:
            asks = decode_chunk(payload)
            asks = asks.filter(is_undecided(asks, settings.results_topic))
            removed = united([removed, removed_before(offset, asks).ids] if asks.num_rows else [removed])
    count = 0
    for offset, summary, payload in _chunks(settings, options, shard, position):
        is_taken_in = offset < position.taken_in
        if not (removed or summary.asks or is_taken_in):
            count += summary.count
            continue
        messages = left_of(position.left_of(offset, decode_chunk(payload)), removed, settings.results_topic)
        count += messages.num_rows - uncounted(messages, settings.results_topic, is_taken_in)
    return count


def _chunks(
    settings: Settings, options: Mapping[str, str], shard: int, position: Position
) -> Iterator[tuple[int, ChunkSummary, bytes]]:
    with LogReader(settings, options, shard, position) as reader:
        while not reader.at_end:
            yield from reader.read(_POLL_S)
