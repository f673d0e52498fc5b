"""The topics that a job needs: creating them, and checking them before it starts."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kafka.admin import ACLOperation, KafkaAdminClient, OffsetSpec
from kafka.errors import AuthorizationError, TopicAlreadyExistsError, for_code
from kafka.structs import TopicPartition

from conf.errors import RightMissing, TopicMismatch, TopicMissing
from conf.settings import Settings
from sinks.topics.admin_client import REQUEST_TIMEOUT_MS, connected, topic_configs
from sinks.topics.limits import dead_letter_limits
from sinks.topics.record_protection import INPUT_PROTECTION, READY_MAX_BYTES, check_records
from state.checkpoint.batch_settings import is_listed
from state.claims import partition_of_lane
from state.recalled import partition_of_shard

log = logging.getLogger(__name__)

# Kafka's value for "the broker decides", for the partition count and the replication factor.
BROKER_DEFAULT = -1
_COMPACTED = {"cleanup.policy": "compact"}
# A heartbeat comes every other second, and only the last one counts. Kafka compacts closed segments, never an open one.
_SHORT_SEGMENTS = {"segment.bytes": str(1024 * 1024)}
# The stamps on heartbeats are the broker's clock, with which the job compares its own.
_BROKER_STAMPS = {"message.timestamp.type": "LogAppendTime"}
# Only the service may delete records of its logs.
_LOGS = frozenset({"ready", "near", "claims"})
_KEPT = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}


Role = Literal[
    "input", "output", "dead letter", "results", "progress", "lease", "ready", "position", "near", "claims", "recalled"
]


@dataclass(frozen=True)
class TopicReport:
    """One topic of a job. If it does not exist, `partitions` is 0 and `state` is "missing"."""

    name: str
    role: Role
    partitions: int
    state: Literal["exists", "created", "missing"]


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


def partition_counts(settings: Settings, topics: Collection[str] | None = None) -> dict[str, int]:
    """Return the partition count of each of `topics`, without those that do not exist.

    None means every topic to which the job may write messages: the output topic, the dead-letter topic, the results
    topic, and the topics that the allow-list has, but never the job's input and internal topics.

    Raises RightMissing for a topic without which the service does not run, and whose existence the broker hides;
    BrokerUnreachable.
    """
    with connected(settings) as admin:
        if topics is None:
            return _counts(_possible_outputs(admin, settings))
        return _counts(_described(admin, topics, required_topics(settings)))


def offered_topics(settings: Settings) -> dict[str, int]:
    """Return the partition count of every topic to which the job may write messages, as it is when the job starts.

    That is what `partition_counts` returns, without the topics that the broker says this login may not write to. They
    are logged. Raises what that does.
    """
    with connected(settings) as admin:
        described = _possible_outputs(admin, settings)
    required = required_topics(settings)
    # With `release.processes` of 0 another login writes, of whose rights nothing is known here.
    barred = [each["name"] for each in described if settings.release.processes and _is_barred(each)]
    if barred := [name for name in barred if name not in required]:
        log.warning(
            "the login of [kafka] may not write to %s. Messages for it become dead letters (topic-unknown) "
            "until the next start",
            ", ".join(barred),
        )
    return {name: count for name, count in _counts(described).items() if name not in barred}


def show_topics(settings: Settings) -> list[TopicReport]:
    """Return the state of each topic that the job needs. Raises BrokerUnreachable."""
    needed = needed_topics(settings)
    with connected(settings) as admin:
        counts = _counts(_described(admin, needed))
    return [
        TopicReport(name, role, counts.get(name, 0), "exists" if name in counts else "missing")
        for name, role in needed.items()
    ]


def check_topics(settings: Settings, all_outputs: bool = False) -> dict[str, int]:
    """Return the partition count of every topic that the job needs, and log a warning if dead letters may be refused.

    Warns of input topics that let in records which the job could not read, and of topics that only the allow-list names
    and that do not exist; with `all_outputs` one of these is an error as well.

    Raises TopicMissing (which names each missing topic), TopicMismatch if an internal topic has a wrong form or the
    dead-letter topic takes no stubs, RightMissing, BrokerUnreachable.
    """
    needed = needed_topics(settings)
    required = needed if all_outputs else required_topics(settings)
    with connected(settings) as admin:
        counts = _counts(_described(admin, needed, required))
        if missing := [f"{name} ({role})" for name, role in needed.items() if name in required.keys() - counts.keys()]:
            raise TopicMissing(
                f"{', '.join(missing)} at {settings.kafka.bootstrap_servers}: missing. Create them with "
                "`delayline topics create`, or name other topics in [topics]"
            )
        if lacking := sorted(needed.keys() - counts.keys()):
            log.warning(
                "topics.allowed_outputs names %s, which does not exist or which the login of [kafka] may "
                "not describe. Messages for it become dead letters",
                ", ".join(lacking),
            )
        _check_shards(admin, settings, counts)
        _check_policy(admin, settings.lease_topic)
        for topic in (settings.lease_topic, settings.claims_topic):
            _check_stamps(admin, topic)
        check_records(admin, settings)
    return counts


def ensure_topics(
    settings: Settings, partitions: int = BROKER_DEFAULT, replication: int = BROKER_DEFAULT
) -> list[TopicReport]:
    """Create the missing ones of the topics that the job needs, and return the state of each.

    `partitions` applies to all but the progress topic, which has one for each shard, and the lease topic, which has
    one. The dead-letter topic is created so that it accepts whatever the input topics accept. Raises TopicMismatch if
    an existing progress topic has a wrong form, or the broker refuses to create a topic; BrokerUnreachable.
    """
    needed = needed_topics(settings)
    with connected(settings) as admin:
        existing = _counts(_described(admin, needed))
        # Before any topic is created: a refusal should change nothing.
        _check_shards(admin, settings, existing)
        wanted = {
            name: _form(settings, role, partitions, replication)
            for name, role in needed.items()
            if name not in existing
        }
        # The dead-letter topic comes last, since its limit follows from those of the others.
        letters = {name: form for name, form in wanted.items() if name == settings.topics.dead_letter}
        created = _create(admin, {name: form for name, form in wanted.items() if name not in letters})
        if letters and (needed_bytes := dead_letter_limits(settings)[1]):
            letters[settings.topics.dead_letter]["configs"] = {"max.message.bytes": str(needed_bytes)}
        created |= _create(admin, letters)
        counts = _counts(_described(admin, needed))
    return [
        TopicReport(name, role, counts.get(name, 0), "created" if name in created else "exists")
        for name, role in needed.items()
    ]


def ensure_shards(settings: Settings, shards: int) -> None:
    """Give the topics that have a partition for each shard as many as `shards`.

    Raises TopicMissing, TopicMismatch, BrokerUnreachable.
    """
    with connected(settings) as admin:
        counts = _counts(_described(admin, _sharded(settings)))
        if settings.progress_topic not in counts:
            raise TopicMissing(
                f"{settings.progress_topic} (progress) is missing. Nothing else records which messages are "
                "staged. Restore it from a backup"
            )
        for topic, role in _sharded(settings).items():
            if topic not in counts:
                continue
            _check_policy(admin, topic, "delete" if role in _LOGS else "compact")
            if counts[topic] < (needed := _partitions(role, shards)):
                admin.create_partitions({topic: needed})


def input_bounds(settings: Settings) -> dict[tuple[str, int], tuple[int, int]]:
    """Return, for each (input topic, partition), the offsets of its first record and of the next record."""
    with connected(settings) as admin:
        counts = _counts(_described(admin, settings.topics.input))
        partitions = [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]
        first, last = (
            admin.list_partition_offsets(dict.fromkeys(partitions, spec))
            for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)
        )
    return {(each.topic, each.partition): (first[each].offset, last[each].offset) for each in partitions}


def input_offsets_at(settings: Settings, instant_ms: int) -> dict[tuple[str, int], int]:
    """Return, for each (input topic, partition), the offset below which all records are older than `instant_ms`.

    It is that of the first record with this timestamp (epoch ms) or a later one, or that of the next record if there is
    none; so it is never below the first record that the topic keeps. Asked for later, and for an instant that is not
    earlier, it is never less, whatever timestamps publishers set, and whatever the topic deletes or compacts.
    """
    with connected(settings) as admin:
        counts = _counts(_described(admin, settings.topics.input))
        partitions = [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]
        # Before the records are looked up: what comes meanwhile may be younger.
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


def _writable(settings: Settings, names: Collection[str]) -> list[str]:
    written = (settings.topics.output, settings.topics.dead_letter, settings.results_topic)
    listed = (*written, *settings.topics.allowed_outputs)
    # A message sent to an input topic still has its delay header, and would loop forever.
    barred = {*settings.topics.input, *settings.own_topics}
    return [name for name in names if name not in barred and is_listed(name, listed)]


def _names(admin: KafkaAdminClient) -> list[str]:
    return sorted(name for name in admin.list_topics() if not name.startswith("__"))


def _described(
    admin: KafkaAdminClient, topics: Collection[str], required: Collection[str] | None = None
) -> list[dict[str, Any]]:
    """Return what the broker says of each of `topics` that exists and that it shows.

    Raises RightMissing if it hides one that is `required`: any of them by default.
    """
    # The client takes an empty list for "all topics".
    described: list[dict[str, Any]] = admin.describe_topics(list(topics)) if topics else []
    problems = {topic["name"]: for_code(topic["error_code"]) for topic in described}
    hidden = [name for name, problem in problems.items() if issubclass(problem, AuthorizationError)]
    if hidden := [name for name in hidden if required is None or name in required]:
        raise RightMissing(
            f"the broker hides whether {', '.join(hidden)} exists. Grant the login of [kafka] the right Describe there"
        )
    return [topic for topic in described if topic["error_code"] == 0]


def _possible_outputs(admin: KafkaAdminClient, settings: Settings) -> list[dict[str, Any]]:
    # Also the topics that the settings name: the listing leaves out names that begin like Kafka's own.
    names = _writable(settings, sorted({*_names(admin), *needed_topics(settings)}))
    return _described(admin, names, required_topics(settings))


def _counts(described: list[dict[str, Any]]) -> dict[str, int]:
    return {topic["name"]: len(topic["partitions"]) for topic in described}


def _is_barred(described: dict[str, Any]) -> bool:
    """Return whether a broker has said that the login may not write to a topic."""
    # Describe is among them, or the broker reports none, as before Kafka 2.3.
    allowed: list[str] = described.get("authorized_operations") or []
    return bool(allowed) and ACLOperation.WRITE.name not in allowed


def _form(settings: Settings, role: Role, partitions: int, replication: int) -> dict[str, Any]:
    form: dict[str, Any] = {"num_partitions": partitions, "replication_factor": replication}
    if role == "progress":
        return form | {"num_partitions": settings.bucket.shards, "configs": _COMPACTED}
    if role == "recalled":
        # Read from its beginning. Each segment becomes as small as the records that are left of it.
        configs = _COMPACTED | {"segment.bytes": str(16 * 1024 * 1024)}
        return form | {"num_partitions": _partitions(role, settings.bucket.shards), "configs": configs}
    if role == "position":
        # It is written several times a second, and read from its end.
        return form | {"num_partitions": settings.bucket.shards, "configs": _COMPACTED | _SHORT_SEGMENTS}
    if role in ("ready", "near"):
        configs = _KEPT | {"max.message.bytes": str(READY_MAX_BYTES)}
        return form | {"num_partitions": settings.bucket.shards, "configs": configs}
    if role == "claims":
        # The stamps say since when something is claimed, for people and for the judge.
        configs = _KEPT | _BROKER_STAMPS
        return form | {"num_partitions": _partitions(role, settings.bucket.shards), "configs": configs}
    if role == "input":
        return form | {"configs": INPUT_PROTECTION}
    if role == "lease":
        return form | {"num_partitions": 1, "configs": _COMPACTED | _SHORT_SEGMENTS | _BROKER_STAMPS}
    return form


def _create(admin: KafkaAdminClient, wanted: dict[str, dict[str, Any]]) -> set[str]:
    """Create topics, and return which were created: another process may have created some meanwhile."""
    if not wanted:
        return set()
    created, refused = set(), []
    barred: list[str] = []
    for topic in admin.create_topics(wanted, raise_errors=False)["topics"]:
        problem = for_code(topic["error_code"])
        if topic["error_code"] == 0:
            created.add(topic["name"])
        elif issubclass(problem, AuthorizationError):
            barred.append(topic["name"])
        elif problem is not TopicAlreadyExistsError:
            refused.append(f"{topic['name']}: {topic['error_message'] or problem.__name__}")
    if barred:
        raise RightMissing(
            f"the broker refused to create {', '.join(barred)}. Grant the login of [kafka] the right Create "
            "on the cluster, or on topics with these names"
        )
    if refused:
        raise TopicMismatch(f"the broker refused to create {'; '.join(refused)}")
    admin.wait_for_topics(list(wanted), timeout_ms=REQUEST_TIMEOUT_MS)
    return created


def _sharded(settings: Settings) -> dict[str, Role]:
    """Return the internal topics that have a partition for each shard."""
    return {
        settings.progress_topic: "progress",
        settings.ready_topic: "ready",
        settings.position_topic: "position",
        settings.near_topic: "near",
        settings.claims_topic: "claims",
        settings.recalled_topic: "recalled",
    }


def _partitions(role: Role, shards: int) -> int:
    """Return how many partitions an internal topic needs for `shards` shards, and as many lanes."""
    of_last = {"claims": partition_of_lane, "recalled": partition_of_shard}.get(role, int)(shards - 1)
    return 1 + of_last


def _check_shards(admin: KafkaAdminClient, settings: Settings, counts: Mapping[str, int]) -> None:
    """Check those of the internal topics with a partition for each shard that exist."""
    for name, role in _sharded(settings).items():
        if name not in counts:
            continue
        # More partitions are fine: there may have been more shards once.
        if counts[name] < _partitions(role, settings.bucket.shards):
            raise TopicMismatch(
                f"{role} topic {name} has {counts[name]} partitions, but bucket.shards is "
                f"{settings.bucket.shards}. Set bucket.shards back, or move the application to more shards "
                "with `delayline rescale`"
            )
        _check_policy(admin, name, "delete" if role in _LOGS else "compact")
        if role in _LOGS:
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


def _check_policy(admin: KafkaAdminClient, name: str, allowed: str = "compact") -> None:
    policy = topic_configs(admin, [name], ["cleanup.policy"])[name]["cleanup.policy"]
    if policy != allowed:
        raise TopicMismatch(
            f"topic {name} has cleanup.policy={policy}, and would lose records that the job needs. Set it to {allowed}"
        )


def _check_stamps(admin: KafkaAdminClient, topic: str) -> None:
    """Raise TopicMismatch if heartbeats of the lease, or claims, do not have the broker's time."""
    config = topic_configs(admin, [topic], _BROKER_STAMPS.keys())[topic]
    if wrong := [f"{key}={config[key]}" for key, value in _BROKER_STAMPS.items() if config[key] != value]:
        raise TopicMismatch(
            f"topic {topic} has {wrong[0]}, so the job cannot compare clocks with the broker. Set "
            "message.timestamp.type=LogAppendTime (kafka-configs.sh --alter)"
        )
