"""Shards that a rescale to fewer has left: partitions of the ready topic that the job does not have any more."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from conf.settings import Settings
from sinks.internal_topics.position import Log, LogPosition, Position, position_key
from sinks.topics.topics import ensure_shards
from streaming.local.broker import EmbeddedBroker
from streaming.operations.ready_log import repair_ready_log
from streaming.processes.drain import unreleased_shards
from tests.eventually import assert_eventually
from tests.streaming.processes.conftest import Released, Stage, delete_records, releasing


@pytest.mark.thorough
@pytest.mark.takes(12)
def test_shards_beyond_those_of_the_job_are_opened_only_for_what_lies_there(
    prepared: Settings, staged: Stage, released: Released
) -> None:
    ensure_shards(prepared, 4)
    with releasing(prepared) as process:
        staged(1)
        assert_eventually(lambda: released() == [1], 60)
        assert process.shards.keys() == process.assigned == {0, 1}
        # As if this process had older settings than the job.
        staged(2, shard=3)
        assert_eventually(lambda: released() == [1, 2], 60)
        assert process.shards.keys() == process.assigned == {0, 1, 3}
        assert_eventually(lambda: unreleased_shards(prepared) == [], 60)
    with releasing(prepared) as process:
        staged(3)
        assert_eventually(lambda: released() == [1, 2, 3], 60)
        assert process.shards.keys() == process.assigned == {0, 1}


@pytest.mark.thorough
@pytest.mark.takes(12)
def test_a_lost_log_of_a_shard_beyond_those_of_the_job_is_repaired(
    prepared: Settings, staged: Stage, released: Released
) -> None:
    ensure_shards(prepared, 3)
    staged(1, shard=2)
    staged(2)
    delete_records(prepared, prepared.ready_topic, 2)
    assert unreleased_shards(prepared) == [0, 2]
    # Nothing tells a shard that was never released from one that has lost its position.
    assert [(each.shard, each.lost, each.left) for each in repair_ready_log(prepared)] == [(2, None, 0)]
    assert unreleased_shards(prepared) == [0]
    assert [*repair_ready_log(prepared)] == []
    with releasing(prepared) as process:
        assert_eventually(lambda: released() == [2], 60)
        assert process.assigned == {0, 1}


def test_a_shard_whose_position_is_that_of_another_log_is_released_if_its_log_is_empty(prepared: Settings) -> None:
    ensure_shards(prepared, 4)
    producer = Producer({"bootstrap.servers": prepared.kafka.bootstrap_servers})
    before = LogPosition("the-log-before", taken_in=9, lowest=9)
    lost = Position(before, before, released=9)
    producer.produce(prepared.position_topic, lost.to_bytes(), position_key(3), 3)
    producer.flush(10)
    assert unreleased_shards(prepared) == []


@pytest.mark.takes(12)
def test_a_shard_beyond_those_of_the_position_topic_ends_no_process(
    prepared: Settings, staged: Stage, released: Released, broker: EmbeddedBroker
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_partitions([NewPartitions(prepared.ready_topic, 4)])[prepared.ready_topic].result()
    topic = prepared.ready_topic
    assert_eventually(lambda: len(admin.list_topics(topic, 10).topics[topic].partitions) == 4, 60)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(prepared.ready_topic, b"left by a rescale to fewer shards", partition=3)
    producer.flush(10)
    assert unreleased_shards(prepared) == []
    with releasing(prepared) as process:
        assert_eventually(lambda: process._surplus.keys() == {2, 3} and process._surplus[3].get(Log.READY, 0) > 0, 60)
        staged(1)
        assert_eventually(lambda: released() == [1], 60)
        assert process.assigned == {0, 1}
