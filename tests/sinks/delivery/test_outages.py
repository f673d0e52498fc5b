"""A broker dies, pauses and loses topics while a shard's transactions are open."""

from __future__ import annotations

import os
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from conf.errors import BrokerUnreachable, DeliveryFailed, TopicMismatch, TopicMissing
from sinks.delivery import shard_delivery, transactional_writer
from sinks.delivery.shard_delivery import deliver
from sinks.delivery.transactional_writer import DeliveryPlan
from sinks.topics.limits import missing_topics
from sources.subscriber import received
from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.progress import BatchSpan
from streaming.local.broker import EmbeddedBroker
from tests.eventually import assert_eventually
from tests.messages import messages
from tests.sinks.delivery.conftest import committed

_QUICK = {
    "auto.create.topics.enable": "true",
    # A broker that was killed comes back in two seconds instead of nine.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    # How often the broker looks for transactions that are too old: 10 s by default.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}


@pytest.fixture(scope="module")
def frail(java: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker that a test may kill or pause. The test starts it again."""
    with EmbeddedBroker(tmp_path_factory.mktemp("frail"), properties=_QUICK, heap="512m") as running:
        yield running


@dataclass
class Phase:
    """Stops a delivery when it first passes a point, until the test releases it."""

    reached: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def passed(self) -> None:
        if not self.reached.is_set():
            self.reached.set()
            assert self.released.wait(60)


@pytest.fixture
def phase(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Phase]:
    """A function that stops deliveries at a failpoint, or before the marker is read."""
    phases: dict[str, Phase] = {}
    read_progress, failpoint = transactional_writer.read_progress, transactional_writer.failpoint

    def at(name: str) -> None:
        if name in phases:
            phases[name].passed()

    def reading(*arguments: object) -> object:
        at("marker-read")
        return read_progress(*arguments)  # type: ignore[arg-type]

    def passing(name: str, attempt: int = 0) -> None:
        at(name)
        failpoint(name, attempt)

    monkeypatch.setattr(transactional_writer, "read_progress", reading)
    monkeypatch.setattr(transactional_writer, "failpoint", passing)
    monkeypatch.setattr(shard_delivery, "_open_writers", {})

    def stop_at(name: str) -> Phase:
        phases.clear()
        phases[name] = Phase()
        return phases[name]

    return stop_at


@dataclass
class Delivery:
    """The batches of one application, delivered in a thread so that the test can interfere."""

    broker: EmbeddedBroker
    plan: DeliveryPlan
    topic: str
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    batches: int = 0

    def due(self, partition: int = 0) -> pa.Table:
        rows = [
            {"offset": 10 * self.batches + n, "deliver_at_ms": 1, "output_topic": self.topic, "value": b"v",
             "output_partition": partition} for n in range(10)
        ]  # fmt: skip
        return messages(rows)

    def begin(self, attempt: int = 0, partition: int = 0) -> Future[tuple[int, str]]:
        """Deliver ten messages in two transactions: a new batch, or the last batch again if `attempt` is not 0."""
        self.batches += not attempt
        plan = replace(self.plan, batch=replace(self.plan.batch, batch_id=self.batches))
        return self.threads.submit(deliver, plan, 0, iter([self.due(partition)]), attempt)

    def committed(self) -> list[int]:
        """Return the input offsets of the committed messages, in output order."""
        offsets = []
        for message in committed(self.broker, self.topic):
            offsets.append(int(str(received(message, 0).id).rsplit("/", 1)[1]))
        return offsets

    def expected(self) -> list[int]:
        return list(range(10, 10 * self.batches + 10))


@pytest.fixture
def delivery_at() -> Iterator[Callable[[EmbeddedBroker], Delivery]]:
    """A function that makes an application with transactions of 3 s and an outage limit of a minute."""
    made: list[Delivery] = []

    def make(broker: EmbeddedBroker) -> Delivery:
        application_id = f"app-{uuid.uuid4().hex[:8]}"
        _create(
            broker,
            f"{application_id}-progress",
            f"{application_id}-lease",
            f"{application_id}-out",
            f"{application_id}-dead",
        )
        plan = DeliveryPlan(
            application_id=application_id,
            batch=BatchSpan(CheckpointOrigin("c", 1, 1), 1),
            progress_topic=f"{application_id}-progress",
            lease_topic=f"{application_id}-lease",
            fencing_token=1,
            dead_letter=f"{application_id}-dead",
            topics=(),
            slice_ms=100,
            messages_per_second=0,
            transaction_messages=5,
            transaction_timeout_ms=3_000,
            outage_limit_ms=60_000,
            tolerates_input_loss=False,
            options={"bootstrap.servers": broker.bootstrap, "log_level": "0"},
        )
        made.append(Delivery(broker, plan, f"{application_id}-out"))
        return made[-1]

    yield make
    for delivery in made:
        delivery.threads.shutdown()


@pytest.fixture
def delivery(frail: EmbeddedBroker, delivery_at: Callable[[EmbeddedBroker], Delivery]) -> Delivery:
    """An application of `frail`."""
    return delivery_at(frail)


def _create(broker: EmbeddedBroker, *names: str) -> None:
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in client.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        future.result()


def _consumer(broker: EmbeddedBroker) -> Consumer:
    return Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "test", "isolation.level": "read_committed",
         "enable.partition.eof": True}
    )  # fmt: skip


def test_a_delivery_waits_for_a_broker_that_dies_in_any_phase_and_loses_and_duplicates_nothing(
    frail: EmbeddedBroker, delivery: Delivery, phase: Callable[[str], Phase], caplog: pytest.LogCaptureFixture
) -> None:
    delivery.begin().result(60)

    def killed_at(name: str) -> Future[tuple[int, str]]:
        stopped = phase(name)
        running = delivery.begin()
        assert stopped.reached.wait(60), name
        frail.kill()
        stopped.released.set()
        return running

    running = killed_at("marker-read")
    frail.start()
    assert running.result(60)[0] == 10
    running = killed_at("transaction-open")
    # It stays away for longer than a transaction may last.
    assert_eventually(lambda: "Kafka does not answer" in caplog.text, 60)
    frail.start()
    assert running.result(60)[0] == 10
    # And now for longer than the outage limit.
    patient = delivery.plan
    delivery.plan = replace(patient, outage_limit_ms=1_000)
    running = killed_at("transaction-committed")
    with pytest.raises(BrokerUnreachable, match=r"shard 0, batch 4: no broker answered for 1 s .*kafka\.outage_limit"):
        running.result(60)
    frail.start()
    delivery.plan = patient
    assert delivery.begin(attempt=1).result(60)[0] == 5
    assert delivery.committed() == delivery.expected()


def test_a_commit_sent_to_a_paused_broker_takes_effect_once(
    frail: EmbeddedBroker, delivery: Delivery, phase: Callable[[str], Phase], caplog: pytest.LogCaptureFixture
) -> None:
    delivery.begin().result(60)
    stopped = phase("transaction-open")
    running = delivery.begin()
    assert stopped.reached.wait(60)
    assert frail.pid is not None
    os.kill(frail.pid, signal.SIGSTOP)
    try:
        # The commit request waits in the broker's socket. The broker executes it when it continues.
        stopped.released.set()
        assert_eventually(lambda: "Kafka does not answer" in caplog.text, 60)
    finally:
        os.kill(frail.pid, signal.SIGCONT)
    assert running.result(60)[0] == 10
    assert delivery.committed() == delivery.expected()


def test_a_transaction_that_the_broker_aborted_for_its_age_is_delivered_by_the_next_attempt(
    frail: EmbeddedBroker, delivery: Delivery, phase: Callable[[str], Phase]
) -> None:
    # Long enough for the test to see the open transaction.
    delivery.plan = replace(delivery.plan, transaction_timeout_ms=10_000)
    reader = _consumer(frail)
    stopped = phase("transaction-open")
    running = delivery.begin()
    assert stopped.reached.wait(60)
    partition = TopicPartition(delivery.topic, 0)
    # For a reader of committed records, the topic ends before an open transaction.
    assert reader.get_watermark_offsets(partition, 10)[1] == 0
    assert_eventually(lambda: reader.get_watermark_offsets(partition, 10)[1] > 0, 60, "the end of the transaction")
    reader.close()
    stopped.released.set()
    with pytest.raises(DeliveryFailed, match="shard 0, batch 1"):
        running.result(60)
    assert delivery.committed() == []
    assert delivery.begin(attempt=1).result(60)[0] == 10
    assert delivery.committed() == delivery.expected()


@pytest.mark.parametrize("creates", [False, True])
def test_a_deleted_output_topic_is_named_and_its_messages_are_delivered_once_it_exists_again(
    broker: EmbeddedBroker, frail: EmbeddedBroker, delivery_at: Callable[[EmbeddedBroker], Delivery], creates: bool
) -> None:
    used = frail if creates else broker
    delivery = delivery_at(used)
    count, writer = delivery.begin().result(60)
    assert count == 10
    delivery.plan = replace(delivery.plan, last_writers={0: writer}, transaction_timeout_ms=10_000)
    options = delivery.plan.options
    client = AdminClient(dict(options))
    client.delete_topics([delivery.topic])[delivery.topic].result()
    assert_eventually(lambda: missing_topics(options, [delivery.topic]) == [delivery.topic])
    first = delivery.begin()
    problem = first.exception(60)
    # A broker with auto-creation makes the topic again, with one partition, unless the client still knows the old one.
    if problem is not None or not creates:
        assert isinstance(problem, TopicMissing)
        assert f"{delivery.topic}, to which the job writes, is gone" in str(problem)
        _create(used, delivery.topic)
        first = delivery.begin(attempt=1)
    assert first.result(60)[0] == 10
    with pytest.raises(TopicMismatch, match=f"partition 1 of {delivery.topic}, which has fewer"):
        delivery.begin(partition=1).result(60)
    assert delivery.begin(attempt=1).result(60)[0] == 10
    # The first batch was deleted with the topic.
    assert delivery.committed() == delivery.expected()[10:]
