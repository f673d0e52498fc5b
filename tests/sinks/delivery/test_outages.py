"""A broker of its own that dies, pauses and forgets while a shard's transactions are under way."""

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
    """A broker that a test may kill or pause; it starts it again."""
    with EmbeddedBroker(tmp_path_factory.mktemp("frail"), properties=_QUICK, heap="512m") as running:
        yield running


@dataclass
class Phase:
    """Stops a delivery when it passes a place for the first time, until the test lets it go on."""

    reached: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def passed(self) -> None:
        if not self.reached.is_set():
            self.reached.set()
            assert self.released.wait(60)


@pytest.fixture
def phase(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Phase]:
    """A function that stops deliveries at a failpoint, or before the marker is read."""
    waited: dict[str, Phase] = {}
    read_progress, failpoint = transactional_writer.read_progress, transactional_writer.failpoint

    def at(name: str) -> None:
        if name in waited:
            waited[name].passed()

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
        waited.clear()
        waited[name] = Phase()
        return waited[name]

    return stop_at


@dataclass
class Delivery:
    """The batches of one application, delivered in a thread so that the test can meddle."""

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
        """Deliver ten messages in two transactions: a new batch, or the last one again if it is a further attempt."""
        self.batches += not attempt
        plan = replace(self.plan, batch=replace(self.plan.batch, batch_id=self.batches))
        return self.threads.submit(deliver, plan, 0, iter([self.due(partition)]), attempt)

    def committed(self) -> list[int]:
        """The offsets, in the input, of what is committed, in the order of the output."""
        found = []
        for message in committed(self.broker, self.topic):
            found.append(int(str(received(message, 0).id).rsplit("/", 1)[1]))
        return found

    def expected(self) -> list[int]:
        return list(range(10, 10 * self.batches + 10))


@pytest.fixture
def delivery_at() -> Iterator[Callable[[EmbeddedBroker], Delivery]]:
    """A function that makes an application with transactions of three seconds, that waits a minute for its broker."""
    made: list[Delivery] = []

    def make(broker: EmbeddedBroker) -> Delivery:
        own = f"app-{uuid.uuid4().hex[:8]}"
        _create(broker, f"{own}-progress", f"{own}-lease", f"{own}-out", f"{own}-dead")
        plan = DeliveryPlan(
            application_id=own,
            batch=BatchSpan(CheckpointOrigin("c", 1, 1), 1),
            progress_topic=f"{own}-progress",
            lease_topic=f"{own}-lease",
            fencing_token=1,
            dead_letter=f"{own}-dead",
            topics=(),
            slice_ms=100,
            messages_per_second=0,
            transaction_messages=5,
            transaction_timeout_ms=3_000,
            outage_limit_ms=60_000,
            tolerates_input_loss=False,
            options={"bootstrap.servers": broker.bootstrap, "log_level": "0"},
        )
        made.append(Delivery(broker, plan, f"{own}-out"))
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
    for done in client.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        done.result()


def _consumer(broker: EmbeddedBroker) -> Consumer:
    return Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "test", "isolation.level": "read_committed",
         "enable.partition.eof": True}
    )  # fmt: skip


def test_a_broker_that_dies_in_any_phase_of_a_delivery_is_waited_for_and_nothing_is_lost_or_doubled(
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
    # And now for longer than it is waited for.
    patient = delivery.plan
    delivery.plan = replace(patient, outage_limit_ms=1_000)
    running = killed_at("transaction-committed")
    with pytest.raises(BrokerUnreachable, match=r"shard 0, batch 4: no broker answered for 1 s .*kafka\.outage_limit"):
        running.result(60)
    frail.start()
    delivery.plan = patient
    assert delivery.begin(attempt=1).result(60)[0] == 5
    assert delivery.committed() == delivery.expected()


def test_a_broker_that_pauses_while_a_commit_is_on_its_way_has_it_told_once(
    frail: EmbeddedBroker, delivery: Delivery, phase: Callable[[str], Phase], caplog: pytest.LogCaptureFixture
) -> None:
    delivery.begin().result(60)
    stopped = phase("transaction-open")
    running = delivery.begin()
    assert stopped.reached.wait(60)
    assert frail.pid is not None
    os.kill(frail.pid, signal.SIGSTOP)
    try:
        # The request to commit lies in the broker's socket, and is carried out when it goes on.
        stopped.released.set()
        assert_eventually(lambda: "Kafka does not answer" in caplog.text, 60)
    finally:
        os.kill(frail.pid, signal.SIGCONT)
    assert running.result(60)[0] == 10
    assert delivery.committed() == delivery.expected()


def test_a_transaction_that_the_broker_has_ended_for_its_age_is_delivered_by_the_next_attempt(
    frail: EmbeddedBroker, delivery: Delivery, phase: Callable[[str], Phase]
) -> None:
    # Long enough to be seen open.
    delivery.plan = replace(delivery.plan, transaction_timeout_ms=10_000)
    reader = _consumer(frail)
    stopped = phase("transaction-open")
    running = delivery.begin()
    assert stopped.reached.wait(60)
    place = TopicPartition(delivery.topic, 0)
    # For a reader of committed records the topic ends before a transaction that is open.
    assert reader.get_watermark_offsets(place, 10)[1] == 0
    assert_eventually(lambda: reader.get_watermark_offsets(place, 10)[1] > 0, 60, "the end of the transaction")
    reader.close()
    stopped.released.set()
    with pytest.raises(DeliveryFailed, match="shard 0, batch 1"):
        running.result(60)
    assert delivery.committed() == []
    assert delivery.begin(attempt=1).result(60)[0] == 10
    assert delivery.committed() == delivery.expected()


@pytest.mark.parametrize("creates", [False, True])
def test_an_output_topic_that_is_deleted_is_named_and_what_waits_comes_out_when_it_is_there_again(
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
    # A broker that creates topics makes it again, with one partition, unless the client still knew the old one.
    if problem is not None or not creates:
        assert isinstance(problem, TopicMissing)
        assert f"{delivery.topic}, which messages are to be written to, is gone" in str(problem)
        _create(used, delivery.topic)
        first = delivery.begin(attempt=1)
    assert first.result(60)[0] == 10
    with pytest.raises(TopicMismatch, match=f"partition 1 of {delivery.topic}, which has fewer"):
        delivery.begin(partition=1).result(60)
    assert delivery.begin(attempt=1).result(60)[0] == 10
    # The first batch went with the topic.
    assert delivery.committed() == delivery.expected()[10:]
