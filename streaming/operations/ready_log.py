"""`delayline repair --ready-log`: let the release go on behind a log that lost records, and count the loss.

That is the ready log, or the near log. A record that cannot be read is lost too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby

from confluent_kafka import Consumer, KafkaException, TopicPartition

from conf.errors import DeliveryFailed, ReadyLogLost
from conf.kafka.client_log import client_log
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.internal_topics.lease import HeldLease
from sinks.internal_topics.position import Log, LogPosition, Place, Position, Skipped, topics_of
from sinks.internal_topics.progress import read_progress
from sinks.ready_log.chunk import ChunkSummary
from sinks.release.known_topics import Topics
from sinks.release.log_reader import LogReader
from sinks.release.planned import Planned
from sinks.release.recall import removed_before, uncounted
from sinks.release.removals import Removals
from sinks.release.ring import Ring
from sinks.topics.partitions import partition_counts
from sinks.topics.topic_ids import topic_id
from sinks.topics.topics import check_topics
from state.cancel import without_cancelled
from state.kinds import requests_in
from state.message import decode_chunk, empty_messages

log = logging.getLogger(__name__)

_TIMEOUT_S = 30.0
_MOST_REASONS = 5


@dataclass(frozen=True)
class RepairedShard:
    """A shard of which a log had lost records.

    - `reason`: what was wrong
    - `lost`: how many messages were staged, are not released, and are no longer in a log. Messages of the near log that
      no release process had read are not counted. None without a position, which counts the released messages, or if
      the progress topic has lost the count of the staged messages
    - `left`: how many of them are still there, and will be released
    - `had_position`: whether the position topic had a position of the shard
    - `refilled`: the topics that have messages and are not the topics that were released before
    """

    shard: int
    reason: str
    lost: int | None
    left: int
    had_position: bool
    refilled: tuple[str, ...] = ()


def repair_ready_log(settings: Settings) -> Iterator[RepairedShard]:
    """Set the position of each shard of which a log lost records to what is there. Yield each shard before that.

    The next repair finds nothing wrong in the shard, and knows no loss. So the caller prints each at once.

    Raises ApplicationHeld while the job runs, TopicMissing, TopicMismatch, BrokerUnreachable, DeliveryFailed.
    """
    check_topics(settings)
    options = librdkafka_options(settings.kafka)
    with closing(HeldLease(settings, "repair")):
        try:
            yield from _repaired(settings, options)
        except KafkaException as problem:
            raise DeliveryFailed(f"could not set the positions: {problem}. Run the command again") from problem


def _repaired(settings: Settings, options: Mapping[str, str]) -> Iterator[RepairedShard]:
    """Repair one shard after the other.

    1. Fence the release processes of the shard, and read its position.
    2. If its logs can be read from there to their ends, leave it as it is.
    3. Count what is left in the logs, and write a position for it.
    """
    topics = Topics(settings, options)
    # Also of shards that a rescale has left, in which something may lie.
    counts = partition_counts(settings, [*topics_of(settings).values(), settings.position_topic])
    for shard in range(min(counts.values())):
        # 1. Fence.
        with Ring(settings, options, shard, topics) as ring:
            position = ring.position
            # 2. Try to read.
            wrong: list[ReadyLogLost] = []
            try:
                there, damaged, readable = _read_through(settings, options, shard, position)
            except ReadyLogLost as problem:
                wrong.append(problem)
                there = _there(settings, options, shard, position or Position())
                there, damaged, readable = _read_through(settings, options, shard, there)
            wrong += damaged.values()
            if not wrong:
                continue
            # 3. Count and write.
            left, counted = _left(settings, options, shard, there)
            marker = read_progress(options, settings.progress_topic, shard)
            released, lost = released_and_lost(0 if marker is None else marker.staged, there, counted)
            there = replace(there, released=released, member="repair")
            known = position or there
            refilled = {name for name, _ in readable if known.of(name).topic_id != there.of(name).topic_id}
            yield RepairedShard(
                shard,
                _reason(wrong),
                None if position is None else lost,
                left,
                position is not None,
                tuple(topics_of(settings)[name] for name in sorted(refilled)),
            )
            ring.write(Planned(empty_messages(), there, 0), there, None)
            ring.wait_all()


def _reason(wrong: list[ReadyLogLost]) -> str:
    reasons = [str(problem.args[0]).partition(". ")[0] for problem in wrong]
    more = len(reasons) - _MOST_REASONS
    return "; ".join([*reasons[:_MOST_REASONS], *([f"and {more} more records"] if more > 0 else [])])


def released_and_lost(staged: int, there: Position, counted: int) -> tuple[int, int | None]:
    """Return how many messages of a shard count as released from here on, and how many of these are lost.

    `staged` is the count of its marker, `there` the position before, and `counted` how many of the counted
    messages are in the logs. The number of lost messages is None if the progress topic was lost and counts again from
    zero.
    """
    gone = staged + there.forwarded - counted
    return (gone, gone - there.released) if gone >= there.released else (there.released, None)


def _there(settings: Settings, options: Mapping[str, str], shard: int, position: Position) -> Position:
    """Return the position in the logs as they are: nothing that they have is skipped unless it is released."""
    consumer = Consumer({**options, "group.id": f"{settings.ready_topic}-reader"}, logger=client_log(log))
    try:
        for name, topic in topics_of(settings).items():
            own, found = position.of(name), topic_id(options, topic)
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, shard), timeout=_TIMEOUT_S)
            taken_in = min(max(own.taken_in, low), high) if own.topic_id == found else low
            lowest = min(max(own.lowest, low), taken_in)
            position = position.ending_at(name, LogPosition(found, taken_in, lowest))
    finally:
        consumer.close()
    return position


def _read_through(
    settings: Settings, options: Mapping[str, str], shard: int, position: Position | None
) -> tuple[Position, dict[Place, ReadyLogLost], list[Place]]:
    """Read both logs from `position` to their ends.

    Returns the position that skips the chunks that cannot be read, why each of them cannot, and the other chunks.
    Raises ReadyLogLost if records are missing.
    """
    damaged: dict[Place, ReadyLogLost] = {}
    with LogReader(settings, options, shard, position) as reader:
        reader.damaged = damaged
        readable = [place for place, _, _ in reader.read_to_end()]
        there = reader.position
    return replace(there, skipped=(*there.skipped, *skipped_ranges(damaged, readable))), damaged, readable


def skipped_ranges(damaged: Iterable[Place], readable: Iterable[Place]) -> Iterator[Skipped]:
    """Yield the ranges of each log that have chunks among `damaged`, and no chunk among `readable`."""
    places = sorted([*((place, True) for place in damaged), *((place, False) for place in readable)])
    for (name, is_damaged), own in groupby(places, key=lambda each: (each[0].log, each[1])):
        if is_damaged:
            offsets = [place.offset for place, _ in own]
            yield Skipped(name, offsets[0], offsets[-1] + 1)


def _left(settings: Settings, options: Mapping[str, str], shard: int, position: Position) -> tuple[int, int]:
    """Count the messages of the logs that are not released at `position`, and were staged in this shard.

    Returns their number, and how many of them are counted as staged. Messages of the near log are counted once they are
    taken in.
    """
    removals = Removals()
    for place, summary, payload in _chunks(settings, options, shard, position):
        if summary.has_requests and place.offset < position.of(place.log).taken_in:
            removals.add(removed_before(place, position.near.taken_in, requests_in(decode_chunk(payload))))
    count = counted = 0
    for place, summary, payload in _chunks(settings, options, shard, position):
        is_taken_in = place.offset < position.of(place.log).taken_in
        own, removed = summary.count, removals.ids_at(place)
        if removed or summary.has_requests or is_taken_in:
            messages = without_cancelled(position.left_of(place, decode_chunk(payload)), removed)
            own = messages.num_rows - uncounted(messages, is_taken_in)
        count += own
        counted += own if is_taken_in or place.log is Log.READY else 0
    return count, counted


def _chunks(
    settings: Settings, options: Mapping[str, str], shard: int, position: Position
) -> Iterator[tuple[Place, ChunkSummary, bytes]]:
    with LogReader(settings, options, shard, position) as reader:
        yield from reader.read_to_end()
