"""Deleting the claims that are no longer needed."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from confluent_kafka import TopicPartition

from conf.kafka.clients import admin_client
from conf.kafka.rights import right_named
from conf.settings import Settings
from sinks.lanes.claims_search import first_offsets
from state.checkpoint.origin import Offsets
from state.lanes import partition_of_lane

log = logging.getLogger(__name__)

_TIMEOUT_S = 30.0


def delete_claims(
    settings: Settings, options: Mapping[str, str], needed: Offsets, topic_ids: Mapping[str, str], epoch: int
) -> None:
    """Delete the claims of each lane before all that may decide offsets at or above `needed`, but not its newest one.

    `options` are librdkafka's, `topic_ids` the present ids of the topics that are still read. Raises KafkaException,
    RightMissing, and what `first_offsets` raises.
    """
    topic = settings.claims_topic
    ends = first_offsets(settings, options, needed, topic_ids, epoch)
    partitions = [TopicPartition(topic, partition_of_lane(lane), end) for lane, end in ends.items() if end]
    if not partitions:
        return
    with admin_client(options, log) as client, right_named("Delete", f"topic {topic}"):
        for answer in client.delete_records(partitions, request_timeout=_TIMEOUT_S).values():
            answer.result()
