"""The lease of an application id against a real broker: who gets it, who loses it, and when."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer

from conf.errors import ApplicationHeld, CheckpointMismatch, TopicMissing
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.internal_topics.lease import HeldLease, read_lease, refuse_others
from sinks.internal_topics.lease_record import Lease
from sinks.topics.topics import ensure_topics
from tests.conftest import Configure, MakeSettings
from tests.eventually import assert_eventually

_PERIOD_S = 4
_ROUNDS = 5


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    """Settings of an application with its topics and a short lease."""
    settings = make_settings(f"lease.period={_PERIOD_S}s")
    ensure_topics(settings)
    return settings


def _hold_lease(settings: Settings, pipe: multiprocessing.connection.Connection) -> None:
    lease = HeldLease(settings, "run")
    pipe.send(lease.fencing_token)
    while True:
        pipe.recv()
        try:
            lease.check()
            pipe.send("held")
        except ApplicationHeld as error:
            pipe.send(str(error))


def _claim_together(settings: Settings, barrier: Any, answers: Any) -> None:
    """Claim the lease in each round at the same time as other processes; answer with this process and the outcome."""
    for _ in range(_ROUNDS):
        barrier.wait(60)
        lease: HeldLease | None = None
        try:
            lease = HeldLease(settings, "run")
            lease.check_now()
            answers.put((os.getpid(), "held"))
        except ApplicationHeld as error:
            answers.put((os.getpid(), str(error)))
        barrier.wait(60)
        if lease is not None:
            lease.close()


class Holder:
    """A process that holds the lease, and answers on demand whether it still does."""

    def __init__(self, settings: Settings) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, child_end = context.Pipe()
        self._process = context.Process(target=_hold_lease, args=(settings, child_end))
        self._process.start()
        # Otherwise this end would not notice that the process has ended.
        child_end.close()
        self.pid = self._process.pid or 0
        self.fencing_token = self._answer()

    def ask(self) -> str:
        self._pipe.send("?")
        return str(self._answer())

    def _answer(self) -> Any:
        assert self._pipe.poll(60), "no answer"
        return self._pipe.recv()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def end(self) -> None:
        self._process.kill()
        self._process.join()


@pytest.fixture
def start_holder(settings: Settings) -> Iterator[Callable[[], Holder]]:
    """A function that starts a process which holds the lease."""
    started: list[Holder] = []

    def start() -> Holder:
        started.append(Holder(settings))
        return started[-1]

    yield start
    for holder in started:
        holder.end()


def _newest(settings: Settings) -> Lease:
    lease = read_lease(librdkafka_options(settings.kafka), settings.lease_topic)
    assert lease is not None
    return lease


def test_a_second_process_is_refused_and_the_error_names_the_holder(
    settings: Settings, start_holder: Callable[[], Holder]
) -> None:
    holder = start_holder()
    with pytest.raises(ApplicationHeld, match=rf"process {holder.pid} on host .*delayline run"):
        HeldLease(settings, "run")
    assert holder.ask() == "held"


def test_a_released_lease_is_taken_at_once_and_that_of_a_killed_process_after_its_period(
    settings: Settings, start_holder: Callable[[], Holder]
) -> None:
    with closing(HeldLease(settings, "run")) as first:
        assert not first.after_a_crash
    assert _newest(settings).released
    second = start_holder()
    assert second.fencing_token == first.fencing_token + 1
    second.end()
    with closing(HeldLease(settings, "rescale")) as third:
        assert third.fencing_token == second.fencing_token + 1
        assert third.after_a_crash
        assert "delayline rescale" in _newest(settings).holder


@pytest.mark.thorough
def test_each_holder_after_a_crash_is_one_until_one_of_them_has_fenced_the_holder_before(
    settings: Settings, start_holder: Callable[[], Holder]
) -> None:
    start_holder().end()
    # This one fails before it has fenced anything.
    with closing(HeldLease(settings, "run")) as first:
        assert first.after_a_crash
    assert _newest(settings).released
    with closing(HeldLease(settings, "run")) as second:
        assert second.after_a_crash
        second.note_fenced()
    with closing(HeldLease(settings, "run")) as third:
        assert not third.after_a_crash


def test_one_of_several_processes_that_claim_the_lease_together_gets_it_and_the_others_are_refused(
    settings: Settings,
) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(3), context.Queue()
    rivals = [context.Process(target=_claim_together, args=(settings, barrier, answers)) for _ in range(3)]
    for rival in rivals:
        rival.start()
    rounds = [[answers.get(timeout=60) for _ in rivals] for _ in range(_ROUNDS)]
    for rival in rivals:
        rival.join(60)
        assert rival.exitcode == 0
    for answered in rounds:
        (holder,) = (pid for pid, said in answered if said == "held")
        others = [said for pid, said in answered if pid != holder]
        assert [said.startswith(f"application-held: process {holder} on host") for said in others] == [True, True], (
            answered
        )
    last = read_lease(librdkafka_options(settings.kafka), settings.lease_topic)
    assert last is not None
    # Also where a rival has fenced the holder's producer: the next process would wait for it.
    assert last.released


def test_a_process_paused_past_a_takeover_notices_it_before_it_does_anything(
    settings: Settings, start_holder: Callable[[], Holder]
) -> None:
    zombie = start_holder()
    zombie.signal(signal.SIGSTOP)
    with closing(HeldLease(settings, "run")) as lease:
        zombie.signal(signal.SIGCONT)
        assert f"process {os.getpid()} on host" in zombie.ask()
        heartbeat = _newest(settings).heartbeat
        # The zombie has fenced nobody.
        assert_eventually(lambda: _newest(settings).heartbeat > heartbeat + 1, 10)
        lease.check()


def test_a_fenced_or_timed_out_producer_does_not_lose_the_lease(settings: Settings) -> None:
    with closing(HeldLease(settings, "run")) as lease:
        options = librdkafka_options(settings.kafka)
        Producer({**options, "transactional.id": f"{settings.application_id}:lease"}).init_transactions(10)
        heartbeat = _newest(settings).heartbeat
        assert_eventually(lambda: _newest(settings).heartbeat > heartbeat + 1, 10)
        lease.check()


def test_heartbeats_continue_after_a_record_that_cannot_be_read_for_a_while(settings: Settings) -> None:
    options = librdkafka_options(settings.kafka)

    def write(value: bytes) -> None:
        producer = Producer(options)
        producer.produce(settings.lease_topic, value, b"lease", 0)
        assert producer.flush(10) == 0

    with closing(HeldLease(settings, "run")) as lease:
        before = _newest(settings)
        write(b"no lease")
        Producer({**options, "transactional.id": f"{settings.application_id}:lease"}).init_transactions(10)
        assert_eventually(lambda: lease.failing, 10)
        write(before.to_bytes())
        assert_eventually(lambda: _newest(settings).heartbeat > before.heartbeat + 2, 10)
        lease.check_now()


def test_a_holder_asks_the_broker_before_irreversible_changes_even_after_a_fresh_heartbeat(
    make_settings: MakeSettings,
) -> None:
    # So long that no heartbeat comes in between.
    settings = make_settings("lease.period=1m")
    ensure_topics(settings)
    with closing(HeldLease(settings, "run")) as lease:
        producer = Producer(options := librdkafka_options(settings.kafka))
        newer = replace(_newest(settings), fencing_token=lease.fencing_token + 1, host="elsewhere")
        Producer({**options, "transactional.id": f"{settings.application_id}:lease"}).init_transactions(10)
        producer.produce(settings.lease_topic, newer.to_bytes(), b"lease", 0)
        assert producer.flush(10) == 0
        with pytest.raises(ApplicationHeld, match="on host elsewhere"):
            lease.check_now()


def test_writers_of_an_earlier_holder_are_refused(settings: Settings) -> None:
    options = librdkafka_options(settings.kafka)
    refuse_others(options, settings.lease_topic, 1)
    for _ in range(2):
        HeldLease(settings, "run").close()
    refuse_others(options, settings.lease_topic, 2)
    with pytest.raises(ApplicationHeld):
        refuse_others(options, settings.lease_topic, 1)


def test_a_missing_topic_and_an_invalid_record_are_named(settings: Settings, make_settings: MakeSettings) -> None:
    with pytest.raises(TopicMissing, match="delayline topics create"):
        HeldLease(make_settings("application_id=never-made"), "run")
    producer = Producer(librdkafka_options(settings.kafka))
    producer.produce(settings.lease_topic, b'{"number": "one"}', b"lease", 0)
    producer.flush(10)
    with pytest.raises(CheckpointMismatch, match="not a lease"):
        HeldLease(settings, "run")


def test_each_heartbeat_brings_the_time_of_the_broker(settings: Settings, configure: Configure) -> None:
    begun_ms = time.time_ns() // 1_000_000
    with closing(HeldLease(settings, "run")) as lease:
        # Both have one clock here, and the broker's is never taken for earlier than it is.
        assert lease.broker_ms is not None
        assert begun_ms <= lease.broker_ms
        asked_ms = time.time_ns() // 1_000_000
        lease.check_now()
        assert asked_ms <= lease.broker_ms
    configure(settings.lease_topic, **{"message.timestamp.type": "CreateTime"})
    with closing(HeldLease(settings, "run")) as lease:
        assert lease.broker_ms is None
