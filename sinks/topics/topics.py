"""Creating the topics that a job needs, and checking them before it starts."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Literal

from kafka.admin import KafkaAdminClient
from kafka.errors import AuthorizationError, TopicAlreadyExistsError, for_code

from conf.errors import RightMissing, TopicMismatch, TopicMissing
from conf.settings import Settings
from sinks.topics.admin_client import REQUEST_TIMEOUT_MS, connected
from sinks.topics.internal_form import check_policy, check_shards, check_stamps
from sinks.topics.limits import dead_letter_limits
from sinks.topics.partitions import counts_of, describe
from sinks.topics.record_protection import check_records
from sinks.topics.roles import (
    BROKER_DEFAULT,
    LOGS,
    Role,
    form_of,
    needed_topics,
    partitions_of,
    required_topics,
    sharded_topics,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TopicReport:
    """One topic of a job. If it does not exist, `partitions` is 0 and `state` is "missing"."""

    name: str
    role: Role
    partitions: int
    state: Literal["exists", "created", "missing"]


def show_topics(settings: Settings) -> list[TopicReport]:
    """Return the state of each topic that the job needs. Raises BrokerUnreachable."""
    needed = needed_topics(settings)
    with connected(settings) as admin:
        counts = counts_of(describe(admin, needed))
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
        counts = counts_of(describe(admin, needed, required))
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
        check_shards(admin, settings, counts)
        check_policy(admin, settings.lease_topic)
        for topic in (settings.lease_topic, settings.claims_topic):
            check_stamps(admin, topic)
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
        existing = counts_of(describe(admin, needed))
        # Before any topic is created: a refusal should change nothing.
        check_shards(admin, settings, existing)
        wanted = {
            name: form_of(settings, role, partitions, replication)
            for name, role in needed.items()
            if name not in existing
        }
        # The dead-letter topic comes last, since its limit follows from the limits of the others.
        letters = {name: form for name, form in wanted.items() if name == settings.topics.dead_letter}
        created = _create(admin, {name: form for name, form in wanted.items() if name not in letters})
        if letters and (needed_bytes := dead_letter_limits(settings)[1]):
            letters[settings.topics.dead_letter]["configs"] = {"max.message.bytes": str(needed_bytes)}
        created |= _create(admin, letters)
        counts = counts_of(describe(admin, needed))
    return [
        TopicReport(name, role, counts.get(name, 0), "created" if name in created else "exists")
        for name, role in needed.items()
    ]


def ensure_shards(settings: Settings, shards: int) -> None:
    """Give the topics with a partition for each shard enough partitions for `shards`.

    Raises TopicMissing, TopicMismatch, BrokerUnreachable.
    """
    with connected(settings) as admin:
        counts = counts_of(describe(admin, sharded_topics(settings)))
        if settings.progress_topic not in counts:
            raise TopicMissing(
                f"{settings.progress_topic} (progress) is missing. Run `delayline topics create`, and start the job "
                "once: it restores from the checkpoint which messages are staged"
            )
        for topic, role in sharded_topics(settings).items():
            if topic not in counts:
                continue
            check_policy(admin, topic, "delete" if role in LOGS else "compact")
            if counts[topic] < (needed := partitions_of(role, shards)):
                _add_partitions(admin, topic, needed)


def _add_partitions(admin: KafkaAdminClient, topic: str, count: int) -> None:
    try:
        admin.create_partitions({topic: count})
    except AuthorizationError as problem:
        raise RightMissing(
            f"the broker refused to give {topic} {count} partitions. Grant the login of [kafka] the right Alter there"
        ) from problem


def _create(admin: KafkaAdminClient, wanted: dict[str, dict[str, Any]]) -> set[str]:
    """Create topics, and return which were created: another process may have created some in the meantime."""
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
