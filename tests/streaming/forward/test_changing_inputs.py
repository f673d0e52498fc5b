"""Forwarders with a real broker while input topics change: transactions, partitions, deletions and backlogs."""

from __future__ import annotations

import time

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from sinks.topics.topics import ensure_topics
from state.lanes import lane_of
from streaming.forward.lane import MOST_BEHIND
from tests.eventually import assert_eventually
from tests.streaming.forward.bench import LANES, ForwardBench, ids


def test_open_transactions_of_publishers_are_waited_for_and_aborted_ones_are_passed_over(bench: ForwardBench) -> None:
    bench.open_lanes()
    producer = Producer({"bootstrap.servers": bench.broker.bootstrap, "transactional.id": bench.input})
    producer.init_transactions()
    with bench.forwarder():
        for number in range(4):
            producer.begin_transaction()
            bench.publish(3, producer=producer)
            if number % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
        # Each has three records and a mark of its end.
        assert_eventually(lambda: bench.decided(p0=16))
        assert bench.forwarded() == ids(bench.input, {0: [0, 1, 2, 8, 9, 10]})
        producer.begin_transaction()
        bench.publish(2, producer=producer)
        bench.publish(1)
        bench.publish(1, 1)
        assert_eventually(lambda: bench.decided(p1=1))
        assert not bench.decided(p0=17)
        producer.commit_transaction()
        assert_eventually(lambda: bench.decided(p0=20))
    assert bench.forwarded() == ids(bench.input, {0: [0, 1, 2, 8, 9, 10, 16, 17, 18], 1: [0]})


def test_partitions_that_an_input_topic_gains_are_read_from_their_beginning(bench: ForwardBench) -> None:
    bench.open_lanes()
    client = AdminClient({"bootstrap.servers": bench.broker.bootstrap})
    with bench.forwarder():
        bench.publish(2)
        assert_eventually(lambda: bench.decided(p0=2))
        client.create_partitions([NewPartitions(bench.input, 5)])[bench.input].result()
        for number in range(5):
            bench.publish(3, number)
        assert_eventually(lambda: bench.decided(p0=5, p1=3, p2=3, p3=3, p4=3), 20)
    assert bench.forwarded() == ids(bench.input, {0: range(5)} | {number: range(3) for number in range(1, 5)})


def test_an_input_topic_that_was_created_again_is_not_read_until_the_terms_know_it(bench: ForwardBench) -> None:
    bench.open_lanes()
    client = AdminClient({"bootstrap.servers": bench.broker.bootstrap})
    with bench.forwarder() as forwarder:
        bench.publish(5)
        assert_eventually(lambda: bench.decided(p0=5))
        client.delete_topics([bench.input])[bench.input].result()
        assert_eventually(lambda: not any(lane.is_reading for lane in forwarder.lanes.values()), 20)
    assert_eventually(lambda: bench.input not in client.list_topics(timeout=10).topics)
    ensure_topics(bench.settings, 2)
    bench.publish(3)
    with bench.forwarder() as forwarder:
        assert_eventually(lambda: len(forwarder.lanes) == LANES)
        time.sleep(2)
        assert not bench.decided(p0=1)
        bench.write_terms(bench.terms())
        assert_eventually(lambda: bench.decided(p0=3), 20)
    assert len(bench.messages()) == 8


def test_a_backlog_is_left_to_the_batches_and_what_is_fresh_is_taken(bench: ForwardBench) -> None:
    bench.open_lanes()
    bench.publish(MOST_BEHIND + 5_000)
    with bench.forwarder():
        assert_eventually(lambda: bench.decided(p0=MOST_BEHIND + 5_000), 20)
        bench.publish(5)
        assert_eventually(lambda: bench.decided(p0=MOST_BEHIND + 5_005), 20)
        bench.publish(5, 1)
        assert_eventually(lambda: bench.decided(p1=5))
    fresh = range(MOST_BEHIND + 5_000, MOST_BEHIND + 5_005)
    assert bench.forwarded() == ids(bench.input, {0: fresh, 1: range(5)})
    skipping, *_ = (claim for claim in bench.claims()[lane_of(bench.input, 0, LANES)] if claim.decided)
    assert skipping.is_urgent


def test_records_that_were_deleted_unread_leave_a_gap(bench: ForwardBench) -> None:
    bench.open_lanes()
    bench.publish(9)
    client = AdminClient({"bootstrap.servers": bench.broker.bootstrap})
    (deleted,) = client.delete_records([TopicPartition(bench.input, 0, 6)]).values()
    deleted.result()
    with bench.forwarder():
        assert_eventually(lambda: bench.decided(p0=9))
    assert bench.forwarded() == ids(bench.input, {0: range(6, 9)})
