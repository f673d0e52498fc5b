"""Where the partitions of the input topics begin and end, and for how long they keep records."""

from __future__ import annotations

from kafka.admin import OffsetSpec
from kafka.structs import TopicPartition

from conf.settings import Settings
from sinks.topics.admin_client import connected, topic_configs
from sinks.topics.partitions import counts_of, describe


def input_bounds(settings: Settings) -> dict[tuple[str, int], tuple[int, int]]:
    """Return, for each (input topic, partition), the offsets of its first record and of the next record."""
    with connected(settings) as admin:
        counts = counts_of(describe(admin, settings.topics.input))
        partitions = [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]
        first, last = (
            admin.list_partition_offsets(dict.fromkeys(partitions, spec))
            for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)
        )
    return {(each.topic, each.partition): (first[each].offset, last[each].offset) for each in partitions}


def input_offsets_at(settings: Settings, instant_ms: int) -> dict[tuple[str, int], int]:
    """Return, for each (input topic, partition), the offset below which all records are older than `instant_ms`.

    It is the offset of the first record with this timestamp (epoch ms) or a later one. Without such a record it is the
    offset of the next record. So it is never below the first record that the topic keeps. A later call, for the same or
    a later instant, never returns less, whatever timestamps publishers set, and whatever the topic deletes or compacts.
    """
    with connected(settings) as admin:
        counts = counts_of(describe(admin, settings.topics.input))
        partitions = [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]
        # Read the ends before the records are looked up: records that come in between may be younger.
        ends = admin.list_partition_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST))
        # Below 0 are Kafka's own values for the first offset, and the next one.
        found = admin.list_partition_offsets(dict.fromkeys(partitions, max(0, instant_ms)))
    return {
        (each.topic, each.partition): ends[each].offset if found[each].offset < 0 else found[each].offset
        for each in partitions
    }


def input_retentions(settings: Settings) -> dict[str, int]:
    """Return retention.ms of each input topic that deletes records by the timestamps that publishers set.

    Raises RightMissing for a topic that the login may not describe, BrokerUnreachable.
    """
    keys = ("retention.ms", "cleanup.policy", "message.timestamp.type")
    with connected(settings) as admin:
        configs = topic_configs(admin, settings.topics.input, keys)
    return {
        name: int(config["retention.ms"])
        for name, config in configs.items()
        if "delete" in config["cleanup.policy"]
        and config["message.timestamp.type"] == "CreateTime"
        and int(config["retention.ms"]) >= 0
    }
