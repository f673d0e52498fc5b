"""Two attempts of one task at a time, as after the driver took an executor for lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest
from confluent_kafka import Producer

from conf.errors import ApplicationHeld, DeliveryFailed
from sinks.internal_topics import log_producer
from sinks.internal_topics.lease_record import Lease
from sinks.internal_topics.progress import read_progress
from sinks.ready_log import writer
from sinks.ready_log.stage import stage
from sinks.ready_log.writer import ReadyLogWriter, StagingPlan
from state.checkpoint.progress import Progress
from state.order import OrderKey
from tests.eventually import assert_eventually
from tests.messages import messages
from tests.sinks.ready_log.conftest import Marker, Ready

MESSAGES = 4


class Stops:
    """Stops each attempt whenever its transaction is open, until the test lets it go on."""

    def __init__(self) -> None:
        self.passed = {0: 0, 1: 0}
        self._allowed = {0: threading.Semaphore(0), 1: threading.Semaphore(0)}

    def at(self, name: str, attempt: int = 0) -> None:
        if name == "transaction-open":
            self.passed[attempt] += 1
            assert self._allowed[attempt].acquire(timeout=60)

    def allow(self, attempt: int, transactions: int = MESSAGES) -> None:
        self._allowed[attempt].release(transactions)


@pytest.fixture
def plan(plan: StagingPlan) -> StagingPlan:
    """A batch in which each message has a transaction of its own."""
    return replace(plan, transaction_bytes=1_000)


@pytest.fixture
def stops(monkeypatch: pytest.MonkeyPatch) -> Stops:
    """Where the attempts stop."""
    own = Stops()
    monkeypatch.setattr(writer, "failpoint", own.at)
    # A slow machine must not wear writers out.
    monkeypatch.setattr(log_producer, "sent_once", lambda *_: True)
    return own


Attempt = Future[tuple[int, str]]
Begin = Callable[..., Attempt]


@pytest.fixture
def begin(plan: StagingPlan) -> Iterator[Begin]:
    """A function that begins an attempt to stage four messages."""
    with ThreadPoolExecutor(2) as threads:

        def attempt(number: int, of: StagingPlan = plan) -> Attempt:
            due = messages({"offset": at, "deliver_at_ms": at, "value": b"v" * 1_000} for at in range(MESSAGES))
            return threads.submit(stage, of, 0, iter([due]), number)

        yield attempt


def staged(plan: StagingPlan) -> int:
    """Return the contents of the marker, while a transaction is open."""
    found = read_progress(plan.options, plan.progress_topic, 0)
    return 0 if found is None else found.messages


def fence_first(begin: Begin, stops: Stops, of: StagingPlan) -> tuple[Attempt, Attempt]:
    """Begin two attempts: the second one fences the first, which then goes on."""
    first = begin(0, of)
    assert_eventually(lambda: stops.passed[0] == 1)
    second = begin(1, of)
    assert_eventually(lambda: stops.passed[1] == 1)
    stops.allow(0)
    return first, second


def test_an_attempt_that_another_one_has_fenced_lets_it_go_on_and_ends_when_it_is_done(
    plan: StagingPlan, begin: Begin, stops: Stops, ready: Ready, marker: Marker
) -> None:
    first, second = fence_first(begin, stops, plan)
    for done in range(1, MESSAGES + 1):
        stops.allow(1, 1)
        assert_eventually(lambda: staged(plan) == done)  # noqa: B023
        assert stops.passed[0] == 1, "the first attempt has begun no transaction again"
    count, own = second.result(60)
    assert (count, first.result(60)[1] != own) == (MESSAGES, True)
    assert ready(plan) == [*range(MESSAGES)]
    assert marker(plan) == Progress(plan.batch, MESSAGES, OrderKey(3, "delayline-in", 0, 3), MESSAGES)
    # The writer of the attempt that was successful goes on.
    stops.allow(0)
    later = replace(plan, batch=replace(plan.batch, batch_id=8), last_writers={0: own})
    assert begin(0, later).result(60) == (MESSAGES, own)


def test_an_attempt_that_was_fenced_fails_if_no_other_one_goes_on(
    plan: StagingPlan, begin: Begin, stops: Stops, ready: Ready
) -> None:
    plan = replace(plan, transaction_timeout_ms=8_000)
    first = begin(0, plan)
    assert_eventually(lambda: stops.passed[0] == 1)
    ReadyLogWriter(plan, 0)
    stops.allow(0)
    with pytest.raises(DeliveryFailed, match=r"shard 0, batch 7: another writer .* not committed anything for 2 s"):
        first.result(60)
    stops.allow(1)
    assert begin(1, plan).result(60)[0] == MESSAGES
    assert ready(plan) == [*range(MESSAGES)]


def test_an_attempt_that_another_job_has_fenced_ends_at_once(plan: StagingPlan, begin: Begin, stops: Stops) -> None:
    first = begin(0)
    assert_eventually(lambda: stops.passed[0] == 1)
    ReadyLogWriter(plan, 0)
    lease = Lease(plan.fencing_token + 1, "elsewhere", 4711, "run", 0, 10_000)
    producer = Producer(plan.options)
    producer.produce(plan.lease_topic, lease.to_bytes(), b"lease", 0)
    producer.flush(10)
    stops.allow(0)
    with pytest.raises(ApplicationHeld, match="process 4711 on host elsewhere"):
        first.result(60)
