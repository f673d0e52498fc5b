"""Staging a shard's messages on a real broker: what a replay adds, and which writer may write."""

from __future__ import annotations

import os
from dataclasses import replace

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from conf.errors import ApplicationHeld, CheckpointMismatch, InjectedFailure, TopicMismatch
from sinks.internal_topics.lease_record import Lease
from sinks.internal_topics.log_producer import LogProducer
from sinks.ready_log import stage as handing_over
from sinks.ready_log import writer
from sinks.ready_log.chunk import summary_of
from sinks.ready_log.stage import stage
from sinks.ready_log.writer import FencedBySibling, ReadyLogWriter, StagingPlan
from state.checkpoint.progress import Progress
from state.message import decode_chunk
from state.order import OrderKey, key_of
from streaming.local.broker import EmbeddedBroker
from tests.conftest import MakeTopic
from tests.messages import messages
from tests.sinks.committed_records import committed
from tests.sinks.ready_log.conftest import Marker, Ready

# Each value is larger than a transaction may be in the tests that cut them.
_LARGE = b"v" * 1_000


def _due(*deliver_at_ms: int, value: bytes = b"v") -> pa.Table:
    rows = [{"offset": n, "deliver_at_ms": due, "value": value} for n, due in enumerate(deliver_at_ms)]
    return messages(rows)


def _next(plan: StagingPlan) -> StagingPlan:
    """Return the plan of the batch after the batch of `plan`."""
    return replace(plan, batch=replace(plan.batch, batch_id=plan.batch.batch_id + 1))


def test_a_batch_is_staged_with_a_marker_that_counts_all_messages_of_the_shard(
    plan: StagingPlan, ready: Ready, marker: Marker, broker: EmbeddedBroker
) -> None:
    assert stage(plan, 0, iter([_due(1, 2), _due(), _due(3)]))[0] == 3
    assert marker(plan) == Progress(plan.batch, 3, OrderKey(3, "delayline-in", 0, 0), 3)
    later = _next(plan)
    assert stage(later, 0, iter([_due(4, 5)]))[0] == 2
    assert marker(plan) == Progress(later.batch, 2, OrderKey(5, "delayline-in", 0, 1), 5)
    assert ready(plan) == [1, 2, 3, 4, 5]
    for record in committed(broker, plan.ready_topic):
        chunk, summary = decode_chunk(record.value() or b""), summary_of(record.headers(), "here")
        assert (summary.first, summary.last, summary.count) == (key_of(chunk), key_of(chunk, -1), chunk.num_rows)


def test_a_marker_says_from_where_on_occurrences_were_put_off(plan: StagingPlan, marker: Marker) -> None:
    found = []
    for below_ms in ({0: 2}, {0: 4, 1: 9}, {}):
        stage(replace(plan, occurrences_below_ms=below_ms), 0, iter([_due(1)]))
        found.append(marker(plan))
        cutoff_ms = plan.batch.cutoff_ms
        plan = replace(_next(plan), batch=replace(_next(plan).batch, previous_ms=cutoff_ms, cutoff_ms=cutoff_ms + 9))
    assert [each and (each.occurrences_below_ms, each.occurrences_from_ms) for each in found] == [
        (2, None),
        (4, 2),
        (None, 4),
    ]


def test_a_batch_without_messages_writes_nothing(plan: StagingPlan, ready: Ready, marker: Marker) -> None:
    assert stage(plan, 0, iter([_due()]))[0] == 0
    assert ready(plan) == []
    assert marker(plan) is None


def test_each_shard_has_its_own_partition_and_marker(
    plan: StagingPlan, make_topic: MakeTopic, broker: EmbeddedBroker, marker: Marker
) -> None:
    plan = replace(plan, ready_topic=make_topic(2), progress_topic=make_topic(2, **{"cleanup.policy": "compact"}))
    for shard in (0, 1):
        assert stage(plan, shard, iter([_due(*range(5 + shard))]))[0] == 5 + shard
    chunks = {record.partition(): decode_chunk(record.value() or b"") for record in committed(broker, plan.ready_topic)}
    assert {shard: chunk.num_rows for shard, chunk in chunks.items()} == {0: 5, 1: 6}
    assert [found and found.staged for found in (marker(plan, 0), marker(plan, 1))] == [5, 6]


def test_a_process_goes_on_with_its_writer_only_if_that_was_the_last_one(
    plan: StagingPlan, ready: Ready, broker: EmbeddedBroker
) -> None:
    _, first = stage(plan, 0, iter([_due(1)]))
    plan = replace(_next(plan), last_writers={0: first})
    assert stage(plan, 0, iter([_due(2)]))[1] == first
    plan = replace(_next(plan), last_writers={0: "of another process"})
    assert stage(plan, 0, iter([_due(3)]))[1] != first
    assert ready(plan) == [1, 2, 3]
    records = committed(broker, plan.ready_topic)
    assert [summary_of(record.headers(), "here").batch for record in records] == [7, 8, 9]


def test_a_process_closes_the_writers_of_shards_that_another_one_has_staged_since(
    plan: StagingPlan, make_topic: MakeTopic
) -> None:
    plan = replace(plan, ready_topic=make_topic(3), progress_topic=make_topic(3, **{"cleanup.policy": "compact"}))
    writers = {shard: stage(plan, shard, iter([_due(1)]))[1] for shard in range(3)}
    assert len(handing_over._open_writers) == 3
    plan = replace(_next(plan), last_writers={**writers, 1: "of another process"})
    assert stage(plan, 0, iter([_due(2)]))[1] == writers[0]
    assert {shard: writer.id for (_, shard), writer in handing_over._open_writers.items()} == {
        0: writers[0],
        2: writers[2],
    }


