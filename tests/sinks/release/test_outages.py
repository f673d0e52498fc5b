"""A broker dies, pauses and loses topics while a shard's transactions are open."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from conf.errors import BrokerUnreachable, ReadyLogLost, TopicMismatch, TopicMissing
from sinks.release import release_producer
from sinks.release.ring import PRODUCERS
from sinks.release.shard import ShardRelease
from sinks.release.waits import Waits
from sinks.release.wall_clock import now_ms
from sinks.topics import limits
from sinks.topics.limits import missing_topics
from streaming.local.broker import EmbeddedBroker
from tests.eventually import assert_eventually
from tests.messages import messages
from tests.quick_java import quick_broker
from tests.sinks.release.bench import ReleaseBench
from tests.sinks.release.conftest import MakeBench, StopAt
from tests.sinks.release.topic_records import create_topics, ids

_QUICK = {
    "auto.create.topics.enable": "true",
    # A broker that was killed comes back in two seconds instead of nine.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    # How often the broker looks for transactions that are too old: 10 s by default.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}
_OUTAGE = "Kafka does not answer"


@pytest.fixture(scope="module")
def frail(java: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker that a test may kill or pause. The test starts it again."""
    with quick_broker(tmp_path_factory.mktemp("frail"), properties=_QUICK, heap="512m") as running:
        yield running


_SMALL = ("release.transaction_messages=5", "release.transaction_timeout=3s")


