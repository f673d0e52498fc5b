"""Topics that change under the running service: partitions added, records expired, an output topic deleted."""

from __future__ import annotations

import re
import signal
import time

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from tests.eventually import assert_eventually
from tests.system.conftest import Application, MakeService
from tests.system.ledger import Header, Ledger
from tests.system.load import publish_mixed
from tests.system.service import Service

_FLOOD = 6_000


@pytest.mark.thorough
@pytest.mark.takes(100)
def test_added_partitions_are_used_expired_records_are_named_and_a_deleted_topic_of_a_publisher_stops_nothing(
    application: Application, make_service: MakeService
) -> None:
    side = f"{application.id}-side"
    few = "limits.messages_per_trigger=1000"
    service, ledger = make_service(f"topics.allowed_outputs={application.other},{side}", few)
    admin = AdminClient({"bootstrap.servers": application.bootstrap})
    service.start()
    publish_mixed(ledger, application, 100, seed=1, longest_ms=3_000)
    ledger.wait_for_all(60)

    # Partitions are added. The input's are read at once, the output's are used after the next start.
    new_partitions = [NewPartitions(application.input, 4), NewPartitions(application.output, 4)]
    for future in admin.create_partitions(new_partitions).values():
        future.result()
    for topic in (application.input, application.output):
        assert_eventually(lambda: len(admin.list_topics(topic, 10).topics[topic].partitions) == 4)  # noqa: B023
    ledger.reread()
    for number in range(40):
        ledger.publish(
            application.input, b"n", [("deliver-after", b"8s")], key=b"k%d" % number, partition=2 + number % 2,
            output=application.output, delay_ms=8_000,
        )  # fmt: skip
    publish_mixed(ledger, application, 100, seed=2, longest_ms=8_000)
    ledger.verify_after_outage(60)
    assert _partitions(ledger, application.output) == {0, 1}

    _expire_unread(application, admin, service, side)

    # The output topic of waiting messages is deleted: these alone become dead letters.
    service.overrides.append("topics.skip_expired=true")
    service.start()
    for number in range(20):
        ledger.publish(
            application.input, b"%d" % number, [("deliver-to", side.encode()), ("deliver-after", b"4s")],
            key=b"k%d" % number, output=application.dead,
        )  # fmt: skip
    publish_mixed(ledger, application, 100, seed=3, longest_ms=9_000)
    admin.delete_topics([side])[side].result()
    ledger.verify_after_outage(90)
    assert service.log.count(f"messages for {side} become dead letters: topic-closed: output topic {side} was") == 1
    assert "continues without records" in service.log
    # It is created again. When the next message is due, the last look was more than a few seconds ago.
    admin.create_topics([NewTopic(side, 2, 1)])[side].result()
    _send(application, side, delay=b"9s")
    assert_eventually(lambda: _count(application, side) == 1, 60)
    # It is deleted for good: the job starts without it.
    admin.delete_topics([side])[side].result()
    assert service.stop() == 0, service.log[-3000:]
    service.start()
    assert f"topics.allowed_outputs names {side}, which does not exist" in service.log
    publish_mixed(ledger, application, 100, seed=4, longest_ms=3_000)
    ledger.verify_after_outage(60)
    assert _partitions(ledger, application.output) == {0, 1, 2, 3}
    assert service.stop() == 0, service.log[-3000:]


@pytest.mark.thorough
@pytest.mark.parametrize(("point", "new"), [("state-held", 500), ("state-held", 30), ("staged", 500)])
def test_a_batch_that_was_cut_off_reads_nothing_of_an_input_topic_that_was_created_again(
    application: Application, make_service: MakeService, point: str, new: int
) -> None:
    also = f"{application.id}-also"
    admin = AdminClient({"bootstrap.servers": application.bootstrap})
    admin.create_topics([NewTopic(also, 2, 1)])[also].result()
    # Nothing is sealed.
    both = f"topics.input={application.input},{also}"
    # Where forwarders take everything, no batch stages anything.
    forwarders = "forward.processes=0" if point == "staged" else "forward.processes=1"
    service, ledger = make_service("limits.messages_per_trigger=100", "bucket.max_messages=100000", both, forwarders)
    _number(application, b"waiting", 40, [("deliver-after", b"60s")])
    _number(application, b"old", 300)
    # The batch reads records of this one in any case.
    _number(application, b"other", 300, topic=also)
    service.start(f"{point}@3=kill", wait=False)
    assert service.wait(120) == -signal.SIGKILL, service.log[-3000:]

    admin.delete_topics([application.input])[application.input].result()
    assert_eventually(lambda: application.input not in admin.list_topics(timeout=10).topics)
    admin.create_topics([NewTopic(application.input, 2, 1)])[application.input].result()
    # Beyond the offsets of the batch that was cut off, or not.
    _number(application, b"new", new)
    service.overrides.append("topics.skip_expired=true")
    service.start()

    def count(kind: bytes) -> int:
        return len({record.value for record in ledger.got if (record.value or b"").startswith(kind)})

    ledger.wait_for(lambda: (count(b"new"), count(b"waiting"), count(b"other")) == (new, 40, 300), 120)
    assert service.stop() == 0, service.log[-3000:]
    # Nothing came twice. Records that only the batch that was cut off has read are lost with their topic.
    assert len(ledger.got) == new + 40 + 300 + count(b"old")
    ledger.close()


