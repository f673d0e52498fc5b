"""Reading partitions up to known ends, from a real broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from conf.errors import BrokerUnreachable
from conf.kafka.read_up_to import Place, read_up_to
from streaming.local.broker import EmbeddedBroker
from tests.conftest import MakeTopic


@pytest.fixture
def consumer(broker: EmbeddedBroker) -> Iterator[Consumer]:
    options: dict[str, str | bool] = {
        "bootstrap.servers": broker.bootstrap, "group.id": "reader", "enable.partition.eof": True,
        "isolation.level": "read_committed", "auto.offset.reset": "earliest", "enable.auto.commit": False,
    }  # fmt: skip
    with closing(Consumer(options)) as opened:
        yield opened


@pytest.fixture
def topic(broker: EmbeddedBroker, make_topic: MakeTopic) -> str:
    """A topic with the records 0 to 3, a marker, a record that was aborted, and a marker, in each of two partitions."""
    topic = make_topic(2)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for values, end in ((range(4), producer.commit_transaction), (range(4, 5), producer.abort_transaction)):
        producer.begin_transaction()
        for value in values:
            for partition in (0, 1):
                producer.produce(topic, str(value), partition=partition)
        assert producer.flush(30) == 0
        end(30)
    return topic


def read(consumer: Consumer, begins: Mapping[Place, int], ends: Mapping[Place, int]) -> dict[Place, list[int]]:
    """Return the values by partition."""
    found: dict[Place, list[int]] = {}
    for message in read_up_to(consumer, begins, ends, 30):
        found.setdefault((message.topic() or "", message.partition() or 0), []).append(int(message.value() or b""))
    return found


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (0, 7, [0, 1, 2, 3]),
        (2, 7, [2, 3]),
        (1, 3, [1, 2]),
        (0, 1, [0]),
        (3, 5, [3]),
        (4, 7, []),
        (5, 6, []),
        (3, 3, []),
        (9, 2, []),
    ],
)
def test_the_committed_records_between_the_offsets_are_read(
    consumer: Consumer, topic: str, begin: int, end: int, expected: list[int]
) -> None:
    found = read(consumer, {(topic, 0): begin, (topic, 1): 0}, {(topic, 0): end, (topic, 1): 7})
    assert found.pop((topic, 0), []) == expected
    assert found == {(topic, 1): [0, 1, 2, 3]}


def test_the_end_that_a_reader_of_committed_records_is_told_is_reached_while_a_transaction_is_open(
    consumer: Consumer, topic: str, broker: EmbeddedBroker
) -> None:
    other = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": f"{topic}-open"})
    other.init_transactions(30)
    other.begin_transaction()
    other.produce(topic, b"9", partition=0)
    assert other.flush(30) == 0
    place = topic, 0
    _, end = consumer.get_watermark_offsets(TopicPartition(*place), timeout=30)
    assert read(consumer, {place: 0}, {place: end}) == {place: [0, 1, 2, 3]}
    other.abort_transaction(30)


def test_an_end_that_does_not_come_is_an_error(consumer: Consumer, topic: str) -> None:
    with pytest.raises(BrokerUnreachable, match=f"{topic} cannot be read to the end: nothing has come for 0.5 s"):
        list(read_up_to(consumer, {(topic, 0): 0}, {(topic, 0): 100}, 0.5))


def test_the_time_that_the_caller_takes_does_not_count(consumer: Consumer, topic: str) -> None:
    found: list[int] = []
    for message in read_up_to(consumer, {(topic, 0): 0, (topic, 1): 0}, {(topic, 0): 7, (topic, 1): 7}, 4):
        # Longer than nothing may come.
        time.sleep(0 if found else 5)
        found.append(int(message.value() or b""))
    assert sorted(found) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_records_behind_the_end_of_another_partition_do_not_prolong_the_wait(
    consumer: Consumer, topic: str, broker: EmbeddedBroker
) -> None:
    producer, ended = Producer({"bootstrap.servers": broker.bootstrap}), threading.Event()

    def write() -> None:
        while not ended.wait(0.1):
            producer.produce(topic, b"9", partition=1)
            producer.poll(0)

    writing = threading.Thread(target=write, daemon=True)
    writing.start()
    try:
        with pytest.raises(BrokerUnreachable, match=r"nothing has come for 2 s"):
            list(read_up_to(consumer, {(topic, 0): 0, (topic, 1): 0}, {(topic, 0): 100, (topic, 1): 7}, 2))
    finally:
        ended.set()
        writing.join()
