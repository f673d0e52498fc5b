"""The producer of a lane's owner, with a real broker."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from conf.errors import CheckpointMismatch, ClockAhead, TopicMismatch
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.internal_topics.transactional_ids import transactional_id
from sinks.lanes import writer as writer_module
from sinks.lanes.writer import LaneTaken, LaneWriter
from state.claims import Claim
from state.lanes import partition_of_lane
from state.message import decode_chunk
from streaming.local.broker import EmbeddedBroker
from tests.conftest import MakeSettings
from tests.eventually import assert_eventually
from tests.messages import messages
from tests.sinks.committed_records import committed
from tests.sinks.lanes.conftest import IDS, Open, claim


def near(broker: EmbeddedBroker, settings: Settings) -> dict[int, list[int]]:
    """Return the due times in the near log, by shard."""
    found: dict[int, list[int]] = {}
    for record in committed(broker, settings.near_topic):
        dues = decode_chunk(record.value() or b"").column("deliver_at_ms").to_pylist()
        found.setdefault(record.partition() or 0, []).extend(dues)
    return found


def chunk(*dues: int) -> Any:
    return messages({"offset": due, "deliver_at_ms": due} for due in dues)


def test_messages_and_the_claim_on_them_are_committed_together(
    broker: EmbeddedBroker, settings: Settings, open_writer: Open
) -> None:
    writer = open_writer()
    assert writer.claim is None
    writer.write(first := claim(None, 5, 1, 3, 4), {0: [chunk(1), chunk(3)], 1: [chunk(4)]})
    writer.write(second := claim(first, 9))
    assert writer.claim == second
    assert near(broker, settings) == {0: [1, 3], 1: [4]}
    records = committed(broker, settings.claims_topic)
    assert {record.partition() for record in records} == {partition_of_lane(0)}
    assert [Claim.from_bytes(record.value() or b"") for record in records] == [first, second]
    assert open_writer().claim == second
    assert open_writer(1).claim is None


def test_a_claim_on_many_partitions_takes_less_than_half_of_its_bytes(
    broker: EmbeddedBroker, settings: Settings, open_writer: Open
) -> None:
    places = {("in", number): 1_000_000 + number * 7919 % 999_983 for number in range(1_000)}
    own = Claim(1).next("test", places, {}, IDS, leader_epochs={place: place[1] % 5 for place in places})
    open_writer().write(own)
    (log,) = (broker.directory / "data" / f"{settings.claims_topic}-{partition_of_lane(0)}").glob("*.log")
    assert log.stat().st_size < len(own.to_bytes()) / 2
    assert open_writer().claim == own


def test_what_is_refused_by_the_brokers_stamp_is_not_committed(
    broker: EmbeddedBroker, settings: Settings, open_writer: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Longer than the test waits for what an open transaction hides.
    monkeypatch.setattr(writer_module, "_TRANSACTION_TIMEOUT_MS", 600_000)
    writer, stamps_ms = open_writer(), list[int]()
    writer.write(first := claim(None, 5, 1), {0: [chunk(1)]}, stamps_ms.append)
    assert abs(stamps_ms[0] - time.time() * 1000) < 60_000

    def refuse(stamp_ms: int) -> None:
        raise ClockAhead(str(stamp_ms))

    with pytest.raises(ClockAhead):
        writer.write(claim(first, 6, 5), {0: [chunk(5)]}, refuse)
    open_writer(1).write(claim(None, 9, 8), {0: [chunk(8)]})
    assert near(broker, settings) == {0: [1, 8]}
    assert open_writer().claim == first


def test_the_next_owner_fences_the_one_before_and_knows_its_newest_claim(open_writer: Open) -> None:
    earlier = open_writer()
    other_lane = open_writer(1)
    earlier.write(first := claim(None, 5))
    later = open_writer()
    assert later.claim == first
    for _ in range(2):
        with pytest.raises(LaneTaken):
            earlier.write(claim(first, 6), {0: [chunk(1)]})
    later.write(second := claim(first, 7))
    # A lane's owner fences nobody in another lane.
    other_lane.write(claim(None, 1))
    # And back.
    back = open_writer()
    assert back.claim == second
    with pytest.raises(LaneTaken):
        later.write(claim(second, 8))
    back.write(claim(second, 9))


def test_what_a_dead_owner_left_open_hides_nothing_once_there_is_another_owner(
    broker: EmbeddedBroker, settings: Settings, open_writer: Open
) -> None:
    open_writer().write(first := claim(None, 5, 1), {0: [chunk(1)]})
    own_id = transactional_id(settings.application_id, "forward", 0)
    dead = Producer({**librdkafka_options(settings.kafka), "transactional.id": own_id})
    dead.init_transactions(30)
    dead.begin_transaction()
    lost = claim(first, 6, 5)
    dead.produce(settings.near_topic, b"lost", partition=0)
    dead.produce(settings.claims_topic, lost.to_bytes(), partition=partition_of_lane(0))
    assert dead.flush(30) == 0
    next_owner = open_writer()
    assert next_owner.claim == first
    next_owner.write(claim(first, 6, 5), {0: [chunk(5)]})
    assert near(broker, settings) == {0: [1, 5]}
    with pytest.raises(KafkaException):
        dead.commit_transaction(30)


def test_a_claim_of_an_owner_that_died_after_its_commit_is_known(settings: Settings, open_writer: Open) -> None:
    for position in range(1, 8):
        # The commit is acknowledged before its end is in the claims topic: the next owner must wait for that.
        before = open_writer()
        before.write(own := claim(before.claim, position))
        assert open_writer().claim == own


def test_a_partition_that_is_missing_is_named(open_writer: Open) -> None:
    with pytest.raises(TopicMismatch, match=r"near/7.*one partition for each shard"):
        open_writer().write(claim(None, 5, 1), {7: [chunk(1)]})


def test_a_claim_that_a_stranger_has_written_is_refused(settings: Settings, open_writer: Open) -> None:
    producer = Producer(librdkafka_options(settings.kafka))
    producer.produce(settings.claims_topic, b"{}", partition=partition_of_lane(0))
    assert producer.flush(30) == 0
    with pytest.raises(CheckpointMismatch, match="is not a claim"):
        open_writer()


def test_options_of_the_client_that_do_not_fit_short_transactions_do_no_harm(
    settings: Settings, make_settings: MakeSettings, broker: EmbeddedBroker
) -> None:
    own = ["message.timeout.ms=60000", "socket.timeout.ms=60000", "linger.ms=900000", "message.max.bytes=1000"]
    slow = make_settings(f"application_id={settings.application_id}", *(f"kafka.{each}" for each in own))
    writer = LaneWriter(slow, librdkafka_options(slow.kafka), 0)
    writer.write(claim(None, 5, 1), {0: [chunk(*range(2_000))]})
    assert_eventually(lambda: near(broker, settings) == {0: list(range(2_000))})
