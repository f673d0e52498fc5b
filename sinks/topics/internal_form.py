"""Checks of the internal topics: without the form that they need, records that the service needs would be lost."""

from __future__ import annotations

from collections.abc import Mapping

from kafka.admin import KafkaAdminClient

from conf.errors import TopicMismatch
from conf.settings import Settings
from sinks.topics.admin_client import topic_configs
from sinks.topics.roles import BROKER_STAMPS, LOGS, Role, partitions_of, sharded_topics


def check_shards(admin: KafkaAdminClient, settings: Settings, counts: Mapping[str, int]) -> None:
    """Check the existing internal topics that have a partition for each shard. Raises TopicMismatch."""
    for name, role in sharded_topics(settings).items():
        if name not in counts:
            continue
        # More partitions are fine: there may have been more shards once.
        if counts[name] < partitions_of(role, settings.bucket.shards):
            raise TopicMismatch(
                f"{role} topic {name} has {counts[name]} partitions, but bucket.shards is "
                f"{settings.bucket.shards}. Set bucket.shards back, or move the application to more shards "
                "with `delayline rescale`"
            )
        check_policy(admin, name, "delete" if role in LOGS else "compact")
        if role in LOGS:
            _check_retention(admin, name, role)


def _check_retention(admin: KafkaAdminClient, topic: str, role: Role) -> None:
    """Raise TopicMismatch if the broker may delete records of an internal log."""
    keys = ("retention.ms", "retention.bytes")
    config = topic_configs(admin, [topic], keys)[topic]
    if limited := [f"{key}={config[key]}" for key in keys if int(config[key]) != -1]:
        raise TopicMismatch(
            f"{role} topic {topic} has {' and '.join(limited)}. Records that the service still needs could "
            "be deleted. Set both to -1 (kafka-configs.sh --alter). The service itself deletes old records"
        )


def check_policy(admin: KafkaAdminClient, name: str, allowed: str = "compact") -> None:
    """Raise TopicMismatch if a topic has another cleanup policy than is `allowed`."""
    policy = topic_configs(admin, [name], ["cleanup.policy"])[name]["cleanup.policy"]
    if policy != allowed:
        raise TopicMismatch(
            f"topic {name} has cleanup.policy={policy}, and would lose records that the job needs. Set it to {allowed}"
        )


def check_stamps(admin: KafkaAdminClient, topic: str) -> None:
    """Raise TopicMismatch if heartbeats of the lease, or claims, do not have the broker's time."""
    config = topic_configs(admin, [topic], BROKER_STAMPS.keys())[topic]
    if wrong := [f"{key}={config[key]}" for key, value in BROKER_STAMPS.items() if config[key] != value]:
        raise TopicMismatch(
            f"topic {topic} has {wrong[0]}, so the job cannot compare clocks with the broker. Set "
            "message.timestamp.type=LogAppendTime (kafka-configs.sh --alter)"
        )