def test_records_are_accepted_whatever_the_hosts_clock_shows(
    plan: StagingPlan, make_topic: MakeTopic, broker: EmbeddedBroker
) -> None:
    # The broker's own records, which end a transaction, are held to this as well.
    narrow = {"message.timestamp.before.max.ms": "10000", "message.timestamp.after.max.ms": "10000"}
    markers = make_topic(**narrow, **{"cleanup.policy": "compact"})
    plan = replace(plan, ready_topic=make_topic(**narrow), progress_topic=markers)
    assert stage(plan, 0, iter([_due(1, 2)]))[0] == 2
    for topic in (plan.ready_topic, plan.progress_topic):
        # Kafka's value for a record without a timestamp, to which it applies no limit.
        assert [record.timestamp()[1] for record in committed(broker, topic)] == [-1]


def test_limits_of_the_clients_own_records_do_not_limit_a_chunk(plan: StagingPlan, ready: Ready) -> None:
    # Such a message becomes a dead letter later, when it is released.
    plan = replace(plan, options={**plan.options, "message.max.bytes": "2000"})
    rows = [{"offset": n, "deliver_at_ms": n, "value": os.urandom(100)} for n in range(100)]
    assert stage(plan, 0, iter([messages(rows)]))[0] == 100
    assert ready(plan) == [*range(100)]


def test_a_replay_hands_over_nothing_again(plan: StagingPlan, ready: Ready) -> None:
    due = _due(1, 2, 3)
    assert stage(plan, 0, iter([due]))[0] == 3
    assert stage(plan, 0, iter([due.slice(0, 1), due.slice(1)]), attempt=1)[0] == 0
    assert ready(plan) == [1, 2, 3]


def test_a_checkpoint_that_goes_back_is_refused(plan: StagingPlan, ready: Ready) -> None:
    stage(_next(plan), 0, iter([_due(1)]))
    with pytest.raises(CheckpointMismatch, match="batch 8 is already staged, but the checkpoint is at batch 7"):
        stage(plan, 0, iter([_due(2)]))
    assert ready(plan) == [1]


def test_a_replay_that_lost_input_continues_after_the_committed_messages_if_input_loss_is_tolerated(
    plan: StagingPlan, ready: Ready, marker: Marker
) -> None:
    due = _due(1, 2, 3, 4)
    assert stage(plan, 0, iter([due.slice(0, 3)]))[0] == 3
    # The first record expired before the batch was replayed.
    with pytest.raises(CheckpointMismatch, match="shard 0, batch 7: 3 messages are staged, but its replay stages 2 "):
        stage(plan, 0, iter([due.slice(1)]), attempt=1)
    assert stage(replace(plan, tolerates_input_loss=True), 0, iter([due.slice(1)]), attempt=1)[0] == 1
    assert ready(plan) == [1, 2, 3, 4]
    found = marker(plan)
    assert found is not None
    assert (found.messages, found.staged) == (4, 4)


@pytest.mark.parametrize(
    ("point", "passing", "done"), [("transaction-open", 2, [1]), ("transaction-committed", 2, [1, 2])]
)
def test_a_crash_between_transactions_leaves_the_rest_to_the_next_attempt(
    plan: StagingPlan,
    ready: Ready,
    marker: Marker,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    passing: int,
    done: list[int],
) -> None:
    plan = replace(plan, transaction_bytes=1_000)
    passed: list[str] = []

    def crash(name: str, attempt: int = 0) -> None:
        passed.append(name)
        if name == point and passed.count(name) == passing and not attempt:
            raise InjectedFailure(name)

    monkeypatch.setattr(writer, "failpoint", crash)
    # As after a kill.
    monkeypatch.setattr(LogProducer, "_abort", lambda _: None)
    due = _due(1, 2, 3, 4, value=_LARGE)
    with pytest.raises(InjectedFailure):
        stage(plan, 0, iter([due]))
    left = 4 - len(done)
    # The next writer ends the open transaction, so that only committed records are left.
    assert stage(plan, 0, iter([due]), attempt=1)[0] == left
    assert ready(plan) == [1, 2, 3, 4]
    assert passed.count("transaction-committed") == 4
    assert marker(plan) == Progress(plan.batch, 4, OrderKey(4, "delayline-in", 0, 3), 4)


def test_a_writer_of_an_earlier_lease_holder_writes_nothing_and_fences_nobody(plan: StagingPlan, ready: Ready) -> None:
    successor = ReadyLogWriter(plan, 0)
    lease = Lease(plan.fencing_token + 1, "elsewhere", 4711, "run", 0, 10_000)
    producer = Producer(plan.options)
    producer.produce(plan.lease_topic, lease.to_bytes(), b"lease", 0)
    producer.flush(10)
    with pytest.raises(ApplicationHeld, match="process 4711 on host elsewhere"):
        stage(plan, 0, iter([_due(1)]))
    assert ready(plan) == []
    successor.write([_due(2)], Progress(plan.batch, 1, key_of(_due(2)), 1), 0)
    assert ready(plan) == [2]


def test_an_earlier_writer_is_fenced(plan: StagingPlan, ready: Ready) -> None:
    earlier = ReadyLogWriter(plan, 0)
    stage(plan, 0, iter([_due(1)]))
    with pytest.raises(FencedBySibling):
        earlier.write([_due(2)], Progress(plan.batch, 1, key_of(_due(2)), 1), 0)
    assert ready(plan) == [1]


def test_a_ready_topic_without_a_partition_for_the_shard_is_refused(plan: StagingPlan, make_topic: MakeTopic) -> None:
    plan = replace(plan, progress_topic=make_topic(2, **{"cleanup.policy": "compact"}))
    with pytest.raises(TopicMismatch, match=f"write to {plan.ready_topic}/1: .*one partition for each shard"):
        stage(plan, 1, iter([_due(1)]))
