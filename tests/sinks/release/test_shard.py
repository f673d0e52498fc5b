"""A shard's release against a real broker: its position, its order and times, its memory, and who may release."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from conf.errors import CheckpointMismatch, DelaylineError, ReadyLogLost
from conf.load import load_settings
from sinks.internal_topics.position import Log, Position, position_key, topics_of
from sinks.ready_log.chunk import RecordHeaders, chunk_record
from sinks.release import shard as shard_module
from sinks.release import shard_rates
from sinks.release.context import ReleaseContext
from sinks.release.encoded_chunks import PayloadMissing
from sinks.release.log_end import unreleased
from sinks.release.pending import Pending
from sinks.release.planned import Planned
from sinks.release.rate_limiter import RateLimiter
from sinks.release.ring import Ring
from sinks.release.shard import ShardRelease
from sinks.release.transaction import TransactionWriter
from sinks.release.wall_clock import now_ms
from state.answers import Undecided
from state.kinds import REQUEST
from state.order import OrderKey, in_order
from state.shards import shard_of
from streaming.local.broker import EmbeddedBroker
from tests.eventually import assert_eventually
from tests.messages import messages
from tests.sinks.release.bench import ReleaseBench
from tests.sinks.release.conftest import HostClock, Stop, StopAt
from tests.sinks.release.topic_records import create_topics, ids

_HOUR_MS = 3_600_000


def _due(bench: ReleaseBench, dues_ms: list[int], first: int = 0, **columns: Any) -> pa.Table:
    """Return messages with numbered input offsets that are due at `dues_ms`, in delivery order."""
    own = {"output_topic": bench.settings.topics.output, **columns}
    return in_order(messages({**own, "offset": first + n, "deliver_at_ms": due} for n, due in enumerate(dues_ms)))


def _released(bench: ReleaseBench) -> list[int]:
    return ids(bench.read(bench.settings.topics.output))


@contextmanager
def _receiving(bench: ReleaseBench) -> Iterator[Callable[[], list[tuple[int, int]]]]:
    """Subscribes to committed records, and gives a function that returns (due time, time of receipt) of each so far."""
    topic = bench.settings.topics.output
    consumer = Consumer({**bench.options, "group.id": "test", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    seen: list[tuple[int, int]] = []

    def receive() -> list[tuple[int, int]]:
        for message in consumer.consume(1_000, 0.05):
            assert message.error() is None
            seen.append((message.timestamp()[1], time.time_ns() // 1_000_000))
        return seen

    yield receive
    consumer.close()


def test_a_request_that_comes_too_late_is_answered_with_the_messages_place(
    bench: ReleaseBench, broker: EmbeddedBroker
) -> None:
    settings = bench.settings
    create_topics(broker, NewTopic(settings.results_topic, 1, 1))
    release = bench.start()
    for first in (0, 10):
        bench.hand_over(_due(bench, [1] * 5, first))
        assert_eventually(lambda: bench.is_done(release), 60)
    undecided = Undecided(now_ms(), now_ms(), shards=1, left=0).to_bytes()
    key = b"delayline-in/0/12"
    request = {"kind": REQUEST, "output_topic": settings.results_topic, "offset": 99, "key": key, "value": undecided}
    bench.hand_over(messages([request]))
    bench.wait(release)
    (answer,) = bench.read(settings.results_topic)
    content = json.loads(answer.value() or b"")
    records = bench.read(settings.topics.output)
    first, last = content["output"].pop("offsets")
    assert content["result"] == "too-late"
    assert content["output"] == {"topic": settings.topics.output, "partition": 0}
    assert ids(each for each in records if first <= (each.offset() or 0) <= last) == [10, 11, 12, 13, 14]


def test_the_position_is_written_with_the_messages_and_a_restart_goes_on_from_it(bench: ReleaseBench) -> None:
    assert bench.release(_due(bench, [1, 3, 5])) == 3
    position = bench.position
    assert position is not None
    assert (position.ready.taken_in, position.ready.lowest, position.released, position.member) == (1, 1, 3, "test")
    assert position.below == OrderKey(5, "delayline-in", 0, 3)
    assert bench.release() == 0
    later = now_ms() + _HOUR_MS
    waiting, due = _due(bench, [7, later], first=10), _due(bench, [9], first=20)
    bench.hand_over(waiting, due)
    release = bench.start()
    assert_eventually(lambda: bench.released == 5, 60)
    assert not release.drained
    bench.stop(release)
    position = bench.position
    assert position is not None
    # Reading begins at the chunk that still has a message, and finds only that one.
    assert (position.ready.taken_in, position.ready.lowest) == (3, 1)
    bench.hand_over(_due(bench, [11], first=30))
    release = bench.start()
    assert_eventually(lambda: bench.released == 6, 60)
    bench.stop(release)
    assert _released(bench) == [0, 1, 2, 10, 20, 30]


def test_messages_come_in_order_and_never_before_they_are_due(bench: ReleaseBench) -> None:
    rng = np.random.default_rng(7)
    soon = now_ms() + 4_000
    chunks = [sorted(int(due) for due in soon + rng.integers(0, 1_000, 40)) for _ in range(8)]
    for n, dues in enumerate(chunks[:4]):
        bench.hand_over(_due(bench, dues, first=100 * n))
    release = bench.start()
    # A chunk that comes while others wait may have earlier messages.
    for n, dues in enumerate(chunks[4:], 4):
        bench.hand_over(_due(bench, dues, first=100 * n))
    with _receiving(bench) as receive:
        assert_eventually(lambda: len(receive()) >= 320, 60)
        seen = receive()
    assert [due for due, _ in seen] == sorted(due for dues in chunks for due in dues)
    assert all(received_ms >= due_ms for due_ms, received_ms in seen)
    bench.wait(release)


def test_a_clock_that_was_set_far_back_aborts_what_is_written_ahead_and_it_is_released_once_when_it_is_due_again(
    bench: ReleaseBench, clock: HostClock, stop_at: StopAt, caplog: pytest.LogCaptureFixture
) -> None:
    bench.change("release.lead=10s")
    clock.ahead_ms = 30 * 60_000
    due_ms = clock.now_ms() + 5_000
    stopped = stop_at("transaction-filled")
    bench.hand_over(_due(bench, [due_ms, due_ms + 1]))
    release = bench.start()
    assert stopped.reached.wait(60)
    clock.ahead_ms = 0
    stopped.released.set()
    assert_eventually(lambda: "clock was set back" in caplog.text, 60)
    assert _released(bench) == []
    # Messages that come meanwhile and are due now are released first.
    bench.hand_over(_due(bench, [clock.now_ms()], first=5))
    assert_eventually(lambda: bench.released == 1, 60)
    assert _released(bench) == [5]
    clock.ahead_ms = 30 * 60_000
    bench.wait(release)
    assert _released(bench) == [5, 0, 1]


@pytest.mark.parametrize("point", ["transaction-filled", "transaction-ended"])
def test_a_shard_that_waits_for_messages_goes_on_and_one_whose_thread_hangs_does_not(
    bench: ReleaseBench, stop_at: StopAt, point: str
) -> None:
    release = bench.start()
    assert_eventually(lambda: release.drained, 60)
    until_s = time.monotonic() + 1.5
    while time.monotonic() < until_s:
        assert release.still_s < 1
        time.sleep(0.05)
    stopped = stop_at(point)
    bench.hand_over(_due(bench, [now_ms()]))
    assert stopped.reached.wait(60)
    assert_eventually(lambda: release.still_s > 1, 10)
    stopped.released.set()
    bench.wait(release)
    assert_eventually(lambda: release.still_s < 1, 10)


def test_after_a_clock_that_was_ahead_messages_come_in_order_when_they_are_due(
    bench: ReleaseBench, clock: HostClock, caplog: pytest.LogCaptureFixture
) -> None:
    clock.ahead_ms = 30 * 60_000
    ahead_ms = clock.now_ms()
    bench.hand_over(_due(bench, [ahead_ms, ahead_ms + 20 * 60_000]))
    release = bench.start()
    assert_eventually(lambda: bench.released == 1, 60)
    clock.ahead_ms = 0
    soon = clock.now_ms() + 3_000
    # Most are due before the released messages.
    bench.hand_over(_due(bench, [soon, soon + 20 * 60_000], first=10), _due(bench, [soon - 1, soon + 1], first=20))
    with _receiving(bench) as receive:
        assert_eventually(lambda: len(receive()) >= 4, 60)
        # Not together with what is due in twenty minutes, and once.
        assert [due_ms for due_ms, _ in receive()] == [ahead_ms, soon - 1, soon, soon + 1]
        assert all(received_ms + clock.ahead_ms >= due_ms for due_ms, received_ms in receive()[1:])
    assert caplog.text.count("clock was set back") == 1
    # The next process knows the messages released by the clock that was ahead, and those released since.
    bench.stop(release)
    position = bench.position
    assert position is not None
    assert position.ready.lowest == 0
    clock.ahead_ms = _HOUR_MS
    bench.wait(bench.start())
    assert sorted(_released(bench)) == [0, 1, 10, 11, 20, 21]


def test_a_clock_that_was_set_back_a_little_lets_a_transaction_wait(
    bench: ReleaseBench, clock: HostClock, stop_at: StopAt
) -> None:
    bench.change("release.lead=10s")
    clock.ahead_ms = 3_000
    due_ms = clock.now_ms() + 4_000
    stopped = stop_at("transaction-filled")
    bench.hand_over(_due(bench, [due_ms]))
    release = bench.start()
    assert stopped.reached.wait(60)
    clock.ahead_ms = 1_000
    stopped.released.set()
    with _receiving(bench) as receive:
        ((_, received_ms),) = assert_eventually(receive, 60)
    assert received_ms + clock.ahead_ms >= due_ms
    bench.wait(release)


def test_no_more_messages_are_released_in_a_second_than_the_limit(bench: ReleaseBench) -> None:
    bench.change("release.messages_per_second=100")
    begun_s = time.monotonic()
    assert bench.release(_due(bench, [1] * 250)) == 250
    # 100 at once, 100 a second later, and the rest after another second.
    assert time.monotonic() - begun_s >= 2
    assert _released(bench) == [*range(250)]


def test_a_limited_topic_gets_no_more_in_a_second_than_its_limit(bench: ReleaseBench) -> None:
    bench.change(f"rates.{bench.settings.topics.output}=100")
    begun_s = time.monotonic()
    assert bench.release(_due(bench, [1] * 250)) == 250
    assert time.monotonic() - begun_s >= 2
    assert _released(bench) == [*range(250)]


def test_the_limit_of_a_topic_holds_for_partitions_that_it_gets_later(
    bench: ReleaseBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_rates, "_RATES_S", 0.0)
    names = (f"{bench.settings.application_id}-{number}" for number in range(1_000))
    topic = next(name for name in names if [shard_of(name, partition, 2) for partition in (0, 1)] == [1, 0])
    create_topics(bench.broker, NewTopic(topic, 1, 1))
    bench.change(f"rates.{topic}=200", "bucket.shards=2", f"topics.allowed_outputs={topic}")
    release = bench.start()
    # None of the topic's partitions is of this shard.
    assert_eventually(lambda: release.releasing, 60)
    client = AdminClient({**bench.options})
    client.create_partitions([NewPartitions(topic, 2)])[topic].result()
    # The first transaction with a message for the new one tells.
    bench.hand_over(_due(bench, [1], output_topic=topic, output_partition=1))
    bench.wait(release)
    begun_s = time.monotonic()
    bench.hand_over(_due(bench, [1] * 250, first=1, output_topic=topic, output_partition=1))
    bench.wait(release)
    assert time.monotonic() - begun_s >= 2
    assert ids(bench.read(topic)) == [*range(251)]


class _Ring:
    """A ring with topics that refuse some messages, by their ids."""

    is_worn = False

    def __init__(self, replaced: dict[bytes, str]) -> None:
        self.replaced = replaced

    def check(self) -> None:
        pass

    def write(self, *_: object) -> dict[bytes, str]:
        return self.replaced


def test_what_became_a_dead_letter_while_it_was_written_costs_nothing_of_the_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spent = []
    monkeypatch.setattr(RateLimiter, "spend", lambda _, charges, __: spent.append(charges))
    settings = load_settings(None, ["release.messages_per_second=10"], environ={})
    writer = ShardRelease(ReleaseContext(settings, "test"), 0)._writer
    for replaced in ({}, {b"delayline-in/0/%d" % n: "expired" for n in range(3)}):
        writer.ring = cast(Ring, _Ring(replaced))
        table = messages({"offset": n} for n in range(3))
        writer.write(Planned(table, Position(), 100), dict)
    assert spent == [{None: 3}, {}]


@pytest.mark.parametrize("point", ["position-unread", "transaction-filled", "transaction-ended"])
def test_another_process_takes_the_shard_and_the_first_one_ends_without_an_error(
    bench: ReleaseBench, stop_at: StopAt, point: str
) -> None:
    bench.change("release.transaction_messages=5")
    stopped = stop_at(point)
    bench.hand_over(_due(bench, [1] * 20))
    first = bench.start()
    assert stopped.reached.wait(60)
    second = bench.start()
    bench.wait(second)
    stopped.released.set()
    if point == "position-unread":
        # A process that has nothing to write does not notice.
        assert_eventually(lambda: first.position is not None, 60)
    bench.hand_over(_due(bench, [2] * 20, first=20))
    bench.wait(second)
    assert first.ended.wait(60)
    assert first.error is None
    assert bench.settled() == 40
    assert _released(bench) == [*range(40)]


def test_a_process_that_loses_the_shard_while_it_fills_a_transaction_ends_without_an_error(
    bench: ReleaseBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = Stop()
    fill_whole = TransactionWriter._fill_whole

    def fill(*arguments: Any) -> None:
        is_first = not stop.reached.is_set()
        stop.passed()
        fill_whole(*arguments)
        # More, until the client has found out.
        while is_first:
            time.sleep(0.01)
            fill_whole(*arguments)

    monkeypatch.setattr(TransactionWriter, "_fill_whole", fill)
    bench.hand_over(_due(bench, [1] * 20))
    first = bench.start()
    assert stop.reached.wait(60)
    second = bench.start()
    bench.wait(second)
    stop.released.set()
    assert first.ended.wait(60)
    assert first.error is None
    assert _released(bench) == [*range(20)]


def test_processes_that_take_the_shard_from_each_other_in_the_midst_of_it_release_each_message_once(
    bench: ReleaseBench,
) -> None:
    bench.change("release.transaction_messages=5")
    bench.hand_over(_due(bench, [1] * 1_000))
    while (before := bench.released) < 1_000:
        release = bench.start()
        # If two open at the same time, both may end. In the end, one of them has the shard to itself.
        most = min(before + 200, 1_000) if len(bench.prepared) < 5 else 1_000
        _wait_for(release, bench, most)
    assert [release.error for release in bench.prepared] == [None] * len(bench.prepared)
    assert _released(bench) == [*range(1_000)]


@pytest.mark.parametrize("most_bytes", [None, 0])
def test_a_large_backlog_of_late_messages_is_released_once(bench: ReleaseBench, most_bytes: int | None) -> None:
    bench.change("release.transaction_messages=500")
    assert bench.release(_due(bench, [now_ms()])) == 1
    late = [_due(bench, sorted(n % 997 for n in range(at, at + 1_000)), first=at) for at in range(1_000, 16_000, 1_000)]
    bench.hand_over(*late, _due(bench, [now_ms() + 1_000], first=1))
    release = _small(bench.prepare(), most_bytes)
    release.start()
    bench.wait(release)
    assert bench.settled() == 15_002
    released = _released(bench)
    assert sorted(released) == [0, 1, *range(1_000, 16_000)]
    places = {identity: place for place, identity in enumerate(released)}
    for chunk in late:
        of_chunk = [places[offset] for offset in chunk.column("offset").to_pylist()]
        assert of_chunk == sorted(of_chunk)


def test_what_is_pending_takes_no_more_memory_than_allowed_and_is_read_again_when_it_is_needed(
    bench: ReleaseBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = missing = 0

    class Watched(Pending):
        def add(self, *arguments: Any) -> None:
            nonlocal most
            super().add(*arguments)
            most = max(most, self.merge.nbytes)

        def plan(self, *arguments: Any) -> Any:
            nonlocal most, missing
            # With the chunks that were read again since the last call.
            most = max(most, self.merge.nbytes)
            try:
                return super().plan(*arguments)
            except PayloadMissing:
                missing += 1
                raise
            finally:
                most = max(most, self.merge.nbytes)

    monkeypatch.setattr(shard_module, "Pending", Watched)
    bench.change("release.max_bytes=16777216")
    rng = np.random.default_rng(7)
    # 60 MB. The messages that are needed last come first.
    for at in range(5_950, -50, -50):
        rows = [{"offset": at + n, "deliver_at_ms": 1 + at + n, "output_topic": bench.settings.topics.output,
                 "value": rng.bytes(10_000)} for n in range(50)]  # fmt: skip
        bench.hand_over(messages(rows))
    assert bench.release() == 6_000
    assert _released(bench) == [*range(6_000)]
    assert missing > 0
    assert most <= 16 * 1024 * 1024


def _wait_for(release: ShardRelease, bench: ReleaseBench, most: int) -> None:
    assert_eventually(lambda: release.ended.is_set() or bench.released >= most, 60)


def _small(release: ShardRelease, most_bytes: int | None) -> ShardRelease:
    """Allow `release` only so many bytes of pending messages."""
    if most_bytes is not None:
        release._most_pending_bytes = most_bytes
    return release


def _anew(bench: ReleaseBench, topic: str) -> None:
    """Delete `topic`, and create another one of the same name."""
    client = AdminClient(dict(bench.options))
    client.delete_topics([topic])[topic].result()
    assert_eventually(lambda: topic not in client.list_topics(timeout=10).topics)
    create_topics(bench.broker, NewTopic(topic, 1, 1))


def _delete(bench: ReleaseBench, end: int, log: Log = Log.READY) -> None:
    """Delete the records of `log` before offset `end`."""
    client = AdminClient(dict(bench.options))
    for answer in client.delete_records([TopicPartition(topics_of(bench.settings)[log], 0, end)]).values():
        answer.result()


def _produce(bench: ReleaseBench, topic: str, value: bytes, headers: RecordHeaders | None = None) -> None:
    producer = Producer(dict(bench.options))
    producer.produce(topic, value, position_key(0), 0, headers=headers)
    assert producer.flush(60) == 0


def _another_topic(bench: ReleaseBench) -> None:
    _anew(bench, bench.settings.ready_topic)


def _gone_records(bench: ReleaseBench) -> None:
    bench.hand_over(_due(bench, [1], first=10), _due(bench, [1], first=11))
    _delete(bench, bench.ends[Log.READY] - 1)


def _gone_near_records(bench: ReleaseBench) -> None:
    bench.hand_over(_due(bench, [1], first=10), log=Log.NEAR)
    _delete(bench, 1, Log.NEAR)


def _both_lost(bench: ReleaseBench) -> None:
    _gone_near_records(bench)
    _gone_records(bench)


def _gone_end(bench: ReleaseBench) -> None:
    position = bench.position
    assert position is not None
    beyond = position.taken_in_to(Log.READY, 100)
    _produce(bench, bench.settings.position_topic, beyond.to_bytes())


def _damaged_summary(bench: ReleaseBench) -> None:
    _produce(bench, bench.settings.ready_topic, b"{}", [("delayline-chunk", b"{}")])


def _damaged_chunk(bench: ReleaseBench) -> None:
    _, headers = chunk_record(_due(bench, [1], first=1))
    _produce(bench, bench.settings.ready_topic, b"{}", headers)


def _foreign_position(bench: ReleaseBench) -> None:
    _produce(bench, bench.settings.position_topic, b"{}")


@pytest.mark.parametrize(
    ("harm", "error", "text"),
    [
        (_another_topic, ReadyLogLost, r"/0 is not the topic \(\S+\) that was released before\."),
        (_gone_records, ReadyLogLost, r"/0 begins at offset 2, but is released only up to 1\."),
        (_gone_near_records, ReadyLogLost, r"-near/0 begins at offset 1, but is released only up to 0\."),
        (_both_lost, ReadyLogLost, r"-ready/0 begins at offset 2, .* 1; \S+-near/0 begins at offset 1, .* 0\."),
        (_gone_end, ReadyLogLost, r"/0 ends at offset 1, but was already read up to 100\."),
        (_damaged_summary, ReadyLogLost, r"/0 at offset 1 is not a chunk .* no format number.* repair --ready-log"),
        (_damaged_chunk, ReadyLogLost, r"the ready log at offset 1 is not a chunk .* repair --ready-log"),
        (_foreign_position, CheckpointMismatch, r"which is not a position of this Delayline version"),
    ],
)
def test_a_ready_log_that_does_not_fit_its_position_is_not_released(
    bench: ReleaseBench, harm: Callable[[ReleaseBench], None], error: type[DelaylineError], text: str
) -> None:
    assert bench.release(_due(bench, [1])) == 1
    harm(bench)
    bench.ends[Log.READY] = 100
    release = bench.start()
    assert release.ended.wait(60)
    assert isinstance(release.error, error)
    release_error = str(release.error)
    assert re.search(text, release_error)
    assert _released(bench) == [0]


def test_records_of_other_writers_are_ignored_by_name_and_all_chunks_around_them_are_released(
    bench: ReleaseBench, caplog: pytest.LogCaptureFixture
) -> None:
    settings = bench.settings
    for number, log in enumerate(Log):
        bench.hand_over(_due(bench, [1], first=2 * number), log=log)
        foreign: list[RecordHeaders | None] = [None, [("trace", b"1")]]
        for headers in foreign:
            _produce(bench, topics_of(settings)[log], b"{}", headers)
        bench.hand_over(_due(bench, [1], first=2 * number + 1), log=log)
        _produce(bench, topics_of(settings)[log], b"{}")
        # The position goes on to the end of the log, behind the last one.
        bench.ends[log] += 1
    assert bench.release() == 4
    assert sorted(_released(bench)) == [0, 1, 2, 3]
    assert unreleased(settings, bench.options, [0]) == []
    warnings = [record for record in caplog.records if "did not write" in record.getMessage()]
    assert re.search(r"beginning with \S+-(ready|near)/0 at offset 1\. ", warnings[0].getMessage())
    assert sum(cast(tuple[int, str], record.args)[0] for record in warnings) == 6


def test_a_ready_log_whose_records_are_deleted_before_they_are_read_again_is_lost(
    bench: ReleaseBench, clock: HostClock
) -> None:
    later = clock.now_ms() + _HOUR_MS
    bench.hand_over(_due(bench, [later]), _due(bench, [later + 1], first=1), _due(bench, [1], first=2))
    release = _small(bench.prepare(), 0)
    release.start()
    assert_eventually(lambda: bench.released == 1, 60)
    _delete(bench, 3)
    clock.ahead_ms = 2 * _HOUR_MS
    assert release.ended.wait(60)
    assert isinstance(release.error, ReadyLogLost)
    assert _released(bench) == [2]
