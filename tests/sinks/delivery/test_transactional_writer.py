"""A shard's transactions against a real broker: when they open, and how the host's clock affects them."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from conf.errors import ApplicationHeld, CheckpointMismatch, DeliveryFailed
from sinks.delivery import shard_delivery, transactions
from sinks.delivery import wall_clock as wall_clock
from sinks.delivery.shard_delivery import deliver
from sinks.delivery.transactional_writer import DeliveryPlan, ShardWriter
from sinks.internal_topics.lease_record import Lease
from state.checkpoint.progress import Progress
from tests.conftest import MakeTopic
from tests.messages import messages
from tests.sinks.delivery.conftest import Read

_HOUR_MS = 3_600_000


def _real_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class Host:
    """The clock that the writer sees, and the real times, in ms, at which it opened transactions."""

    off_ms: int = 0
    step_ms_in_transaction: int = 0

    def __post_init__(self) -> None:
        self.opened_ms: list[int] = []

    def now_ms(self) -> int:
        return _real_ms() + self.off_ms

    def opened(self) -> None:
        self.opened_ms.append(_real_ms())
        self.off_ms += self.step_ms_in_transaction


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    """The host that the writer runs on."""
    host = Host()
    begin = ShardWriter.begin

    def begin_and_record(writer: ShardWriter) -> None:
        begin(writer)
        host.opened()

    monkeypatch.setattr(wall_clock, "now_ms", host.now_ms)
    monkeypatch.setattr(transactions, "now_ms", host.now_ms)
    # Otherwise its producers would outlive the broker and keep looking for it.
    monkeypatch.setattr(shard_delivery, "_open_writers", {})
    monkeypatch.setattr(ShardWriter, "begin", begin_and_record)
    return host


@pytest.fixture
def plan(plan: DeliveryPlan) -> DeliveryPlan:
    """A later batch, in small transactions."""
    return replace(plan, batch=replace(plan.batch, batch_id=7), transaction_messages=100)


def _due(topic: str, *deliver_at_ms: int) -> pa.Table:
    rows = [{"offset": n, "deliver_at_ms": due, "output_topic": topic} for n, due in enumerate(deliver_at_ms)]
    return messages(rows)


def test_no_transaction_is_open_before_its_messages_are_nearly_due(plan: DeliveryPlan, topic: str, host: Host) -> None:
    # A broker's first transaction may take seconds.
    deliver(replace(plan, batch=replace(plan.batch, batch_id=6)), 0, iter([_due(topic, 0)]))
    host.opened_ms.clear()
    first, last = _real_ms() + 1_500, _real_ms() + 3_000
    assert deliver(plan, 0, iter([_due(topic, first, first + 50, last)]))[0] == 3
    assert _real_ms() >= last
    assert host.opened_ms[0] >= first - 1_000
    assert host.opened_ms[-1] >= last - 1_000


def test_a_marker_is_accepted_at_any_time_of_the_hosts_clock_and_for_messages_of_any_age(
    plan: DeliveryPlan, topic: str, host: Host, read: Read, make_topic: MakeTopic
) -> None:
    # A broker-wide limit would have the same effect on this topic.
    narrow = {"cleanup.policy": "compact", "message.timestamp.before.max.ms": str(_HOUR_MS)}
    plan = replace(plan, progress_topic=make_topic(**narrow, **{"message.timestamp.after.max.ms": str(_HOUR_MS)}))
    host.off_ms = 2 * _HOUR_MS
    last = _real_ms() + 60_000
    assert deliver(plan, 0, iter([_due(topic, 1, 2)]))[0] == 2
    assert deliver(replace(plan, batch=replace(plan.batch, batch_id=8)), 0, iter([_due(topic, last - 5, last)]))[0] == 2
    assert [message.timestamp()[1] for message in read(topic)] == [1, 2, last - 5, last]
    assert len(read(plan.progress_topic)) == 2


def test_a_clock_set_back_in_an_open_transaction_aborts_it_and_the_next_attempt_delivers_once(
    plan: DeliveryPlan, topic: str, host: Host, read: Read
) -> None:
    due = _due(topic, _real_ms() + 1_500, _real_ms() + 1_550)
    host.step_ms_in_transaction = -_HOUR_MS
    with pytest.raises(DeliveryFailed, match="shard 0, batch 7: this host's clock was set back"):
        deliver(plan, 0, iter([due]))
    assert read(topic) == []
    host.step_ms_in_transaction = host.off_ms = 0
    assert deliver(plan, 0, iter([due]), attempt=1)[0] == 2
    assert len(read(topic)) == 2


def test_a_replay_that_lost_input_continues_after_the_committed_messages_if_input_loss_is_tolerated(
    plan: DeliveryPlan, topic: str, host: Host, read: Read
) -> None:
    due = _due(topic, 1, 2, 3, 4)
    assert deliver(plan, 0, iter([due.slice(0, 3)]))[0] == 3
    # The first record expired before the batch was replayed.
    with pytest.raises(CheckpointMismatch, match="shard 0, batch 7: 3 messages are delivered, and the replay has 2"):
        deliver(plan, 0, iter([due.slice(1)]), attempt=1)
    assert deliver(replace(plan, tolerates_input_loss=True), 0, iter([due.slice(1)]), attempt=1)[0] == 1
    assert [message.timestamp()[1] for message in read(topic)] == [1, 2, 3, 4]


def test_a_transaction_waits_if_the_clock_is_set_back_by_less_than_half_its_timeout(
    plan: DeliveryPlan, topic: str, host: Host
) -> None:
    start = _real_ms()
    host.step_ms_in_transaction = -2_000
    assert deliver(plan, 0, iter([_due(topic, start + 100)]))[0] == 1
    assert host.now_ms() >= start + 100
    assert len(host.opened_ms) == 1


def test_a_writer_of_an_earlier_lease_holder_writes_nothing_and_fences_nobody(
    plan: DeliveryPlan, topic: str, host: Host, read: Read
) -> None:
    successor = ShardWriter(plan, 0)
    lease = Lease(plan.fencing_token + 1, "elsewhere", 4711, "run", 0, 10_000)
    producer = Producer(plan.options)
    producer.produce(plan.lease_topic, lease.to_bytes(), b"lease", 0)
    producer.flush(10)
    with pytest.raises(ApplicationHeld, match="process 4711 on host elsewhere"):
        deliver(plan, 0, iter([_due(topic, 0)]))
    assert read(topic) == []
    (transaction,) = transactions.transactions(iter([_due(topic, 0)]), 0, 100, 100, 1_000)
    successor.write(transaction, Progress(plan.batch, 1, transaction.last), 0, {})


def test_a_burst_goes_out_in_order_at_the_configured_rate(
    plan: DeliveryPlan, topic: str, host: Host, read: Read
) -> None:
    slow = replace(plan, messages_per_second=5)
    begun = time.monotonic()
    for batch_id in (7, 8):
        deliver(replace(slow, batch=replace(plan.batch, batch_id=batch_id)), 0, iter([_due(topic, *range(1, 13))]))
    seconds = time.monotonic() - begun
    # 24 messages, five at once: the last of them waits for those before it.
    assert seconds >= 4.0
    assert [message.timestamp()[1] for message in read(topic)] == [*range(1, 13)] * 2
