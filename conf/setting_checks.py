"""Checks of settings across several sections. Each function returns the problems as sentences."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from conf.sections import (
    ClockSettings,
    MonitorSettings,
    ReleaseSettings,
    SparkSettings,
    StorageSettings,
    TopicSettings,
    WebSettings,
)
from conf.spark_options import CHECKPOINT_FILE_MANAGER
from conf.topic_tables import PolicySettings, PresetSettings, RateSettings

# Hosts of addresses of which two cannot have the same port, besides equal ones.
_THIS_HOST = frozenset({"0.0.0.0", "127.0.0.1", "localhost", "[::]", "[::1]"})  # noqa: S104, nothing listens here
_MOST_PORT = 65_535


def wrong_ports(monitor: MonitorSettings, web: WebSettings, releases: int, forwarders: int) -> list[str]:
    """Return what is wrong with the ports of a host that runs the job, its processes and the page."""
    listeners = [("monitor.job", monitor.job, "monitor.job", 0), ("web.address", web.address, "web.address", 0)]
    # With none, a process of a command of its own has the address, and may be on another host.
    for key, address, user, processes in (
        ("monitor.release", monitor.release, "release process {} of release.processes", releases),
        ("monitor.forward", monitor.forward, "forwarder {} of forward.processes", forwarders),
    ):
        listeners += [(key, address, user.format(number + 1), number) for number in range(processes)]
    wrong: list[str] = []
    taken: list[tuple[str, int, str]] = []
    for key, address, user, number in listeners:
        host, _, first = address.rpartition(":")
        # "" is nowhere, and port 0 any free one.
        if not address or not int(first):
            continue
        port = int(first) + number
        if port > _MOST_PORT:
            wrong.append(f"{key} = {address!r}: allowed are ports up to {_MOST_PORT}, and {user} would take {port}")
            break
        for other_host, other_port, other in taken:
            if port == other_port and (host == other_host or {host, other_host} <= _THIS_HOST):
                wrong.append(f"{key} = {address!r}: {user} would take port {port}, which {other} uses")
        taken.append((host, port, user))
    return wrong


def wrong_topics(topics: TopicSettings, results: str, own: Mapping[str, str]) -> list[str]:
    """Return what is wrong with the names of topics.

    `results` is the results topic, and `own` has the internal topics by what they are for.
    """
    outputs = {"output": topics.output, "dead_letter": topics.dead_letter, "results": results, **own}
    wrong = [
        f"topics.{key} = {topic!r}: allowed is a topic that is not in topics.input"
        if key not in own
        else f"topics.input = {topic!r}: allowed is a topic that is not internal to this application_id"
        for key, topic in outputs.items()
        if topic in topics.input
    ]
    # Names only: the job leaves out what a pattern matches by accident.
    wrong += [
        f"topics.allowed_outputs = {topic!r}: input, dead-letter, results and internal topics are not allowed"
        for topic in topics.allowed_outputs
        if topic in {*topics.input, topics.dead_letter, results, *own.values()}
    ]
    if len(set(outputs.values())) != len(outputs):
        wrong.append(f"topics: {', '.join(outputs)} must be different topics, not {outputs}")
    return wrong


def wrong_tables(
    topics: TopicSettings, results: str, policies: PolicySettings, presets: PresetSettings, rates: RateSettings
) -> list[str]:
    """Return which tables are for topics that cannot have one. `results` is the results topic."""
    by_topic = {f"presets.{topic}" for topic in presets.by_topic} | {f"policies.{topic}" for topic in policies.by_topic}
    wrong = [
        f"{key}: allowed are topics in topics.input"
        for key in sorted(by_topic)
        if key.partition(".")[2] not in topics.input
    ]
    wrong += [
        f"rates.{topic}: allowed are topics.output, topics.allowed_outputs, the dead-letter and the results topic"
        for topic in rates.by_topic
        if topic not in {topics.output, topics.dead_letter, results}
        and not any(fnmatchcase(topic, pattern) for pattern in topics.allowed_outputs)
    ]
    return wrong


def wrong_policies(policies: PolicySettings) -> list[str]:
    """Return which policies contradict each other."""
    own = {f"policies.{topic}": policy for topic, policy in policies.by_topic.items()}
    wrong = []
    for key, policy in {"policies": policies.of_all, **own}.items():
        given = max(policy.default_delay, policy.fixed_delay or 0)
        if policy.over_max_delay == "reject" and given > policy.max_delay:
            wrong.append(f"{key}: default_delay and fixed_delay must not exceed max_delay")
        # A due time that is taken over can be after the instant in the header, and does not fit the schedule.
        refused = {"repeats": policy.repeats, "expiry_header": policy.expiry_header}
        wrong += [
            f'{key}: {name} and name_mode = "keep-time" must not be set together'
            for name, value in refused.items()
            if value and policy.name_mode == "keep-time"
        ]
    return wrong


def wrong_times(clock: ClockSettings, release: ReleaseSettings) -> list[str]:
    """Return which times of batches and transactions do not fit each other."""
    wrong = []
    if clock.trigger > clock.horizon:
        wrong.append(
            "clock.trigger: allowed is a duration up to clock.horizon. With a longer one, messages would be late"
        )
    if 4 * release.slice > release.transaction_timeout:
        wrong.append(
            "release.slice: allowed is a duration up to a quarter of release.transaction_timeout. The "
            "rest of it is left for the work on a transaction"
        )
    # A transaction's last message is due a slice after its first, which is due a lead after it is written. If it is
    # due later than in half of the timeout, the clock counts as set back (`sinks.release.ring`).
    if 2 * (release.lead + release.slice) > release.transaction_timeout:
        wrong.append(
            "release.lead: release.lead and release.slice together must not exceed half of "
            "release.transaction_timeout. A transaction is open for that long before its messages are due"
        )
    return wrong


def wrong_storage(storage: StorageSettings, spark: SparkSettings) -> list[str]:
    """Return what is wrong with Spark's options for this storage."""
    # On S3 alone: for a file system that Delayline does not know, a deployment may have a better one than Spark's.
    if storage.path.startswith("s3a:") and CHECKPOINT_FILE_MANAGER in spark.options:
        return [
            f"[spark]: {CHECKPOINT_FILE_MANAGER} is not allowed if storage.path is on S3. Other classes "
            "than Delayline's may leave a checkpoint file half written"
        ]
    return []
