"""When the next batch begins, by what a real broker has."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from conf.load import load_settings
from conf.settings import Settings
from state.checkpoint.origin import Offsets
from streaming.job.arrivals import ArrivalWatch
from tests.conftest import MakeSettings, MakeTopic

# A wait that ends before this, ends for another reason than the time.
_NEVER = ("clock.trigger=0ms", "clock.horizon=1h")
_IDLE_S = 0.5
_QUICK = ("clock.trigger=0ms", "clock.horizon=2s")


@contextmanager
def _watching(settings: Settings) -> Iterator[ArrivalWatch]:
    watch = ArrivalWatch(settings)
    try:
        yield watch
    finally:
        watch.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that a batch waits at most: longer than a test may take."""
    monkeypatch.setattr("streaming.job.arrivals._IDLE_MS", 3_600_000)


def _publish(settings: Settings, topic: str, *values: bytes, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": settings.kafka.bootstrap_servers})
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(30) == 0


def _waited_s(watch: ArrivalWatch, read: Offsets) -> float:
    begun_s = time.monotonic()
    watch.wait(begun_s, read)
    return time.monotonic() - begun_s


@pytest.mark.usefixtures("patient")
def test_a_record_at_or_above_the_offsets_ends_the_wait_each_time(
    make_settings: MakeSettings, make_topic: MakeTopic
) -> None:
    topic = make_topic(2)
    settings = make_settings(f"topics.input={topic}", *_NEVER)
    with _watching(settings) as watch:
        # Also one that is much larger than what the watch wants to read.
        _publish(settings, topic, b"v" * 900_000)
        watch.wait(time.monotonic(), {topic: {"0": 0, "1": 0}})
        _publish(settings, topic, b"v", b"w", partition=1)
        watch.wait(time.monotonic(), {topic: {"0": 1, "1": 0}})
        watch.wait(time.monotonic(), {topic: {"0": 1, "1": 1}})


@pytest.mark.usefixtures("patient")
def test_nothing_is_waited_for_while_the_batches_are_behind(make_settings: MakeSettings, make_topic: MakeTopic) -> None:
    topic = make_topic()
    settings = make_settings(f"topics.input={topic}", *_NEVER)
    with _watching(settings) as watch:
        watch.wait(time.monotonic(), {topic: {"0": 0}}, is_behind=True)


@pytest.mark.usefixtures("patient")
def test_before_the_first_batch_with_records_any_record_ends_the_wait(
    make_settings: MakeSettings, make_topic: MakeTopic
) -> None:
    topics = [make_topic(), make_topic(2)]
    settings = make_settings(f"topics.input={','.join(topics)}", *_NEVER)
    _publish(settings, topics[1], b"v", partition=1)
    with _watching(settings) as watch:
        watch.wait(time.monotonic(), {})


@pytest.mark.usefixtures("patient")
def test_a_record_that_comes_meanwhile_ends_the_wait(make_settings: MakeSettings, topic: str) -> None:
    settings = make_settings(f"topics.input={topic}", *_NEVER)
    _publish(settings, topic, b"old")
    timer = threading.Timer(0.5, _publish, [settings, topic, b"new"])
    with _watching(settings) as watch:
        timer.start()
        # The timer has started a moment before.
        assert _waited_s(watch, {topic: {"0": 1}}) > 0.4
    timer.join()


@pytest.mark.usefixtures("patient")
def test_records_that_were_deleted_unread_end_the_wait(make_settings: MakeSettings, topic: str) -> None:
    settings = make_settings(f"topics.input={topic}", *_NEVER)
    _publish(settings, topic, b"v", b"w")
    client = AdminClient({"bootstrap.servers": settings.kafka.bootstrap_servers})
    for answer in client.delete_records([TopicPartition(topic, 0, 2)]).values():
        answer.result()
    with _watching(settings) as watch:
        watch.wait(time.monotonic(), {topic: {"0": 0}})


def test_without_new_records_the_wait_takes_the_idle_time(make_settings: MakeSettings, topic: str) -> None:
    settings = make_settings(f"topics.input={topic}", *_QUICK)
    _publish(settings, topic, b"read")
    with _watching(settings) as watch:
        for _ in range(2):
            assert _waited_s(watch, {topic: {"0": 1}}) >= _IDLE_S
    empty = make_settings(f"topics.input={topic}-2", *_QUICK)
    with _watching(empty) as watch:
        assert _waited_s(watch, {}) >= _IDLE_S


def test_records_of_an_open_transaction_do_not_end_the_wait(make_settings: MakeSettings, topic: str) -> None:
    settings = make_settings(f"topics.input={topic}", *_QUICK)
    producer = Producer({"bootstrap.servers": settings.kafka.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    assert producer.flush(30) == 0
    with _watching(settings) as watch:
        assert _waited_s(watch, {topic: {"0": 0}}) >= _IDLE_S
    producer.abort_transaction(30)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("horizon", ["1s", "1h"])
def test_a_batch_waits_for_its_trigger_though_records_have_come(
    make_settings: MakeSettings, topic: str, horizon: str
) -> None:
    # Also if the idle time is shorter than the trigger.
    settings = make_settings(f"topics.input={topic}", "clock.trigger=1s", f"clock.horizon={horizon}")
    _publish(settings, topic, b"v")
    with _watching(settings) as watch:
        assert _waited_s(watch, {topic: {"0": 0}}) >= 1.0
        # A batch that took longer than that waits for records only.
        watch.wait(time.monotonic() - 1.5, {topic: {"0": 0}})


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("trigger", ["0ms", "1h"])
def test_a_wake_ends_the_wait_and_all_later_ones(make_settings: MakeSettings, topic: str, trigger: str) -> None:
    settings = make_settings(f"topics.input={topic}", f"clock.trigger={trigger}", "clock.horizon=1h")
    with _watching(settings) as watch:
        timer = threading.Timer(0.3, watch.wake)
        timer.start()
        # The timer has started a moment before.
        assert _waited_s(watch, {topic: {"0": 0}}) > 0.2
        watch.wait(time.monotonic(), {topic: {"0": 0}})
        watch.wait(time.monotonic(), {})
        timer.join()


def test_brokers_that_do_not_answer_end_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinks.topics.admin_client.CONNECT_TIMEOUT_MS", 100)
    settings = load_settings(None, ["kafka.bootstrap_servers=127.0.0.1:1", *_QUICK], environ={})
    with _watching(settings) as watch:
        for read in ({}, {"delayline-in": {"0": 0}}):
            assert _waited_s(watch, read) >= _IDLE_S
