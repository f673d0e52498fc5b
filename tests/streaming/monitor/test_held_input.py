"""The input that open transactions hold back: as a real broker reports it, and for how long."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from conf.settings import Settings
from streaming.local.broker import EmbeddedBroker
from streaming.monitor import held_input
from streaming.monitor.held_input import HeldInput, Partition, PartitionEnd, PartitionEnds
from tests.eventually import assert_eventually


class Brokers:
    """Brokers that answer as a test sets; None means that they do not answer. `now_s` is the clock."""

    def __init__(self) -> None:
        self.ends: Mapping[Partition, PartitionEnd] | None = {}
        self.asked = 0
        self.now_s = 100.0

    def ask(self, partitions: Iterable[Partition]) -> Mapping[Partition, PartitionEnd]:
        self.asked += 1
        if self.ends is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return {each: self.ends[each] for each in partitions}

    def held(self, ends: Mapping[Partition, PartitionEnd] | None = None) -> HeldInput:
        self.ends = ends
        return HeldInput(self.ask, lambda: {"in": {"0": 5, "1": 5}}, lambda: self.now_s)


def scraped(held: HeldInput) -> dict[str, float]:
    """Return the samples, without the common start of their names."""
    samples = (sample for family in held.collect() for sample in family.samples)
    return {sample.name.removeprefix("delayline_input_held_"): sample.value for sample in samples}


def looked(brokers: Brokers, held: HeldInput) -> dict[str, float]:
    """Have the brokers asked ten seconds later, and return the metrics after their answer."""
    asked, brokers.now_s = brokers.asked, brokers.now_s + 10
    scraped(held)
    assert_eventually(lambda: brokers.asked == asked + 1 and not held._asking, 10)
    return scraped(held)


def test_the_broker_says_what_lies_behind_an_open_transaction(
    settings: Settings, broker: EmbeddedBroker, make_topic: Callable[..., str]
) -> None:
    topic, ends = make_topic(2), PartitionEnds(settings)
    plain = Producer({"bootstrap.servers": broker.bootstrap})
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    plain.produce(topic, b"before", partition=0)
    assert plain.flush(10) == 0
    both = [(topic, 0), (topic, 1)]
    assert ends(both) == {(topic, 0): PartitionEnd(1, 1), (topic, 1): PartitionEnd(0, 0)}
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    assert producer.flush(10) == 0
    for number in (0, 0, 1):
        plain.produce(topic, b"behind", partition=number)
    assert plain.flush(10) == 0
    assert {place: end.held for place, end in ends(both).items()} == {(topic, 0): 3, (topic, 1): 0}
    producer.commit_transaction(10)
    # A broker ends it after it says so.
    assert_eventually(lambda: ends(both)[topic, 0] == PartitionEnd(5, 5))


def test_a_client_is_kept_until_it_fails(settings: Settings, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[AdminClient] = []

    def make(*arguments: Any, **options: Any) -> AdminClient:
        made.append(AdminClient(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(held_input, "AdminClient", make)
    ends = PartitionEnds(settings)
    for _ in range(3):
        ends([(topic, 0)])
    assert len(made) == 1
    with pytest.raises(KafkaException):
        ends([(topic, 7)])
    ends([(topic, 0)])
    assert len(made) == 2


def test_a_scrape_says_how_much_is_held_and_for_how_long_one_transaction_is_open() -> None:
    brokers = Brokers()
    held = brokers.held({("in", 0): PartitionEnd(5, 9), ("in", 1): PartitionEnd(7, 7)})
    assert looked(brokers, held) == {"records": 4, "seconds": 0}
    brokers.ends = {("in", 0): PartitionEnd(5, 12), ("in", 1): PartitionEnd(7, 8)}
    assert looked(brokers, held) == {"records": 8, "seconds": 10}
    brokers.now_s += 5
    assert scraped(held) == {"records": 8, "seconds": 15}
    # That one has ended, and another is open. Where many come one after the other, each is short.
    brokers.ends = {("in", 0): PartitionEnd(12, 14), ("in", 1): PartitionEnd(8, 8)}
    assert looked(brokers, held) == {"records": 2, "seconds": 0}
    brokers.ends = {("in", 0): PartitionEnd(15, 15), ("in", 1): PartitionEnd(8, 8)}
    assert looked(brokers, held) == {"records": 0, "seconds": 0}


def test_brokers_are_asked_at_most_every_ten_seconds_and_an_old_answer_is_none() -> None:
    brokers = Brokers()
    held = brokers.held({("in", 0): PartitionEnd(5, 9), ("in", 1): PartitionEnd(7, 7)})
    looked(brokers, held)
    for _ in range(5):
        scraped(held)
    assert brokers.asked == 1
    brokers.ends = None
    assert looked(brokers, held) == {"records": 4, "seconds": 10}
    brokers.now_s += 300
    assert scraped(held) == {}
    # After the outage the same transaction is open.
    assert_eventually(lambda: not held._asking)
    brokers.ends = {("in", 0): PartitionEnd(5, 9), ("in", 1): PartitionEnd(7, 7)}
    assert looked(brokers, held) == {"records": 4, "seconds": 320}


def test_before_the_first_batch_no_broker_is_asked() -> None:
    brokers = Brokers()
    held = HeldInput(brokers.ask, dict, lambda: brokers.now_s)
    assert scraped(held) == {}
    assert not held._asking
    assert brokers.asked == 0
