"""Input topics on a real broker: their offsets, their retention, and records that the job could not read."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import KafkaError, Message, Producer
from kafka.admin import KafkaAdminClient
from kafka.structs import TopicPartition

from conf.setting_types import HOUR
from conf.settings import Settings
from sinks.topics.input_ends import input_bounds, input_offsets_at, input_retentions
from sinks.topics.record_protection import INPUT_PROTECTION
from sinks.topics.topics import check_topics, ensure_topics
from sources.publisher import Publisher
from streaming.local.broker import EmbeddedBroker
from tests.conftest import MakeSettings, MakeTopic

# Kafka's value for no limit.
_FOREVER_MS = str((1 << 63) - 1)


def test_the_input_bounds_are_given_for_each_partition(settings: Settings) -> None:
    ensure_topics(settings, partitions=2)
    (name,) = settings.topics.input
    with Publisher(settings, name, partition=1) as publisher:
        assert len(list(publisher.publish([b"x"] * 3))) == 3
    assert input_bounds(settings) == {(name, 0): (0, 0), (name, 1): (0, 3)}


def test_below_the_offset_at_an_instant_all_records_are_older_whatever_their_timestamps_are(
    settings: Settings, broker: EmbeddedBroker
) -> None:
    ensure_topics(settings, partitions=4)
    (name,) = settings.topics.input
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    now_ms = time.time_ns() // 1_000_000
    ages_h = {0: (50, 3, 40, 1, 2), 1: (50, 60), 3: (50, 40, 30)}
    for partition, own in ages_h.items():
        for age_h in own:
            producer.produce(name, b"x", partition=partition, timestamp=now_ms - age_h * HOUR)
            assert producer.flush(30) == 0

    def offsets(instant_ms: int) -> list[int]:
        at = input_offsets_at(settings, instant_ms)
        return [at[name, number] for number in range(4)]

    before = {hours: offsets(now_ms - hours * HOUR) for hours in (70, 45, 35, 2, 0)}
    # All records of a partition without a younger record are old. An empty partition has no old ones.
    assert before == {70: [0, 0, 0, 0], 45: [1, 2, 0, 1], 35: [1, 2, 0, 2], 2: [3, 2, 0, 3], 0: [5, 2, 0, 3]}
    assert offsets(-1) == [0, 0, 0, 0], "Kafka takes it for the next offset"
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        admin.delete_records({TopicPartition(name, 0): 2, TopicPartition(name, 3): 3})
    producer.produce(name, b"x", partition=3, timestamp=now_ms - 50 * HOUR)
    assert producer.flush(30) == 0
    # Deleted records are old, and later records do not make any of them young again.
    assert offsets(now_ms - 45 * HOUR) == [2, 2, 0, 4]


def test_a_new_input_topic_refuses_what_the_job_could_not_read(settings: Settings, broker: EmbeddedBroker) -> None:
    ensure_topics(settings)
    options = {"bootstrap.servers": broker.bootstrap, "compression.type": "zstd", "message.max.bytes": 10_000_000}
    producer = Producer(options)
    errors: list[str | None] = []

    def report(error: KafkaError | None, _: Message) -> None:
        errors.append(None if error is None else error.name())

    for value, timestamp_ms in ((bytes(3_000_000), 1), (b"v", time.time_ns()), (b"v", -time.time_ns()), (b"v", 1)):
        producer.produce(settings.topics.input[0], value, timestamp=timestamp_ms, on_delivery=report)
        assert producer.flush(30) == 0
    assert errors == ["MSG_SIZE_TOO_LARGE", "INVALID_TIMESTAMP", "INVALID_TIMESTAMP", None]


@pytest.mark.parametrize(
    ("configs", "warned"),
    [
        (INPUT_PROTECTION, []),
        (INPUT_PROTECTION | {"compression.type": "producer"}, ["compression.type=producer"]),
        (INPUT_PROTECTION | {"message.timestamp.after.max.ms": _FOREVER_MS}, ["message.timestamp.after.max.ms"]),
        (INPUT_PROTECTION | {"message.timestamp.before.max.ms": _FOREVER_MS}, ["message.timestamp.before.max.ms"]),
        ({"message.timestamp.type": "LogAppendTime"}, ["compression.type=producer"]),
    ],
)
def test_an_input_topic_that_takes_what_the_job_cannot_read_is_named(
    make_settings: MakeSettings,
    make_topic: MakeTopic,
    caplog: pytest.LogCaptureFixture,
    configs: dict[str, str],
    warned: list[str],
) -> None:
    topic = make_topic(**configs)
    settings = make_settings(f"topics.input={topic}")
    ensure_topics(settings)
    check_topics(settings)
    assert caplog.text.count("input topic") == len(warned)
    assert all(f"input topic {topic} has {key}" in caplog.text for key in warned)


def test_retention_is_listed_for_topics_that_delete_records_by_the_publishers_timestamp(
    make_settings: MakeSettings, make_topic: MakeTopic
) -> None:
    default, short = make_topic(), make_topic(**{"retention.ms": "5000"})
    others = [
        {"retention.ms": "-1"},
        {"cleanup.policy": "compact"},
        {"message.timestamp.type": "LogAppendTime"},
    ]
    topics = [default, short, *(make_topic(**configs) for configs in others)]
    settings = make_settings(f"topics.input={','.join(topics)}")
    assert input_retentions(settings) == {default: 7 * 86_400_000, short: 5_000}
