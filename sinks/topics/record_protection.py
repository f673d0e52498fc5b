"""Protection against single records that would stop the job: set on new topics, and checked before a start.

An input topic is created with:

- `compression.type=uncompressed`: a broker then applies `max.message.bytes` to what a batch holds when it is not
  compressed. Otherwise a batch of a few kilobytes can hold a record of gigabytes, which no memory of Spark's can take.
- `message.timestamp.after.max.ms`: Spark reads no timestamp after the year 294,247, as those in nanoseconds are.
- `message.timestamp.before.max.ms`: nor one as far before 1970. Some clients send negative numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from kafka.admin import KafkaAdminClient

from conf.errors import TopicMismatch
from conf.settings import Settings
from sinks.topics.admin_client import shown_configs, topic_configs
from sinks.topics.limits import dead_letter_limits
from state.stub import MOST_STUB_BYTES

log = logging.getLogger(__name__)

# A chunk of the ready log may be as large as a broker takes a request.
READY_MAX_BYTES = 100_000_000
# The overhead of a chunk with one message: its columns, its summary, and what Arrow and Kafka put around it.
_READY_OVERHEAD_BYTES = 16_384
_AFTER, _BEFORE = "message.timestamp.after.max.ms", "message.timestamp.before.max.ms"
_COMPRESSION, _TIMESTAMP, _POLICY = "compression.type", "message.timestamp.type", "cleanup.policy"
_HOUR_MS = 3_600_000
# A limit above this one lets in timestamps that Spark cannot read: it is 1,000 years before the last that it can.
_LARGEST_MS = 9_190_000_000_000_000
# The limit of an hour is Kafka's own default since 4.0.
INPUT_PROTECTION = {_AFTER: str(_HOUR_MS), _BEFORE: str(_LARGEST_MS), _COMPRESSION: "uncompressed"}


def check_records(admin: KafkaAdminClient, settings: Settings) -> None:
    """Warn of topics that take, or refuse, records which the job cannot do without.

    Raises TopicMismatch for a ready topic that has no room for a message, or a dead-letter topic that has none for a
    stub.
    """
    _warn_of_unprotected(admin, settings.topics.input)
    _check_ready(admin, settings)
    _check_dead_letter(settings)


def _warn_of_unprotected(admin: KafkaAdminClient, topics: Collection[str]) -> None:
    for name, config in shown_configs(admin, topics, [_AFTER, _BEFORE, _COMPRESSION, _TIMESTAMP, _POLICY]).items():
        if "compact" in config.get(_POLICY, ""):
            log.warning(
                "input topic %s has %s=%s. Compaction may delete a record before the job reads it, and a "
                "replayed batch may find other records, which ends the job. Set it to delete",
                name, _POLICY, config[_POLICY],
            )  # fmt: skip
        if config.get(_COMPRESSION, "uncompressed") != "uncompressed":
            log.warning(
                "input topic %s has %s=%s. A small compressed batch may hold more records than fit into "
                "Spark's memory, which would stop the job. With %s=uncompressed, max.message.bytes limits "
                "the uncompressed size",
                name, _COMPRESSION, config[_COMPRESSION], _COMPRESSION,
            )  # fmt: skip
        limits = (_AFTER, _BEFORE) if config.get(_TIMESTAMP) == "CreateTime" else ()
        for key in limits:
            if int(config.get(key, 0)) > _LARGEST_MS:
                log.warning(
                    "input topic %s has %s=%s. A record with a timestamp that Spark cannot read, such as "
                    "nanoseconds, would stop the job. Set it to %s",
                    name, key, config[key], INPUT_PROTECTION[key],
                )  # fmt: skip


def _check_ready(admin: KafkaAdminClient, settings: Settings) -> None:
    """Raise TopicMismatch if a message of the largest size may not fit the ready log, or the near log."""
    key = "max.message.bytes"
    needed = settings.limits.max_message_bytes * 9 // 8 + _READY_OVERHEAD_BYTES
    for topic, config in topic_configs(admin, [settings.ready_topic, settings.near_topic], [key]).items():
        if int(config[key]) < needed:
            raise TopicMismatch(
                f"topic {topic} has {key}={config[key]}, which is too small for a message of "
                f"limits.max_message_bytes. Set it to {READY_MAX_BYTES} (kafka-configs.sh --alter), or lower "
                "limits.max_message_bytes"
            )


def _check_dead_letter(settings: Settings) -> None:
    """Warn if the topic would lose dead letters or keep only stubs. Raises TopicMismatch if stubs do not fit."""
    limits, needed = dead_letter_limits(settings)
    topic = settings.topics.dead_letter
    if limits.max_bytes < MOST_STUB_BYTES:
        raise TopicMismatch(
            f"dead-letter topic {topic} has max.message.bytes={limits.max_bytes}, but a stub takes up to "
            f"{MOST_STUB_BYTES}. Set it to at least {max(needed, MOST_STUB_BYTES)} (kafka-configs.sh "
            "--alter)"
        )
    if limits.max_bytes < needed:
        log.warning(
            "dead-letter topic %s has max.message.bytes=%d. It is smaller than the largest message of an "
            "input topic: of such a dead letter, only a stub would be kept. Set it to at least %d",
            topic, limits.max_bytes, needed,
        )  # fmt: skip
    if limits.needs_key:
        log.warning(
            "dead-letter topic %s is compacted. It loses dead letters, and keeps only a stub of dead "
            "letters without a key. Set its cleanup.policy to delete",
            topic,
        )
