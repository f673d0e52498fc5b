"""Where the ready log ends, and which shards have released all below that.

What is left is known by offsets. Counts of messages do not say it: a cancel of an id that two messages have, as after
an input topic was created again, counts once.
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
from sinks.internal_topics.position import Position, read_position
from sinks.topics.topic_ids import topic_id
from sinks.topics.topics import partition_counts

log = logging.getLogger(__name__)

_TIMEOUT_S = 10.0
_SHARDS_AT_ONCE = 8


def unreleased(settings: Settings, options: Mapping[str, str], shards: Collection[int]) -> list[int]:
    """Return which of `shards` have records in the ready log that are not known to be released.

    If none of the shards of an application has any, and nobody hands over, nothing is left. No process can release a
    shard without a partition of the position topic: it is left out. `options` are librdkafka's. Raises KafkaException,
    BrokerUnreachable, TopicMissing, CheckpointMismatch.
    """
    positioned = partition_counts(settings, [settings.position_topic]).get(settings.position_topic, 0)
    shards = [shard for shard in shards if shard < positioned]
    if not shards:
        return []
    read = partial(read_position, options, settings.position_topic)
    with ThreadPoolExecutor(_SHARDS_AT_ONCE) as threads:
        positions = dict(zip(shards, threads.map(read, shards), strict=True))
    # After the positions: a request that a shard has passed on before is in the log of the next shard by now.
    found = topic_id(options, settings.ready_topic)
    ends = log_ends(options, settings.ready_topic, shards)
    return [shard for shard, position in positions.items() if not _is_released(position, found, ends[shard])]


def log_ends(options: Mapping[str, str], topic: str, shards: Collection[int]) -> dict[int, int]:
    """Return the offset after the last record of each of `shards`, committed or not. Raises KafkaException."""
    latest = {TopicPartition(topic, shard): OffsetSpec.latest() for shard in shards}  # type: ignore[no-untyped-call]
    with admin_client(options, log) as client:
        found = client.list_offsets(latest, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=_TIMEOUT_S)
        return {partition.partition: answer.result().offset for partition, answer in found.items()}


def _is_released(position: Position | None, found: str, end: int) -> bool:
    """Return whether all below offset `end` of the log with the topic id `found` is released.

    The position of another log says nothing of this one.
    """
    if position is None or position.topic_id != found:
        return end == 0
    return position.lowest >= end
