"""Reading from a real broker as a subscriber does."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer

from conf.errors import BrokerUnreachable, TopicMissing
from conf.load import load_settings
from conf.settings import Settings
from sources.subscriber import Received, Subscriber
from streaming.local.broker import EmbeddedBroker
from tests.conftest import MakeTopic
from tests.unreadable_headers import write_unreadable

# More than a loaded machine needs; nothing waits for it unless the test fails.
PATIENCE_MS = 20_000


def transactional(broker: EmbeddedBroker, transactional_id: str) -> Producer:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": transactional_id})
    producer.init_transactions(30)
    return producer


def write(producer: Producer, topic: str, *values: bytes) -> None:
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
    # Flush before the transaction ends, so that aborted records were really on the broker.
    assert producer.flush(10) == 0


def values(settings: Settings, topic: str, count: int) -> list[bytes | None]:
    with Subscriber(settings, topic, from_beginning=True) as subscriber:
        return [record.value for record in subscriber.records(count, PATIENCE_MS)]


def test_only_committed_records_are_seen(settings: Settings, broker: EmbeddedBroker, topic: str) -> None:
    producer = transactional(broker, topic)
    for number in range(4):
        write(producer, topic, b"a%d" % number, b"b%d" % number)
        if number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    plain = Producer({"bootstrap.servers": broker.bootstrap})
    plain.produce(topic, b"plain")
    plain.flush()
    write(producer, topic, b"open")
    with Subscriber(settings, topic, from_beginning=True) as subscriber:
        seen = [record.value for record in subscriber.records(5, PATIENCE_MS)]
        assert seen == [b"a0", b"b0", b"a2", b"b2", b"plain"]
        producer.abort_transaction()
        write(producer, topic, b"last")
        producer.commit_transaction()
        assert [record.value for record in subscriber.records(1, PATIENCE_MS)] == [b"last"]


def test_reading_from_the_end_begins_before_an_open_transaction(
    settings: Settings, broker: EmbeddedBroker, topic: str
) -> None:
    producer = transactional(broker, topic)
    write(producer, topic, b"before")
    producer.commit_transaction()
    write(producer, topic, b"open")
    with Subscriber(settings, topic) as subscriber:
        producer.commit_transaction()
        assert [record.value for record in subscriber.records(1, PATIENCE_MS)] == [b"open"]


@pytest.mark.parametrize("codec", ["gzip", "lz4", "snappy", "zstd"])
def test_every_compression_is_read(settings: Settings, broker: EmbeddedBroker, topic: str, codec: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": codec, "linger.ms": 50})
    for _ in range(100):
        producer.produce(topic, bytes(100))
    producer.flush()
    assert values(settings, topic, 100) == [bytes(100)] * 100


def test_all_partitions_are_read(settings: Settings, broker: EmbeddedBroker, make_topic: MakeTopic) -> None:
    topic = make_topic(3)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for partition in range(3):
        producer.produce(topic, b"%d" % partition, partition=partition)
    producer.flush()
    assert set(values(settings, topic, 3)) == {b"0", b"1", b"2"}


def test_a_record_has_all_its_fields_and_its_lateness(settings: Settings, broker: EmbeddedBroker, topic: str) -> None:
    due_ms = int(time.time() * 1000)
    headers = [
        # A publisher may have forwarded a message from another Delayline: the last headers count.
        ("delayline-id", b"other/0/1"),
        ("delayline-deliver-at", b"1"),
        ("a", None),
        ("a", b"\x00\xff"),
        ("delayline-id", b"in/2/3"),
        ("delayline-deliver-at", b"%d" % due_ms),
    ]
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, None, b"\x00\xff", headers=list(headers), timestamp=due_ms)
    producer.flush()
    with Subscriber(settings, topic, from_beginning=True) as subscriber:
        (record,) = subscriber.records(1, PATIENCE_MS)
    now_ms = int(time.time() * 1000)
    assert (record.key, record.value, record.headers) == (b"\x00\xff", None, headers)
    assert (record.id, record.deliver_at_ms, record.timestamp_ms) == ("in/2/3", due_ms, due_ms)
    assert record.lateness_ms == record.received_ms - due_ms
    assert due_ms <= record.received_ms <= now_ms


def test_a_record_whose_headers_cannot_be_read_comes_without_them(
    settings: Settings, broker: EmbeddedBroker, topic: str
) -> None:
    write_unreadable(broker.bootstrap, topic, b"v", b"k", [("delayline-id", b"in/0/1")])
    with Subscriber(settings, topic, from_beginning=True) as subscriber:
        (record,) = subscriber.records(1, PATIENCE_MS)
    assert (record.key, record.value, record.headers, record.id) == (b"k", b"v", [], None)
    assert not record.has_readable_headers


def test_a_record_that_delayline_did_not_deliver_has_no_lateness() -> None:
    record = Received("t", 0, 0, 0, None, b"", [("delayline-deliver-at", b"soon")], 5)
    assert (record.id, record.deliver_at_ms, record.lateness_ms) == (None, None, None)


def test_reading_ends_after_the_timeout(settings: Settings, topic: str) -> None:
    with Subscriber(settings, topic) as subscriber:
        begun_s = time.monotonic()
        assert list(subscriber.records(count=1, timeout_ms=300)) == []
        assert 0.3 <= time.monotonic() - begun_s < 10


def test_a_missing_topic_and_an_unreachable_broker_are_named(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TopicMissing, match="nowhere"):
        Subscriber(settings, "nowhere")
    monkeypatch.setattr("sources.subscriber.CONNECT_TIMEOUT_S", 1.0)
    unreachable = load_settings(None, ["kafka.bootstrap_servers=127.0.0.1:1"], environ={})
    with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:1"):
        Subscriber(unreachable, "any")