@pytest.fixture
def bench(frail: EmbeddedBroker, make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> ReleaseBench:
    """An application of `frail` with transactions of five messages, which may be open for 3 s."""
    # Waiting in vain for a broker that is killed takes most of these tests' time.
    monkeypatch.setattr(limits, "_TIMEOUT_S", 2.0)
    own = make_bench(frail, *_SMALL)
    own.waits = Waits(abort=1.0)
    return own


def _due(bench: ReleaseBench, first: int, count: int = 10, partition: int = 0) -> pa.Table:
    topic = bench.settings.topics.output
    return messages(
        {"offset": first + n, "deliver_at_ms": 1, "output_topic": topic, "output_partition": partition}
        for n in range(count)
    )


def _released(bench: ReleaseBench) -> list[int]:
    return ids(bench.read(bench.settings.topics.output))


@pytest.mark.thorough
def test_a_release_waits_for_a_broker_that_dies_in_any_phase_and_loses_and_duplicates_nothing(
    frail: EmbeddedBroker, bench: ReleaseBench, stop_at: StopAt, caplog: pytest.LogCaptureFixture
) -> None:
    def killed_at(name: str, act: Callable[[], ShardRelease], passing: int = 1) -> ShardRelease:
        stopped = stop_at(name, passing)
        release = act()
        assert stopped.reached.wait(60), name
        frail.kill()
        stopped.released.set()
        return release

    def more(release: ShardRelease, first: int, count: int) -> ShardRelease:
        bench.stage(_due(bench, first, count))
        return release

    bench.stage(_due(bench, 0))
    release = killed_at("position-unread", bench.start)
    frail.start()
    bench.wait(release)
    # In the midst of many transactions.
    killed_at("transaction-filled", lambda: more(release, 10, 500), passing=50)
    # It stays away for longer than a transaction may last.
    assert_eventually(lambda: _OUTAGE in caplog.text, 60)
    frail.start()
    bench.wait(release)
    bench.stop(release)
    # And now for longer than the outage limit.
    bench.change(*_SMALL, "kafka.outage_limit=1s")
    impatient = killed_at("transaction-ended", lambda: more(bench.start(), 510, 10))
    assert impatient.ended.wait(60)
    assert isinstance(impatient.error, BrokerUnreachable)
    assert re.search(r"shard 0: no broker answered for 1 s .*kafka\.outage_limit", str(impatient.error))
    frail.start()
    bench.change(*_SMALL)
    assert bench.release() == 5
    assert _released(bench) == [*range(520)]


def test_a_commit_sent_to_a_paused_broker_takes_effect_once(
    frail: EmbeddedBroker, bench: ReleaseBench, stop_at: StopAt, caplog: pytest.LogCaptureFixture
) -> None:
    stopped = stop_at("transaction-filled")
    bench.stage(_due(bench, 0))
    release = bench.start()
    assert stopped.reached.wait(60)
    assert frail.pid is not None
    os.kill(frail.pid, signal.SIGSTOP)
    try:
        # The commit request waits in the broker's socket. The broker executes it when it continues.
        assert release.releasing
        stopped.released.set()
        assert_eventually(lambda: _OUTAGE in caplog.text, 60)
        assert_eventually(lambda: not release.releasing)
    finally:
        os.kill(frail.pid, signal.SIGCONT)
    bench.wait(release)
    assert_eventually(lambda: release.releasing)
    assert _released(bench) == [*range(10)]


def test_a_transaction_that_the_broker_aborted_for_its_age_is_released_by_the_next_process(
    frail: EmbeddedBroker, bench: ReleaseBench, stop_at: StopAt, caplog: pytest.LogCaptureFixture
) -> None:
    reader = Consumer({**bench.options, "group.id": "test", "isolation.level": "read_committed"})
    stopped = stop_at("transaction-filled")
    bench.stage(_due(bench, 0))
    release = bench.start()
    assert stopped.reached.wait(60)
    partition = TopicPartition(bench.settings.topics.output, 0)
    # For a reader of committed records, the topic ends before an open transaction.
    assert_eventually(lambda: reader.get_watermark_offsets(partition, 10)[1] > 0, 60, "the end of the transaction")
    reader.close()
    stopped.released.set()
    # To the client this looks as if another process had taken the shard.
    assert release.ended.wait(60)
    assert release.error is None
    assert re.search(r"a transaction was open for \d+\.\d s, but Kafka aborts transactions after 3 s", caplog.text)
    assert "another release process" not in caplog.text
    assert _released(bench) == []
    assert bench.release() == 10
    assert _released(bench) == [*range(10)]


def test_a_position_that_the_brokers_have_lost_is_not_taken_for_that_of_another_process(
    frail: EmbeddedBroker, bench: ReleaseBench, stop_at: StopAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.change(*_SMALL, "kafka.outage_limit=1s")
    release = bench.start()
    bench.stage(_due(bench, 0, 5))
    bench.wait(release)
    # Each commit may have been repeated, so that the ring is replaced after a few.
    monkeypatch.setattr(release_producer, "sent_once", lambda begun_s, options: False)
    stopped = stop_at("position-unread")
    bench.stage(_due(bench, 5, 5 * PRODUCERS))
    assert stopped.reached.wait(60)
    topic = bench.settings.position_topic
    client = AdminClient(dict(bench.options))
    client.delete_topics([topic])[topic].result()
    assert_eventually(lambda: missing_topics(bench.options, [topic]) == [topic])
    create_topics(frail, NewTopic(topic, 1, 1))
    stopped.released.set()
    assert release.ended.wait(60)
    assert isinstance(release.error, ReadyLogLost)
    assert "Messages released since come a second time" in str(release.error)
    assert f"{topic}/0 has lost the committed position" in str(release.error)


@pytest.mark.parametrize("creates", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_a_deleted_output_topic_is_named_and_its_messages_are_released_once_it_exists_again(
    broker: EmbeddedBroker,
    frail: EmbeddedBroker,
    make_bench: MakeBench,
    creates: bool,
) -> None:
    used = frail if creates else broker
    bench = make_bench(used, "release.transaction_messages=5")
    bench.waits = Waits(slow=1.0)
    topic = bench.settings.topics.output
    bench.stage(_due(bench, 0))
    release = bench.start()
    bench.wait(release)
    client = AdminClient(dict(bench.options))
    client.delete_topics([topic])[topic].result()
    assert_eventually(lambda: missing_topics(bench.options, [topic]) == [topic])
    # The broker says so a moment before it stops to take records.
    assert_eventually(lambda: not (used.directory / "data" / f"{topic}-0").exists())
    bench.stage(_due(bench, 10))
    # A broker with auto-creation makes the topic again, with one partition, unless the client still knows the old one.
    assert_eventually(lambda: release.ended.is_set() or bench.is_done(release), 60)
    if release.error is not None or not creates:
        assert isinstance(release.error, TopicMissing)
        assert f"{topic}, to which the job writes, is gone" in str(release.error)
        create_topics(used, NewTopic(topic, 1, 1))
        assert bench.release() == 10
    bench.stop(release)
    with pytest.raises(TopicMismatch, match=f"partition 1 of {topic}, but .* with fewer"):
        bench.release(_due(bench, 20, partition=1))
    client.create_partitions([NewPartitions(topic, 2)])[topic].result()
    assert bench.release() == 10
    # The first messages were deleted with the topic.
    assert sorted(_released(bench)) == [*range(10, 30)]


# It looks for topics sooner than after several seconds, and at closed ones for each transaction.
_HASTY = Waits(slow=1.0, confirm=0.5, look_again=0.0)


@pytest.mark.parametrize("restarted", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_messages_to_a_deleted_topic_that_a_publisher_named_become_dead_letters_until_it_is_there_again(
    broker: EmbeddedBroker, make_bench: MakeBench, caplog: pytest.LogCaptureFixture, restarted: bool
) -> None:
    bench = make_bench(broker, "release.transaction_messages=5")
    bench.waits = _HASTY
    output, side = bench.settings.topics.output, f"{bench.settings.application_id}-side"
    client = AdminClient(dict(bench.options))

    def due(first: int) -> pa.Table:
        """Ten messages: in turn to the output topic, and to one of two partitions of the other."""
        return messages(
            {"offset": first + n, "deliver_at_ms": 1, "output_topic": [output, side][n % 2],
             "output_partition": int(n % 4 == 3)} for n in range(10)
        )  # fmt: skip

    create_topics(broker, NewTopic(side, 2, 1))
    release = bench.start()
    bench.stage(due(0))
    bench.wait(release)
    assert sorted(ids(bench.read(side))) == [1, 3, 5, 7, 9]
    client.delete_topics([side])[side].result()
    assert_eventually(lambda: missing_topics(bench.options, [side]) == [side])
    assert_eventually(lambda: not (broker.directory / "data" / f"{side}-0").exists())
    if restarted:
        bench.stop(release)
        release = bench.start()
    for first in (10, 20):
        bench.stage(due(first))
        bench.wait(release)
    assert ids(bench.read(output)) == [*range(0, 30, 2)]
    letters = bench.read(bench.dead_letter)
    assert sorted(ids(letters)) == [*range(11, 30, 2)]
    assert {dict(letter.headers() or [])["delayline-error"] for letter in letters} == {b"topic-closed"}
    assert caplog.text.count(f"output topic {side} was deleted") == 1

    # It comes back with one partition, and then with both.
    create_topics(broker, NewTopic(side, 1, 1))
    bench.stage(due(30))
    bench.wait(release)
    assert ids(bench.read(side)) == [31, 35, 39]
    assert {33, 37} <= set(ids(bench.read(bench.dead_letter)))
    client.create_partitions([NewPartitions(side, 2)])[side].result()
    assert_eventually(lambda: len(client.list_topics(side, 10).topics[side].partitions) == 2)
    bench.stage(due(40))
    bench.wait(release)
    assert sorted(ids(bench.read(side))) == [31, 35, 39, 41, 43, 45, 47, 49]
    assert len(bench.read(bench.dead_letter)) == 12
    assert f"output topic {side} accepts records again" in caplog.text


def test_topics_that_are_gone_stop_the_others_once_and_not_each_for_itself(
    broker: EmbeddedBroker, make_bench: MakeBench
) -> None:
    bench = make_bench(broker)
    bench.waits = _HASTY
    sides = [f"{bench.settings.application_id}-{number}" for number in range(4)]
    later = now_ms() + 3_600_000
    # None of these topics was ever created. The first of them is noticed.
    dues = [1, later, later, later]
    rows = zip(dues, sides, strict=True)
    bench.stage(
        messages({"offset": n, "deliver_at_ms": due, "output_topic": side} for n, (due, side) in enumerate(rows))
    )
    release = bench.start()
    assert_eventually(lambda: ids(bench.read(bench.dead_letter)) == [0], 60)
    assert release._writer.topics.closed.now.keys() == set(sides)


@pytest.mark.parametrize(
    "option", ["message.timeout.ms", pytest.param("delivery.timeout.ms", marks=pytest.mark.thorough)]
)
def test_a_short_timeout_of_records_is_longer_than_the_client_waits_for_more_of_them(
    bench: ReleaseBench, option: str
) -> None:
    bench.change(f"kafka.{option}=1500")
    assert bench.release(_due(bench, 0)) == 10
