"""A shard's release against a real broker: the order and the times of messages, and clocks that are set."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from confluent_kafka import Consumer, TopicPartition

from sinks.release.wall_clock import now_ms
from tests.eventually import assert_eventually
from tests.sinks.release.bench import ReleaseBench, due_at, released_ids
from tests.sinks.release.conftest import HostClock, StopAt

_HOUR_MS = 3_600_000


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


def test_messages_come_in_order_and_never_before_they_are_due(bench: ReleaseBench) -> None:
    rng = np.random.default_rng(7)
    soon = now_ms() + 4_000
    chunks = [sorted(int(due) for due in soon + rng.integers(0, 1_000, 40)) for _ in range(8)]
    for n, dues in enumerate(chunks[:4]):
        bench.stage(due_at(bench, dues, first=100 * n))
    release = bench.start()
    # A chunk that comes while others wait may have earlier messages.
    for n, dues in enumerate(chunks[4:], 4):
        bench.stage(due_at(bench, dues, first=100 * n))
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
    bench.stage(due_at(bench, [due_ms, due_ms + 1]))
    release = bench.start()
    assert stopped.reached.wait(60)
    clock.ahead_ms = 0
    stopped.released.set()
    assert_eventually(lambda: "clock was set back" in caplog.text, 60)
    assert released_ids(bench) == []
    # Messages that come meanwhile and are due now are released first.
    bench.stage(due_at(bench, [clock.now_ms()], first=5))
    assert_eventually(lambda: bench.released == 1, 60)
    assert released_ids(bench) == [5]
    clock.ahead_ms = 30 * 60_000
    bench.wait(release)
    assert released_ids(bench) == [5, 0, 1]


def test_after_a_clock_that_was_ahead_messages_come_in_order_when_they_are_due(
    bench: ReleaseBench, clock: HostClock, caplog: pytest.LogCaptureFixture
) -> None:
    clock.ahead_ms = 30 * 60_000
    ahead_ms = clock.now_ms()
    bench.stage(due_at(bench, [ahead_ms, ahead_ms + 20 * 60_000]))
    release = bench.start()
    assert_eventually(lambda: bench.released == 1, 60)
    clock.ahead_ms = 0
    soon = clock.now_ms() + 3_000
    # Most are due before the released messages.
    bench.stage(due_at(bench, [soon, soon + 20 * 60_000], first=10), due_at(bench, [soon - 1, soon + 1], first=20))
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
    assert sorted(released_ids(bench)) == [0, 1, 10, 11, 20, 21]


def test_a_clock_that_was_set_back_a_little_lets_a_transaction_wait(
    bench: ReleaseBench, clock: HostClock, stop_at: StopAt
) -> None:
    bench.change("release.lead=10s")
    clock.ahead_ms = 3_000
    due_ms = clock.now_ms() + 4_000
    stopped = stop_at("transaction-filled")
    bench.stage(due_at(bench, [due_ms]))
    release = bench.start()
    assert stopped.reached.wait(60)
    clock.ahead_ms = 1_000
    stopped.released.set()
    with _receiving(bench) as receive:
        ((_, received_ms),) = assert_eventually(receive, 60)
    assert received_ms + clock.ahead_ms >= due_ms
    bench.wait(release)
