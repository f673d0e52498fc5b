"""A shard releases the messages of its ready log and of its near log together, with a real broker."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from conf.errors import BrokerUnreachable
from sinks.internal_topics.position import Log, Place
from sinks.ready_log.chunk import chunk_record
from sinks.release import log_reader
from sinks.release.incoming import Incoming
from sinks.release.log_consumers import consumer_options
from sinks.release.log_reader import LogReader
from sinks.release.near_end import NearEnd
from sinks.release.wall_clock import now_ms
from state.answers import Undecided
from state.kinds import REQUEST
from state.order import in_order
from state.recalled import Recall, partition_of_shard, read_recall
from tests.eventually import assert_eventually
from tests.messages import messages
from tests.sinks.release.bench import ReleaseBench
from tests.sinks.release.topic_records import create_topics, ids


def _chunk(bench: ReleaseBench, dues: dict[int, int]) -> pa.Table:
    """Return messages by their input offsets, with their due times (epoch ms)."""
    output = bench.settings.topics.output
    rows = ({"deliver_at_ms": due, "offset": number, "output_topic": output} for number, due in dues.items())
    return in_order(messages(rows))


def test_messages_of_both_logs_come_in_order_of_their_due_times_and_once_over_restarts(bench: ReleaseBench) -> None:
    chance, begin_ms = np.random.default_rng(3), now_ms() + 6_000
    dues = dict(enumerate((begin_ms + chance.permutation(4_000)[:1_000]).tolist()))
    numbers, releases = [*dues], 0
    # Each chunk has messages of the whole time, and arrives before any of them is due.
    for at in range(0, 1_000, 25):
        bench.stage(_chunk(bench, {n: dues[n] for n in numbers[at : at + 25]}), log=[*Log][at // 25 % 2])
    release = bench.start()
    for most in (200, 500, 800):
        assert_eventually(lambda: release.ended.is_set() or bench.released >= most, 60)  # noqa: B023
        bench.stop(release)
        assert release.error is None
        releases += 1
        release = bench.start()
    bench.wait(release)
    assert releases == 3
    # Messages that became due while no process had the shard come in order too.
    assert ids(bench.read(bench.settings.topics.output)) == sorted(numbers, key=lambda n: dues[n])
    position = bench.position
    assert position is not None
    assert (position.released, position.forwarded) == (1_000, 500)


@pytest.fixture
def forwarder(bench: ReleaseBench) -> Iterator[Producer]:
    """A transactional producer."""
    producer = Producer({**bench.options, "transactional.id": f"{bench.settings.application_id}:forward:0"})
    producer.init_transactions(30)
    yield producer
    producer.purge()


def test_a_request_waits_for_open_transactions_of_the_near_log_and_messages_do_not(
    bench: ReleaseBench, forwarder: Producer
) -> None:
    settings, later = bench.settings, now_ms() + 3_600_000
    create_topics(bench.broker, NewTopic(settings.results_topic, 1, 1))
    release = bench.start()
    bench.stage(_chunk(bench, {1: 1}))
    assert_eventually(lambda: bench.is_done(release), 60)
    # One forwarder's open transaction hides a message that another one has committed. The request is for that message.
    forwarder.begin_transaction()
    value, headers = chunk_record(_chunk(bench, {2: 2}))
    forwarder.produce(settings.near_topic, value, None, 0, headers=headers)
    assert forwarder.flush(30) == 0
    bench.stage(_chunk(bench, {3: later, 4: later}), log=Log.NEAR)
    request = {"kind": REQUEST, "output_topic": settings.results_topic, "offset": 9, "key": b"delayline-in/0/3"}
    undecided = Undecided(later + 1, now_ms(), shards=1, left=0, epoch=7).to_bytes()
    soon = now_ms() + 1_500
    bench.stage(_chunk(bench, {5: soon}), messages([{**request, "value": undecided}]))
    # Messages that were taken in before the request go out meanwhile.
    assert_eventually(lambda: ids(bench.read(settings.topics.output)) == [1, 5], 60)
    assert bench.read(settings.results_topic) == []
    assert not release.drained
    forwarder.commit_transaction(30)
    assert_eventually(lambda: bench.read(settings.results_topic), 60)
    (answer,) = bench.read(settings.results_topic)
    assert json.loads(answer.value() or b"")["result"] == "cancelled"
    (recalled,) = bench.read(settings.recalled_topic)
    assert recalled.partition() == partition_of_shard(0)
    assert read_recall(recalled.key(), recalled.value() or b"") == (("delayline-in", 0, 3), Recall(later + 1, 7))
    assert_eventually(lambda: ids(bench.read(settings.topics.output)) == [1, 5, 2], 60)
    position = bench.position
    assert position is not None
    # The chunk of the cancelled message has another message, and the request is read again after a crash.
    assert (position.near.lowest, position.ready.lowest) == (1, 2)


def test_what_has_come_while_the_rest_was_taken_in_is_read_before_the_reader_is_at_the_ends(
    bench: ReleaseBench,
) -> None:
    bench.stage(_chunk(bench, {1: 1}), log=Log.NEAR)
    with LogReader(bench.settings, bench.options, 0, None) as reader:
        # The client has fetched all and knows the end, and nobody has taken it.
        time.sleep(2)
        bench.stage(_chunk(bench, {2: 2}), log=Log.NEAR)
        read: list[Place] = []
        while not reader.at_end:
            read += [place for place, _, _ in reader.read(0.05)]
        assert len(read) == 2
        bench.stage(_chunk(bench, {3: 3}), log=Log.NEAR)
        assert_eventually(lambda: list(reader.read(0.05)), 30)


def test_after_a_stall_the_reader_is_at_the_ends_once_it_has_read_what_has_come_since(bench: ReleaseBench) -> None:
    bench.stage(_chunk(bench, {1: 1}), log=Log.NEAR)
    with LogReader(bench.settings, bench.options, 0, None) as reader:
        assert len([*reader.read_to_end()]) == 1
        bench.stage(*(_chunk(bench, {number: number}) for number in range(2, 302)), log=Log.NEAR)
        bench.stage(_chunk(bench, {302: 302}))
        time.sleep(0.5)
        read = [place for place, _, _ in reader.read(0.005)]
        assert not reader.at_end
        while not reader.at_end:
            read += [place for place, _, _ in reader.read(0.005)]
        assert len(read) == 301
        # Both clients have fetched them.
        assert_eventually(lambda: not list(reader.read(1.0)), 30)
        bench.stage(_chunk(bench, {303: 303}), log=Log.NEAR)
        assert_eventually(lambda: list(reader.read(0.05)), 30)


@pytest.mark.thorough
def test_a_plan_does_not_go_beyond_what_was_read_before_a_pause(
    bench: ReleaseBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, staged = NearEnd.look, threading.Event()
    soon = now_ms() + 8_000
    bench.stage(_chunk(bench, {1: soon + 700}))

    def look_late(own: NearEnd, incoming: Incoming) -> None:
        # As if the process were paused right after it has read.
        if not staged.is_set() and now_ms() > soon:
            bench.stage(_chunk(bench, {2: soon + 600}), log=Log.NEAR)
            staged.set()
            time.sleep(1)
        look(own, incoming)

    monkeypatch.setattr(NearEnd, "look", look_late)
    release = bench.start()
    assert_eventually(lambda: staged.is_set() and bench.is_done(release), 60)
    assert ids(bench.read(bench.settings.topics.output)) == [2, 1]


def test_no_follower_is_asked_which_has_new_records_later(bench: ReleaseBench) -> None:
    assert consumer_options(bench.settings, {**bench.options, "client.rack": "a"})["client.rack"] == ""


def test_a_log_that_cannot_be_read_is_given_up_after_a_time(
    bench: ReleaseBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.stage(_chunk(bench, {1: 1}), log=Log.READY)
    bench.stage(_chunk(bench, {2: 2}), log=Log.NEAR)
    with LogReader(bench.settings, bench.options, 0, None) as reader:
        assert len([*reader.read_to_end()]) == 2
    monkeypatch.setattr(log_reader, "TIMEOUT_S", 3.0)
    with LogReader(bench.settings, bench.options, 0, None) as reader:
        # As with a partition that has no leader: the client waits for one, and says nothing.
        reader._consumers._there.unassign()
        with pytest.raises(BrokerUnreachable, match=r"could not read on from .*within 3 s"):
            list(reader.read_to_end())
