"""When the next batch begins, by the records of a real broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from hypothesis import given
from hypothesis import strategies as st

from conf.errors import BrokerUnreachable
from conf.load import load_settings
from conf.settings import Settings
from state.checkpoint.origin import CheckpointOrigin, Offsets
from state.checkpoint.progress import BatchSpan
from streaming.job.inputs.arrivals import ArrivalWatch, LookForUrgent, reads_to_limit
from tests.conftest import MakeSettings, MakeTopic

# A wait that ends before this has another reason to end.
_NEVER = ("clock.trigger=0ms", "clock.horizon=1h")
_IDLE_S = 0.5
# Longer than a test may take.
_PATIENT_MS = 3_600_000
_QUICK = ("clock.trigger=0ms", "clock.horizon=2s")
_RARELY = ("clock.trigger=1h", "clock.horizon=1h")
# A wait may take this much longer on a busy machine. Any other end of it would come later still.
_SOON_S = 10.0
_READ: Offsets = {"delayline-in": {"0": 0}}
ORIGIN = CheckpointOrigin("c", 1, 1)


@contextmanager
def _watching(settings: Settings, **limits: int) -> Iterator[ArrivalWatch]:
    watch = ArrivalWatch(settings, **limits)
    try:
        yield watch
    finally:
        watch.close()


def _without_brokers(*overrides: str) -> Settings:
    return load_settings(None, ["kafka.bootstrap_servers=127.0.0.1:1", *overrides], environ={})


def _publish(settings: Settings, topic: str, *values: bytes, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": settings.kafka.bootstrap_servers})
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(30) == 0


def _waited_s(
    watch: ArrivalWatch, read: Offsets, is_urgent: bool = False, look_for_urgent: LookForUrgent | None = None
) -> float:
    begun_s = time.monotonic()
    watch.wait(begun_s, read, is_urgent, look_for_urgent=look_for_urgent)
    return time.monotonic() - begun_s


def test_a_record_at_or_above_the_offsets_ends_the_wait_each_time(
    make_settings: MakeSettings, make_topic: MakeTopic
) -> None:
    topic = make_topic(2)
    settings = make_settings(f"topics.input={topic}", *_NEVER)
    with _watching(settings, idle_ms=_PATIENT_MS) as watch:
        # This record is also much larger than the watch wants to read.
        _publish(settings, topic, b"v" * 900_000)
        watch.wait(time.monotonic(), {topic: {"0": 0, "1": 0}})
        _publish(settings, topic, b"v", b"w", partition=1)
        watch.wait(time.monotonic(), {topic: {"0": 1, "1": 0}})
        watch.wait(time.monotonic(), {topic: {"0": 1, "1": 1}})


@pytest.mark.parametrize(
    ("trigger", "urgent_ms", "least_s"), [("0ms", 30_000, 0.0), ("200ms", 30_000, 0.2), ("1h", 500, 0.5)]
)
def test_an_urgent_batch_begins_after_a_time_or_the_trigger_if_that_is_shorter(
    trigger: str, urgent_ms: int, least_s: float
) -> None:
    settings = _without_brokers(f"clock.trigger={trigger}", "clock.horizon=1h")
    with _watching(settings, urgent_ms=urgent_ms, idle_ms=_PATIENT_MS) as watch:
        assert least_s <= _waited_s(watch, _READ, is_urgent=True) < least_s + _SOON_S
        # A batch that took longer is followed at once.
        begun_s = time.monotonic()
        watch.wait(begun_s - urgent_ms / 1_000, _READ, is_urgent=True)
        assert time.monotonic() - begun_s < _SOON_S


def test_an_urgent_claim_found_during_the_wait_begins_a_batch() -> None:
    found = threading.Event()
    timer = threading.Timer(0.8, found.set)
    with _watching(_without_brokers(*_RARELY)) as watch:
        timer.start()
        # The timer has started a moment before.
        assert 0.7 < _waited_s(watch, _READ, look_for_urgent=found.wait) < 0.8 + _SOON_S
        # It was found, and nobody has worked on it.
        assert 0.5 <= _waited_s(watch, _READ, look_for_urgent=found.wait) < 0.5 + _SOON_S
    timer.join()


def test_without_anything_urgent_the_trigger_is_waited_for_and_nothing_is_looked_for_after_it() -> None:
    asked_s: list[float] = []

    def look(timeout_s: float) -> bool:
        asked_s.append(timeout_s)
        time.sleep(timeout_s)
        return False

    with _watching(_without_brokers("clock.trigger=800ms", "clock.horizon=1s")) as watch:
        assert 0.8 <= _waited_s(watch, _READ, look_for_urgent=look) < 0.8 + _SOON_S
        assert sum(asked_s) <= 0.3
        assert all(0 < timeout_s <= 0.1 for timeout_s in asked_s)
        asked_s.clear()
        watch.wait(time.monotonic() - 0.8, _READ, look_for_urgent=look)
        assert not asked_s


def test_where_forwarders_read_everything_batches_begin_by_their_own_trigger(
    make_settings: MakeSettings, make_topic: MakeTopic
) -> None:
    topic = make_topic(1)
    # Batches come often enough to stage all messages that fall due.
    settings = make_settings(f"topics.input={topic}", "forward.trigger=1h", "clock.trigger=1s", "clock.horizon=60s")
    _publish(settings, topic, b"v")
    with _watching(settings) as watch:
        for is_forwarded, least_s in ((False, 1.0), (True, 15.0)):
            begun_s = time.monotonic()
            watch.wait(begun_s, {topic: {"0": 0}}, is_forwarded=is_forwarded)
            assert least_s <= time.monotonic() - begun_s < least_s + _SOON_S


def test_a_job_in_which_nothing_waits_begins_batches_rarely() -> None:
    with _watching(_without_brokers("clock.horizon=8s", "clock.trigger=0ms", "forward.processes=0")) as watch:
        assert (watch.idle_s, watch.empty_s) == (2, 2)
    with _watching(_without_brokers("forward.trigger=1s")) as watch:
        assert (watch.idle_s, watch.empty_s) == (5, 15)
    with _watching(_without_brokers("forward.trigger=1s", "clock.horizon=40s")) as watch:
        begun_s = time.monotonic()
        watch.wait(begun_s - 5, _READ)
        assert time.monotonic() - begun_s < 4
        watch.wait(time.monotonic() - 5, _READ, is_empty=True)
        assert time.monotonic() - begun_s >= 5


def test_a_wake_ends_the_wait_for_something_urgent() -> None:
    never = threading.Event()
    with _watching(_without_brokers(*_RARELY)) as watch:
        timer = threading.Timer(0.7, watch.wake)
        timer.start()
        assert 0.6 < _waited_s(watch, _READ, look_for_urgent=never.wait) < 0.7 + _SOON_S
        timer.join()


def test_an_error_while_looking_for_urgent_claims_ends_the_wait() -> None:
    def fail(_: float) -> bool:
        raise BrokerUnreachable("no claims")

    with _watching(_without_brokers(*_RARELY)) as watch, pytest.raises(BrokerUnreachable):
        watch.wait(time.monotonic(), _READ, look_for_urgent=fail)


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 10**6), min_size=1), st.integers(1, 10**6))
def test_a_batch_that_reads_what_spark_lets_it_read_of_more_records_reads_to_its_limit(
    waiting: dict[str, int], most: int
) -> None:
    """Spark takes from each partition its share by the number of its records, rounded down, but at least one."""
    total = sum(waiting.values())
    shares = {partition: min(count, max(1, most * count // max(1, total))) for partition, count in waiting.items()}
    ends = shares if total > most else waiting
    span = BatchSpan(ORIGIN, ends={"in": ends})
    if total > most:
        assert reads_to_limit(span, most)
    if total <= most - len(waiting) or not total:
        assert not reads_to_limit(span, most)


def test_before_the_first_batch_with_records_any_record_ends_the_wait(
    make_settings: MakeSettings, make_topic: MakeTopic
) -> None:
    topics = [make_topic(), make_topic(2)]
    settings = make_settings(f"topics.input={','.join(topics)}", *_NEVER)
    _publish(settings, topics[1], b"v", partition=1)
    with _watching(settings, idle_ms=_PATIENT_MS) as watch:
        watch.wait(time.monotonic(), {})


def test_a_record_that_comes_meanwhile_ends_the_wait(make_settings: MakeSettings, topic: str) -> None:
    settings = make_settings(f"topics.input={topic}", *_NEVER)
    _publish(settings, topic, b"old")
    timer = threading.Timer(0.5, _publish, [settings, topic, b"new"])
    with _watching(settings, idle_ms=_PATIENT_MS) as watch:
        timer.start()
        # The timer has started a moment before.
        assert _waited_s(watch, {topic: {"0": 1}}) > 0.4
    timer.join()


def test_records_that_were_deleted_unread_end_the_wait(make_settings: MakeSettings, topic: str) -> None:
    settings = make_settings(f"topics.input={topic}", *_NEVER)
    _publish(settings, topic, b"v", b"w")
    client = AdminClient({"bootstrap.servers": settings.kafka.bootstrap_servers})
    for answer in client.delete_records([TopicPartition(topic, 0, 2)]).values():
        answer.result()
    with _watching(settings, idle_ms=_PATIENT_MS) as watch:
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


@pytest.mark.parametrize("horizon", ["1s", "1h"])
def test_a_batch_waits_for_its_trigger_though_records_have_come(
    make_settings: MakeSettings, topic: str, horizon: str
) -> None:
    # Also if the idle time is shorter than the trigger.
    settings = make_settings(f"topics.input={topic}", "clock.trigger=1s", f"clock.horizon={horizon}")
    _publish(settings, topic, b"v")
    with _watching(settings, idle_ms=_PATIENT_MS) as watch:
        assert _waited_s(watch, {topic: {"0": 0}}) >= 1.0
    # A batch that took longer than that waits for records only.
    rare = make_settings(f"topics.input={topic}", "clock.trigger=30s", "clock.horizon=1h")
    with _watching(rare) as watch:
        begun_s = time.monotonic()
        watch.wait(begun_s - 31.0, {topic: {"0": 0}})
        assert time.monotonic() - begun_s < _SOON_S


@pytest.mark.parametrize("trigger", ["0ms", "1h"])
def test_a_wake_ends_the_wait_and_all_later_ones(make_settings: MakeSettings, topic: str, trigger: str) -> None:
    settings = make_settings(f"topics.input={topic}", f"clock.trigger={trigger}", "clock.horizon=1h")
    with _watching(settings, idle_ms=_PATIENT_MS) as watch:
        timer = threading.Timer(0.3, watch.wake)
        timer.start()
        # The timer has started a moment before.
        assert _waited_s(watch, {topic: {"0": 0}}) > 0.2
        watch.wait(time.monotonic(), {topic: {"0": 0}})
        watch.wait(time.monotonic(), {})
        timer.join()


def test_brokers_that_do_not_answer_end_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinks.topics.admin_client.CONNECT_TIMEOUT_MS", 100)
    with _watching(_without_brokers(*_QUICK)) as watch:
        for read in ({}, {"delayline-in": {"0": 0}}):
            assert _waited_s(watch, read) >= _IDLE_S
