"""A broker dies while a shard's batch is staged, and the ready topic is lost."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from conf.errors import BrokerUnreachable, TopicMissing
from sinks.ready_log import writer
from sinks.ready_log.stage import stage
from sinks.ready_log.writer import StagingPlan
from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.progress import BatchSpan, Progress
from streaming.local.broker import EmbeddedBroker
from tests.eventually import assert_eventually
from tests.messages import messages
from tests.quick_java import quick_broker
from tests.sinks.ready_log.conftest import Marker, Ready
from tests.thorough import some_thorough

_QUICK = {
    # A broker that was killed comes back in two seconds instead of nine.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    # How often the broker looks for transactions that are too old: 10 s by default.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}


@pytest.fixture(scope="module")
def frail(java: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker that a test may kill. The test starts it again."""
    with quick_broker(tmp_path_factory.mktemp("frail"), properties=_QUICK, heap="512m") as running:
        yield running


@pytest.fixture
def broker(frail: EmbeddedBroker) -> EmbeddedBroker:
    """The broker of all fixtures here."""
    return frail


@dataclass
class Phase:
    """Stops the staging when it first passes a point, until the test releases it."""

    reached: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def passed(self) -> None:
        if not self.reached.is_set():
            self.reached.set()
            assert self.released.wait(60)


@pytest.fixture
def phase(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Phase]:
    """A function that stops the staging at a failpoint, or before the marker is read."""
    phases: dict[str, Phase] = {}
    read, failpoint = writer.read_progress, writer.failpoint

    def at(name: str) -> None:
        if name in phases:
            phases[name].passed()

    def reading(options: Mapping[str, str], topic: str, shard: int, after_fencing: bool) -> Progress | None:
        at("marker-read")
        return read(options, topic, shard, after_fencing)

    def passing(name: str, attempt: int = 0) -> None:
        at(name)
        failpoint(name, attempt)

    monkeypatch.setattr(writer, "read_progress", reading)
    monkeypatch.setattr(writer, "failpoint", passing)

    def stop_at(name: str) -> Phase:
        phases.clear()
        phases[name] = Phase()
        return phases[name]

    return stop_at


@dataclass
class Job:
    """The batches of one application, staged in a thread so that the test can interfere."""

    plan: StagingPlan
    thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    batches: int = 0

    def begin(self, attempt: int = 0) -> Future[tuple[int, str]]:
        """Stage two messages in two transactions: a new batch, or the last one again if `attempt` is not 0."""
        self.batches += not attempt
        plan = replace(self.plan, batch=replace(self.plan.batch, batch_id=self.batches))
        return self.thread.submit(stage, plan, 0, iter([self._due()]), attempt)

    def _due(self) -> pa.Table:
        dues = (2 * self.batches - 1, 2 * self.batches)
        return messages({"offset": due, "deliver_at_ms": due, "value": b"v" * 1_000} for due in dues)

    def check(self, ready: Ready, marker: Marker) -> None:
        """Check that each message is there once, in order, and that the marker counts them."""
        assert ready(self.plan) == [*range(1, 2 * self.batches + 1)]
        found = marker(self.plan)
        assert found is not None
        assert (found.messages, found.staged) == (2, 2 * self.batches)


@pytest.fixture
def job(frail: EmbeddedBroker) -> Iterator[Job]:
    """An application with transactions of 3 s and an outage limit of a minute."""
    application_id = f"app-{uuid.uuid4().hex[:8]}"
    plan = StagingPlan(
        application_id=application_id,
        batch=BatchSpan(CheckpointOrigin("c", 1, 1), 1),
        clock_ms=0,
        progress_topic=f"{application_id}-progress",
        ready_topic=f"{application_id}-ready",
        lease_topic=f"{application_id}-lease",
        fencing_token=1,
        transaction_timeout_ms=3_000,
        outage_limit_ms=60_000,
        tolerates_input_loss=False,
        options={"bootstrap.servers": frail.bootstrap, "log_level": "0"},
        transaction_bytes=1_000,
    )
    _create(frail, plan.progress_topic, plan.ready_topic, plan.lease_topic)
    job = Job(plan)
    yield job
    job.thread.shutdown()


def _create(broker: EmbeddedBroker, *names: str) -> None:
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in client.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        future.result()


def _killed_at(name: str, frail: EmbeddedBroker, job: Job, phase: Callable[[str], Phase]) -> Future[tuple[int, str]]:
    """Begin a batch, and kill the broker when it is at `name`."""
    stopped = phase(name)
    running = job.begin()
    assert stopped.reached.wait(60), name
    frail.kill()
    stopped.released.set()
    return running


@pytest.mark.takes(15)
@pytest.mark.parametrize(
    "point", some_thorough(["marker-read", "transaction-open", "transaction-committed"], ["transaction-committed"])
)
def test_a_stage_waits_for_a_broker_that_dies_and_loses_and_duplicates_nothing(
    frail: EmbeddedBroker,
    job: Job,
    phase: Callable[[str], Phase],
    ready: Ready,
    marker: Marker,
    caplog: pytest.LogCaptureFixture,
    point: str,
) -> None:
    job.begin().result(60)
    running = _killed_at(point, frail, job, phase)
    if point != "marker-read":
        # It stays away for longer than a transaction may last.
        assert_eventually(lambda: "Kafka does not answer" in caplog.text, 60)
    frail.start()
    assert running.result(60)[0] == 2
    job.check(ready, marker)


@pytest.mark.thorough
@pytest.mark.takes(15)
def test_after_an_outage_that_is_too_long_the_next_attempt_hands_over_the_rest(
    frail: EmbeddedBroker, job: Job, phase: Callable[[str], Phase], ready: Ready, marker: Marker
) -> None:
    job.begin().result(60)
    patient = job.plan
    job.plan = replace(patient, outage_limit_ms=1_000)
    running = _killed_at("transaction-committed", frail, job, phase)
    with pytest.MonkeyPatch.context() as patch:
        # How long a new writer looks for the marker.
        patch.setattr("sinks.internal_topics.newest_record._READ_TIMEOUT_S", 3.0)
        with pytest.raises(BrokerUnreachable, match=r"shard 0, batch 2: no broker answered for 1 s .*outage_limit"):
            running.result(60)
    frail.start()
    job.plan = patient
    assert job.begin(attempt=1).result(60)[0] == 1
    job.check(ready, marker)


@pytest.mark.takes(15)
@pytest.mark.parametrize("keeps_writer", [True, False])
def test_a_deleted_ready_topic_is_named(frail: EmbeddedBroker, job: Job, keeps_writer: bool) -> None:
    _, last = job.begin().result(60)
    job.plan = replace(job.plan, transaction_timeout_ms=10_000, last_writers={0: last} if keeps_writer else {})
    client = AdminClient({"bootstrap.servers": frail.bootstrap})
    client.delete_topics([job.plan.ready_topic])[job.plan.ready_topic].result()
    with pytest.raises(TopicMissing, match=f"{job.plan.ready_topic}.*`delayline topics create`"):
        job.begin().result(120)