def _number(
    application: Application, kind: bytes, count: int, headers: list[Header] | None = None, topic: str = ""
) -> None:
    """Publish messages with different values, without the ledger, which would take two records with one id for one."""
    producer = Producer({"bootstrap.servers": application.bootstrap})
    for number in range(count):
        topic, value = topic or application.input, b"%s-%d" % (kind, number)
        producer.produce(topic, value, partition=number % 2, headers=[*(headers or [])])
    assert producer.flush(30) == 0


@pytest.mark.thorough
@pytest.mark.takes(60)
def test_a_replay_that_finds_a_compacted_input_topic_is_refused_before_it_hands_over(
    application: Application, make_service: MakeService
) -> None:
    service, ledger = make_service("bucket.max_messages=10")
    producer = Producer({"bootstrap.servers": application.bootstrap})

    def publish(value: bytes, due: bytes) -> None:
        for number in range(200):
            producer.produce(
                application.input, value, b"k%d" % (number % 20), partition=0, headers=[("deliver-after", due)]
            )
        assert producer.flush(30) == 0

    publish(b"v", b"1h")
    service.start("sealed=kill", wait=False)
    assert service.wait(120) == -signal.SIGKILL, service.log[-3000:]

    _compact(application)
    publish(b"later", b"2h")
    assert_eventually(lambda: _count(application, application.input) < 300, 120, "the topic is compacted")
    service.start(wait=False)
    assert service.wait(120) == 1
    assert f"input topic {application.input} has cleanup.policy=compact" in service.log
    assert re.search(r"error: checkpoint-mismatch: batch 0 sealed \d+ messages .* of shard", service.log)
    assert "The replay stages no messages" in service.log
    ledger.close()


def _compact(application: Application) -> None:
    """Let the broker compact the input topic soon."""
    admin = AdminClient({"bootstrap.servers": application.bootstrap})
    wanted = {
        "cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.001",
        "max.compaction.lag.ms": "100",
    }  # fmt: skip
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in wanted.items()]
    resource = ConfigResource(ResourceType.TOPIC, application.input, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result()


def _expire_unread(application: Application, admin: AdminClient, service: Service, side: str) -> None:
    """Delete records before the job has read them. The running job and its next start both name the range."""
    _send(application, side, _FLOOD)
    partition = TopicPartition(application.input, 3)
    low = (
        admin.delete_records([TopicPartition(partition.topic, partition.partition, -1)])[partition]
        .result()
        .low_watermark
    )
    assert service.wait(60) == 1
    first_log = service.log
    service.start(wait=False)
    assert service.wait(60) == 1
    for log in (first_log, service.log):
        assert f"records-expired: {partition.topic}/3: offsets " in log
        assert f" to {low - 1} (" in log
        assert "topics.skip_expired=true" in log


def _send(application: Application, side: str, count: int = 1, delay: bytes | None = None) -> None:
    """Publish messages for a topic that no ledger reads."""
    producer = Producer({"bootstrap.servers": application.bootstrap})
    headers = [("deliver-to", side.encode()), *([("deliver-after", delay)] if delay else [])]
    for _ in range(count):
        producer.produce(application.input, b"v", partition=3, headers=list(headers))
    assert producer.flush(30) == 0


def _partitions(ledger: Ledger, topic: str) -> set[int]:
    return {record.partition for record in ledger.got if record.topic == topic}


def _count(application: Application, topic: str) -> int:
    consumer = Consumer(
        {
            "bootstrap.servers": application.bootstrap,
            "group.id": "count",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(2)])
    count, end_s = 0, time.monotonic() + 60
    ended: set[int | None] = set()
    while len(ended) < 2:
        assert time.monotonic() < end_s
        for message in consumer.consume(100, 0.5):
            error = message.error()
            if error is None:
                count += 1
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
    consumer.close()
    return count
