"""Which topics a job needs: their roles, and the form of each."""

from __future__ import annotations

from typing import Any, Literal

from conf.settings import Settings
from sinks.topics.record_protection import INPUT_PROTECTION, READY_MAX_BYTES
from state.lanes import partition_of_lane
from state.recalled import partition_of_shard

# Kafka's value for "the broker decides", for the partition count and the replication factor.
BROKER_DEFAULT = -1
_COMPACTED = {"cleanup.policy": "compact"}
# A heartbeat comes every other second, and only the last one counts. Kafka compacts closed segments, never an open one.
_SHORT_SEGMENTS = {"segment.bytes": str(1024 * 1024)}
# The stamps on heartbeats are the broker's clock, with which the job compares its own.
BROKER_STAMPS = {"message.timestamp.type": "LogAppendTime"}
# Only the service may delete records of its logs.
LOGS = frozenset({"ready", "near", "claims"})
_KEPT = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}


Role = Literal[
    "input", "output", "dead letter", "results", "progress", "lease", "ready", "position", "near", "claims", "recalled"
]


def needed_topics(settings: Settings) -> dict[str, Role]:
    """Return the topics that should exist, with the role of each. Patterns on the allow-list require no topic."""
    exact = [name for name in settings.topics.allowed_outputs if not set(name) & set("*?[")]
    outputs: dict[str, Role] = dict.fromkeys(exact, "output")
    return {**dict.fromkeys(settings.topics.input, "input"), **outputs, **required_topics(settings)}


def required_topics(settings: Settings) -> dict[str, Role]:
    """Return the topics without which the service does not run, with the role of each.

    The others are outputs that a publisher chooses: without one of these only its messages are dead letters.
    """
    roles: dict[str, Role] = dict.fromkeys(settings.topics.input, "input")
    roles[settings.topics.output] = "output"
    roles[settings.topics.dead_letter] = "dead letter"
    roles[settings.results_topic] = "results"
    roles[settings.progress_topic] = "progress"
    roles[settings.lease_topic] = "lease"
    roles[settings.ready_topic] = "ready"
    roles[settings.position_topic] = "position"
    roles[settings.near_topic] = "near"
    roles[settings.claims_topic] = "claims"
    roles[settings.recalled_topic] = "recalled"
    return roles


def sharded_topics(settings: Settings) -> dict[str, Role]:
    """Return the internal topics that have a partition for each shard."""
    return {
        settings.progress_topic: "progress",
        settings.ready_topic: "ready",
        settings.position_topic: "position",
        settings.near_topic: "near",
        settings.claims_topic: "claims",
        settings.recalled_topic: "recalled",
    }


def partitions_of(role: Role, shards: int) -> int:
    """Return how many partitions an internal topic needs for `shards` shards, and as many lanes."""
    of_last = {"claims": partition_of_lane, "recalled": partition_of_shard}.get(role, int)(shards - 1)
    return 1 + of_last


def form_of(settings: Settings, role: Role, partitions: int, replication: int) -> dict[str, Any]:
    """Return how a topic is created: `partitions` of it, unless its role asks for another number."""
    form: dict[str, Any] = {"num_partitions": partitions, "replication_factor": replication}
    if role == "progress":
        return form | {"num_partitions": settings.bucket.shards, "configs": _COMPACTED}
    if role == "recalled":
        # Read from its beginning. Each segment becomes as small as the records that are left of it.
        configs = _COMPACTED | {"segment.bytes": str(16 * 1024 * 1024)}
        return form | {"num_partitions": partitions_of(role, settings.bucket.shards), "configs": configs}
    if role == "position":
        # It is written several times a second, and read from its end.
        return form | {"num_partitions": settings.bucket.shards, "configs": _COMPACTED | _SHORT_SEGMENTS}
    if role in ("ready", "near"):
        configs = _KEPT | {"max.message.bytes": str(READY_MAX_BYTES)}
        return form | {"num_partitions": settings.bucket.shards, "configs": configs}
    if role == "claims":
        # The stamps say since when something is claimed, for people and for the judge. Terms name each output topic.
        configs = _KEPT | BROKER_STAMPS | {"max.message.bytes": str(READY_MAX_BYTES)}
        return form | {"num_partitions": partitions_of(role, settings.bucket.shards), "configs": configs}
    if role == "input":
        return form | {"configs": INPUT_PROTECTION}
    if role == "lease":
        return form | {"num_partitions": 1, "configs": _COMPACTED | _SHORT_SEGMENTS | BROKER_STAMPS}
    return form
