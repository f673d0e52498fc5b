"""Where the logs of shards end, and which shards have released all messages below their ends.

Offsets tell whether messages are left. Counts of messages do not: two messages may have the same id after an input
topic was recreated, and a cancel of both counts once.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec

from conf.kafka.clients import admin_client
from conf.settings import Settings
from sinks.internal_topics.position import Log, LogPosition, topics_of
from sinks.internal_topics.position_reader import read_position
from sinks.topics.partitions import partition_counts
from sinks.topics.topic_ids import topic_id

log = logging.getLogger(__name__)

_TIMEOUT_S = 10.0
_SHARDS_AT_ONCE = 8


def unreleased(settings: Settings, options: Mapping[str, str], shards: Collection[int]) -> list[int]:
    """Return which of `shards` have records in one of their logs that are not known to be released.

    If no shard of an application has such records, and no process stages messages, nothing is left. No process can
    release a shard without a partition of the position topic and of each log, so such a shard is left out. `options`
    are librdkafka's. Raises KafkaException, BrokerUnreachable, TopicMissing, CheckpointMismatch.
    """
    needed = [settings.position_topic, *topics_of(settings).values()]
    counts = partition_counts(settings, needed)
    shards = [shard for shard in shards if all(shard < counts.get(topic, 0) for topic in needed)]
    if not shards:
        return []
    read = partial(read_position, options, settings.position_topic)
    with ThreadPoolExecutor(_SHARDS_AT_ONCE) as threads:
        positions = dict(zip(shards, threads.map(read, shards), strict=True))
    # After the positions: a request that a shard has passed on before is in the log of the next shard by now.
    left: set[int] = set()
    for name, topic in topics_of(settings).items():
        found, ends = topic_id(options, topic), log_ends(options, topic, shards)
        for shard, position in positions.items():
            if not _is_released(None if position is None else position.of(name), found, ends[shard]):
                left.add(shard)
    return sorted(left)


def all_ends(settings: Settings, options: Mapping[str, str], shards: Collection[int]) -> dict[int, dict[Log, int]]:
    """Return the offset after the last record of each log of `shards`, committed or not, for existing partitions.

    Raises KafkaException, BrokerUnreachable.
    """
    topics = topics_of(settings)
    counts = partition_counts(settings, topics.values())
    found: dict[int, dict[Log, int]] = {shard: {} for shard in shards}
    for name, topic in topics.items():
        own = [shard for shard in shards if shard < counts.get(topic, 0)]
        for shard, end in (log_ends(options, topic, own) if own else {}).items():
            found[shard][name] = end
    return found


def log_ends(options: Mapping[str, str], topic: str, shards: Collection[int]) -> dict[int, int]:
    """Return the offset after the last record of each of `shards`, committed or not. Raises KafkaException."""
    latest = {TopicPartition(topic, shard): OffsetSpec.latest() for shard in shards}  # type: ignore[no-untyped-call]
    with admin_client(options, log) as client:
        found = client.list_offsets(latest, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=_TIMEOUT_S)
        return {partition.partition: answer.result().offset for partition, answer in found.items()}


def _is_released(position: LogPosition | None, found: str, end: int) -> bool:
    """Return whether all records below offset `end` of the log with the topic id `found` are released.

    The position of another log says nothing about this one.
    """
    if position is None or position.topic_id != found:
        return end == 0
    return position.lowest >= end
