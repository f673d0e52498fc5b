"""Publishing to a real broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from conf.errors import BrokerUnreachable, PublishFailed, TopicMissing, UsageError
from conf.load import load_settings
from conf.settings import Settings
from sources.publisher import Publisher
from streaming.local.broker import EmbeddedBroker
from tests.conftest import MakeTopic


def read(broker: EmbeddedBroker, topic: str, partition: int, count: int) -> list[Message]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "test"})
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        messages: list[Message] = []
        while len(messages) < count and (batch := consumer.consume(count - len(messages), 10)):
            messages += batch
        return messages
    finally:
        consumer.close()


def test_ids_are_in_the_order_of_the_values(settings: Settings, broker: EmbeddedBroker, make_topic: MakeTopic) -> None:
    # More than may be in flight at once.
    values = [b"%d" % number for number in range(6_000)]
    topic = make_topic(3)
    with Publisher(settings, topic) as publisher:
        ids = list(publisher.publish(values))
    assert len(ids) == len(values)
    value_by_id = {
        f"{topic}/{partition}/{message.offset()}": message.value()
        for partition in range(3)
        for message in read(broker, topic, partition, sum(id.startswith(f"{topic}/{partition}/") for id in ids))
    }
    assert [value_by_id[id] for id in ids] == values


def test_the_record_has_the_given_key_value_and_headers(
    settings: Settings, broker: EmbeddedBroker, make_topic: MakeTopic
) -> None:
    topic = make_topic(2)
    headers = [("a", b"1"), ("a", b""), ("b", b"\x00\xff")]
    with Publisher(settings, topic, partition=1) as publisher:
        ids = [*publisher.publish([b"\x00\xff", b"", None], b"\xfe", headers)]
    assert ids == [f"{topic}/1/{offset}" for offset in range(3)]
    read_back = read(broker, topic, 1, 3)
    assert [message.value() for message in read_back] == [b"\x00\xff", b"", None]
    assert {(message.key(), *(message.headers() or [])) for message in read_back} == {(b"\xfe", *headers)}


def test_keys_go_where_kafkas_default_partitioner_sends_them(
    settings: Settings, broker: EmbeddedBroker, make_topic: MakeTopic
) -> None:
    ours, theirs = make_topic(8), make_topic(8)
    expected: list[int | None] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random"})
    keys = [b"key-%d" % number for number in range(20)]
    for key in keys:
        producer.produce(theirs, b"", key, on_delivery=lambda _, message: expected.append(message.partition()))
        producer.flush()
    with Publisher(settings, ours) as publisher:
        ids = [next(publisher.publish([b""], key)) for key in keys]
    assert [int(id.split("/")[1]) for id in ids] == expected


def test_an_id_is_returned_before_the_next_value_is_available(settings: Settings, topic: str) -> None:
    first_confirmed = threading.Event()

    def slow_pipe() -> Iterator[bytes]:
        yield b"first"
        # As an interactive user would: the second line is written once the first is confirmed.
        assert first_confirmed.wait(30)
        yield b"second"

    with Publisher(settings, topic) as publisher:
        ids = publisher.publish(slow_pipe())
        assert next(ids) == f"{topic}/0/0"
        first_confirmed.set()
        assert list(ids) == [f"{topic}/0/1"]


def test_the_bytes_in_flight_are_bounded(settings: Settings, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sources.publisher.MAX_IN_FLIGHT_BYTES", 1_000_000)
    taken = 0

    def large() -> Iterator[bytes]:
        nonlocal taken
        for _ in range(8):
            taken += 1
            yield bytes(400_000)

    with Publisher(settings, topic) as publisher:
        confirmed = 0
        for _ in publisher.publish(large()):
            confirmed += 1
            # Two are in flight, one waits for space, and the confirmation of one is being read.
            assert taken <= confirmed + 4
    assert confirmed == 8


def test_a_record_that_the_broker_refuses_ends_publishing(settings: Settings, make_topic: MakeTopic) -> None:
    topic = make_topic(1, **{"max.message.bytes": "1000"})
    with Publisher(settings, topic) as publisher:
        ids = publisher.publish([b"small", bytes(2_000), b"small"])
        assert next(ids) == f"{topic}/0/0"
        with pytest.raises(PublishFailed, match=f"{topic}.*MessageSizeTooLarge"):
            list(ids)


def test_an_error_from_the_values_is_raised_and_not_taken_for_their_end(settings: Settings, topic: str) -> None:
    def broken() -> Iterator[bytes]:
        yield b"first"
        raise OSError("the pipe broke")

    with Publisher(settings, topic) as publisher, pytest.raises(OSError, match="the pipe broke"):
        list(publisher.publish(broken()))


def test_a_missing_topic_or_partition_is_named(settings: Settings, topic: str) -> None:
    with pytest.raises(TopicMissing, match=r"nowhere.*delayline topics create"):
        Publisher(settings, "nowhere")
    with pytest.raises(UsageError, match="no partition 1, only 0 to 0"):
        Publisher(settings, topic, partition=1)


def test_an_unreachable_broker_is_named_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sources.publisher.CONNECT_TIMEOUT_MS", 1_000)
    settings = load_settings(None, ["kafka.bootstrap_servers=127.0.0.1:1"], environ={})
    begun_s = time.monotonic()
    with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:1"):
        Publisher(settings, "any")
    assert time.monotonic() - begun_s < 10
