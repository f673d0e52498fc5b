"""A log that lost records, or has some that cannot be read: the release goes on after `repair --ready-log`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from confluent_kafka import Producer

from conf.errors import BrokerUnreachable
from conf.kafka.headers import RecordHeaders
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.internal_topics.position import LogPosition, Position, position_key
from sinks.internal_topics.position_reader import read_position
from sinks.ready_log.chunk import chunk_record
from sinks.release.log_reader import LogReader
from state.order import OrderKey
from streaming.operations import ready_log
from streaming.operations.ready_log import RepairedShard, repair_ready_log
from streaming.processes.drain import left_to_release, unreleased_shards
from tests.eventually import assert_eventually
from tests.messages import messages
from tests.streaming.processes.conftest import Released, Stage, delete_records, releasing


@pytest.mark.takes(12)
def test_a_near_log_that_lost_what_was_read_is_repaired_and_the_ready_log_goes_on(
    prepared: Settings, staged: Stage, released: Released
) -> None:
    def forward(*dues: int) -> None:
        rows = (
            {"offset": n, "deliver_at_ms": due, "output_topic": prepared.topics.output} for n, due in enumerate(dues)
        )
        value, headers = chunk_record(messages(rows))
        producer.produce(prepared.near_topic, value, None, 0, headers=headers)
        assert producer.flush(30) == 0

    producer, later_ms = Producer({"bootstrap.servers": prepared.kafka.bootstrap_servers}), 2**43
    with releasing(prepared):
        forward(1, later_ms, later_ms)
        assert_eventually(lambda: released() == [1], 60)
        # Those of the near log count once they are taken in.
        assert_eventually(lambda: left_to_release(prepared).get(0) == 2, 60)
    staged(2)
    staged(3)
    forward(4)
    delete_records(prepared, prepared.near_topic, 0, 1)
    (repaired,) = repair_ready_log(prepared)
    assert repaired.reason.endswith(f"{prepared.near_topic}/0 begins at offset 1, but is released only up to 0")
    assert (repaired.shard, repaired.lost, repaired.left) == (0, 2, 3)
    assert left_to_release(prepared)[0] == 2
    with releasing(prepared):
        assert_eventually(lambda: sorted(released()) == [1, 2, 3, 4], 60)
        assert_eventually(lambda: unreleased_shards(prepared) == [], 60)
    assert left_to_release(prepared)[0] == 0


@pytest.mark.takes(12)
def test_records_that_cannot_be_read_are_skipped_by_a_repair_and_all_others_are_released(
    prepared: Settings, staged: Stage, released: Released, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(messages: Any, batch: int) -> tuple[bytes, RecordHeaders]:
        return b"{}", chunk_record(messages, batch)[1]

    with releasing(prepared):
        staged(1)
        assert_eventually(lambda: released() == [1], 60)
    staged(2)
    with monkeypatch.context() as patch:
        patch.setattr("sinks.ready_log.writer.chunk_record", damaged)
        staged(3, 4)
        staged(3, 4)
    staged(5)
    producer = Producer({"bootstrap.servers": prepared.kafka.bootstrap_servers})
    producer.produce(prepared.near_topic, b"", None, 0, headers=[("delayline-chunk", b"{}")])
    value, headers = chunk_record(messages([{"deliver_at_ms": 6, "output_topic": prepared.topics.output}]))
    producer.produce(prepared.near_topic, value, None, 0, headers=headers)
    assert producer.flush(30) == 0

    (repaired,) = repair_ready_log(prepared)
    for place in (f"{prepared.ready_topic}/0 at offset 4", f"{prepared.near_topic}/0 at offset 0"):
        assert f"{place} is not a chunk of this Delayline version" in repaired.reason
    assert (repaired.shard, repaired.lost, repaired.left, repaired.had_position) == (0, 4, 3, True)
    # A skipped record is lost once.
    assert [*repair_ready_log(prepared)] == []
    assert left_to_release(prepared)[0] == 2
    with releasing(prepared):
        assert_eventually(lambda: sorted(released()) == [1, 2, 5, 6], 60)
        assert_eventually(lambda: unreleased_shards(prepared) == [], 60)
    assert left_to_release(prepared)[0] == 0
    position = read_position(librdkafka_options(prepared.kafka), prepared.position_topic, 0)
    assert position is not None
    assert position.skipped == ()


@pytest.mark.thorough
@pytest.mark.takes(8)
def test_a_repair_after_the_loss_of_the_position_does_not_know_what_is_lost(
    prepared: Settings, staged: Stage, released: Released
) -> None:
    staged(1)
    staged(2)
    # As a release process does that has released the first one.
    delete_records(prepared, prepared.ready_topic, 0, 1)
    (repaired,) = repair_ready_log(prepared)
    assert repaired.reason.endswith(f"{prepared.ready_topic}/0 begins at offset 1, and the shard has no position")
    assert (repaired.lost, repaired.left, repaired.had_position) == (None, 1, False)
    assert left_to_release(prepared)[0] == 1
    with releasing(prepared):
        assert_eventually(lambda: released() == [2], 60)
        assert_eventually(lambda: unreleased_shards(prepared) == [], 60)


@pytest.mark.thorough
@pytest.mark.takes(8)
def test_a_repair_that_fails_half_way_has_told_the_loss_of_each_shard_that_it_repaired(
    prepared: Settings, staged: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FirstShardOnly(LogReader):
        def __init__(self, settings: Settings, options: Mapping[str, str], shard: int, at: Position | None) -> None:
            if shard:
                raise BrokerUnreachable("no broker answers")
            super().__init__(settings, options, shard, at)

    for shard in (0, 1):
        staged(1, shard=shard)
        delete_records(prepared, prepared.ready_topic, shard)
    told: list[RepairedShard] = []
    with monkeypatch.context() as patch:
        patch.setattr(ready_log, "LogReader", FirstShardOnly)
        with pytest.raises(BrokerUnreachable):
            told.extend(repair_ready_log(prepared))
    assert [each.shard for each in [*told, *repair_ready_log(prepared)]] == [0, 1]


@pytest.mark.takes(8)
def test_a_repair_names_a_topic_that_was_created_again_and_filled_of_which_all_is_released(
    prepared: Settings, staged: Stage, released: Released
) -> None:
    staged(1)
    staged(2)
    before = LogPosition("the-topic-before", taken_in=3, lowest=2)
    producer = Producer({"bootstrap.servers": prepared.kafka.bootstrap_servers})
    position = Position(before, before, OrderKey(5, "in", 0, 0), released=1)
    producer.produce(prepared.position_topic, position.to_bytes(), position_key(0), 0)
    assert producer.flush(30) == 0
    (repaired,) = repair_ready_log(prepared)
    # The near topic is empty.
    assert (repaired.left, repaired.refilled) == (2, (prepared.ready_topic,))
    with releasing(prepared):
        assert_eventually(lambda: released() == [1, 2], 60)
