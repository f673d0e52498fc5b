"""Faults planted in the topics of a real broker, and read by the judge's own subscriber."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer

from streaming.judge.checkpoint_watch import CheckpointWatch
from streaming.judge.contract import Environment, Fault
from streaming.judge.outputs import Outputs
from streaming.judge.record import Published, Received
from streaming.judge.verdict import Verdict, judge
from streaming.local.broker import EmbeddedBroker
from tests.conftest import MakeTopic
from tests.eventually import assert_eventually
from tests.streaming.judge.checkpoints import begin, commit, plan
from tests.streaming.judge.runs import record_of
from tests.unreadable_headers import write_unreadable

_COUNT = 10
_KEY, _KEY_PARTITION = b"foobar", (-790332482 & 0x7FFFFFFF) % 2


class Stage:
    """Two output topics, the messages published for them, and a checkpoint that has committed these."""

    def __init__(self, broker: EmbeddedBroker, make_topic: MakeTopic, storage: Path) -> None:
        self.output, self.other = make_topic(2), make_topic(2)
        self._broker = broker
        due_ms = time.time_ns() // 1_000_000
        headers = (("trace", b"1"), ("trace", None))
        self.messages = [
            Published(f"in/0/{n}", due_ms - 60_000, _KEY, b"%d" % n, headers, self.output, due_ms - 1_000 + n)
            for n in range(_COUNT)
        ]
        checkpoint = storage / "checkpoint"
        begin(checkpoint, "a")
        plan(checkpoint, 0, {"in": {"0": _COUNT}})
        commit(checkpoint, 0, due_ms - 2_000)
        self.watch = CheckpointWatch(storage)
        self.received: list[Received] = []
        self.outputs = Outputs(broker.bootstrap, [self.output, self.other], self.received.append, silent_s=1.0)

    def writer(self) -> Producer:
        """Return a transactional producer. It ends the open transaction of an earlier one."""
        writer = Producer({"bootstrap.servers": self._broker.bootstrap, "transactional.id": self.output})
        writer.init_transactions(30)
        return writer

    def write(self, records: list[Received], abort: bool = False) -> None:
        """Write the records in one transaction."""
        writer = self.writer()
        writer.begin_transaction()
        self.produce(writer, records)
        (writer.abort_transaction if abort else writer.commit_transaction)(30)

    def produce(self, producer: Producer, records: list[Received]) -> None:
        """Write the records, each to its topic and partition."""
        for record in records:
            producer.produce(
                record.topic, record.value, record.key, record.partition,
                timestamp=record.timestamp_ms, headers=list(record.headers),
            )  # fmt: skip
        assert producer.flush(30) == 0

    def verdict(self) -> Verdict:
        """Judge all committed records."""
        self.outputs.drain()
        environment = Environment({topic: {count} for topic, count in self.outputs.partitions.items()})
        published = {message.id: message for message in self.messages}
        return judge(published, self.received, self.watch.acceptance(), environment)

    def close(self) -> None:
        self.outputs.close()
        self.watch.close()


@pytest.fixture
def stage(broker: EmbeddedBroker, make_topic: MakeTopic, tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(broker, make_topic, tmp_path)
    yield stage
    stage.close()


@pytest.fixture
def expected(stage: Stage) -> list[Received]:
    """The records that the contract requires for the messages."""
    return [record_of(message, _KEY_PARTITION) for message in stage.messages]


def _ids_by_fault(verdict: Verdict) -> dict[Fault, list[str]]:
    """Return the ids by fault. They are sorted, since partitions are read in any order."""
    ids: dict[Fault, list[str]] = {}
    for finding in sorted(verdict.findings, key=lambda finding: finding.id):
        ids.setdefault(finding.fault, []).append(finding.id)
    return ids


def test_a_record_whose_headers_cannot_be_read_is_a_fault_and_ends_nothing(
    stage: Stage, expected: list[Received], broker: EmbeddedBroker
) -> None:
    write_unreadable(broker.bootstrap, stage.output, b"v")
    stage.write(expected)
    assert _ids_by_fault(stage.verdict()) == {Fault.FOREIGN: ["?"]}


def test_records_that_keep_the_contract_have_no_faults(stage: Stage, expected: list[Received]) -> None:
    stage.write(expected[: _COUNT // 2])
    stage.write(expected, abort=True)
    stage.write(expected[_COUNT // 2 :])
    verdict = stage.verdict()
    assert verdict.problems(least_checked=1) == []
    assert (verdict.delivered, verdict.order_checked) == (_COUNT, _COUNT)


def test_each_planted_fault_is_found_and_no_other(stage: Stage, expected: list[Received]) -> None:
    lost, first, second, altered, header, keyed, topic, partition, doubled, *rest = expected
    planted = [
        second,
        first,
        replace(altered, value=b"x"),
        replace(header, headers=(*header.headers[:-1], ("delayline-deliver-at", b"1"))),
        replace(keyed, key=None),
        replace(topic, topic=stage.other),
        replace(partition, partition=1 - _KEY_PARTITION),
        doubled,
        *rest,
    ]
    stage.write(planted)
    stage.write([doubled])
    assert _ids_by_fault(stage.verdict()) == {
        Fault.LOST: [lost.id],
        Fault.DOUBLED: [doubled.id],
        Fault.OUT_OF_ORDER: [first.id],
        Fault.ALTERED: [altered.id, header.id, keyed.id],
        Fault.MISPLACED: [topic.id, partition.id],
    }


def test_a_record_received_before_it_is_due_is_early_and_late_ones_received_with_it_are_not(
    stage: Stage,
) -> None:
    *late, early = stage.messages
    # Written now, and due after it will have been read: as near as a test can come to it on a busy machine.
    due_ms = time.time_ns() // 1_000_000 + 3_000
    stage.messages[-1] = replace(early, deliver_at_ms=due_ms)
    stage.write([record_of(message, _KEY_PARTITION) for message in (*late, stage.messages[-1])])
    verdict = stage.verdict()
    (seen_ms,) = (record.received_ms for record in stage.received if record.id == early.id)
    assert _ids_by_fault(verdict) == {Fault.EARLY: [early.id]}
    (finding,) = verdict.findings
    assert finding.text == f"came {due_ms - seen_ms} ms early"


def test_each_record_has_its_own_time_of_receipt(stage: Stage, expected: list[Received]) -> None:
    for number, record in enumerate(expected):
        before_ms = time.time_ns() // 1_000_000
        stage.write([record])
        assert_eventually(lambda: len(stage.received) > number)  # noqa: B023
        assert before_ms <= stage.received[number].received_ms <= time.time_ns() // 1_000_000


def test_a_duplicate_after_all_other_records_is_found(stage: Stage, expected: list[Received]) -> None:
    stage.write(expected)
    assert stage.verdict().problems() == []
    stage.write([expected[0]])
    assert _ids_by_fault(stage.verdict()) == {Fault.DOUBLED: [expected[0].id]}


def test_a_missing_topic_and_an_end_that_is_not_reached_are_errors(broker: EmbeddedBroker, stage: Stage) -> None:
    with pytest.raises(Exception, match="UNKNOWN_TOPIC_OR_PART"):
        Outputs(broker.bootstrap, ["no-such-topic"], lambda record: None)
    stage.outputs.close()
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(stage.output, b"v")
    assert producer.flush(30) == 0
    with pytest.raises(TimeoutError, match="not read to the end"):
        stage.outputs.drain(0.2, undecided_s=0.2)


def test_drain_waits_for_an_open_transaction_but_not_forever(stage: Stage, expected: list[Received]) -> None:
    stage.write(expected[:1])
    writer = stage.writer()
    writer.begin_transaction()
    stage.produce(writer, expected[1:])
    stage.outputs.drain(undecided_s=0.2)
    assert len(stage.received) == 1
    commit_timer = threading.Timer(1, writer.commit_transaction, [30])
    commit_timer.start()
    stage.outputs.drain()
    assert len(stage.received) == _COUNT
    commit_timer.join()


def test_a_reader_that_fetches_nothing_any_more_begins_again_where_it_was(
    stage: Stage, expected: list[Received]
) -> None:
    stage.write(expected[:3])
    stage.outputs.drain()
    stuck = stage.outputs._consumer
    stuck.pause(stuck.assignment())
    stage.write(expected[3:])
    assert stage.verdict().problems() == []
    assert len(stage.received) == _COUNT
    assert stage.outputs._consumer is not stuck
