"""A commit request that the client has repeated reaches the broker late: the next transaction of its id is open."""

from __future__ import annotations

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition

from sinks.release.ring import PRODUCERS
from sinks.release.waits import Waits
from sinks.release.wall_clock import now_ms
from streaming.local.broker import EmbeddedBroker
from tests.frame_proxy import FENCED, FrameProxy
from tests.messages import messages
from tests.sinks.release.bench import ReleaseBench
from tests.sinks.release.conftest import MakeBench
from tests.sinks.release.topic_records import ids


@pytest.fixture
def bench(proxied: EmbeddedBroker, make_bench: MakeBench) -> ReleaseBench:
    """An application that writes messages ten seconds ahead, each in a transaction of its own."""
    # No transaction without messages is held in place of theirs, however slow the machine is.
    own = make_bench(proxied, "release.lead=10s", "release.transaction_messages=1")
    own.waits = Waits(idle=3_600.0)
    return own


def _due(bench: ReleaseBench, first: int, *dues_ms: int) -> pa.Table:
    topic = bench.settings.topics.output
    return messages(
        {"offset": first + n, "deliver_at_ms": due_ms, "output_topic": topic} for n, due_ms in enumerate(dues_ms)
    )


def _arrivals_ms(bench: ReleaseBench, last: int) -> list[tuple[int, int]]:
    """Return the number of each record, and when it could be read (epoch ms), up to the first one of number `last`."""
    consumer = Consumer({**bench.options, "group.id": "test", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(bench.settings.topics.output, 0, 0)])
    arrivals_ms: list[tuple[int, int]] = []
    while not arrivals_ms or arrivals_ms[-1][0] != last:
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None
        arrivals_ms.append((ids([message])[0], now_ms()))
    consumer.close()
    return arrivals_ms


def test_a_commit_that_comes_late_releases_nothing_early_and_nothing_twice(
    bench: ReleaseBench, proxy: FrameProxy
) -> None:
    release = bench.start()
    bench.stage(_due(bench, 0, 1))
    bench.wait(release)
    proxy.hold()
    bench.stage(_due(bench, 1, 2))
    proxy.wait_until_held()
    bench.wait(release)
    # More than the ring has producers, so that each that may be filled again is.
    dues_ms = [1, 2, *(now_ms() + 8_000 + 100 * n for n in range(PRODUCERS + 1))]
    bench.stage(_due(bench, 2, *dues_ms[2:]))
    arrivals_ms = _arrivals_ms(bench, len(dues_ms) - 1)
    bench.wait(release)
    bench.stop(release)
    # The next process uses all producers. Messages that were already due would go out in one transaction.
    last_ms = now_ms() + PRODUCERS
    assert bench.release(_due(bench, len(dues_ms), *range(last_ms - PRODUCERS, last_ms))) == PRODUCERS
    assert [number for number, arrival_ms in arrivals_ms if arrival_ms < dues_ms[number]] == []
    assert ids(bench.read(bench.settings.topics.output)) == [*range(len(dues_ms) + PRODUCERS)]
    assert proxy.answer in FENCED


def test_a_ring_that_is_worn_by_slow_commits_is_replaced(
    bench: ReleaseBench, proxy: FrameProxy, rings: list[int]
) -> None:
    release = bench.start()
    for number in range(PRODUCERS):
        proxy.hold()
        bench.stage(_due(bench, number, 1 + number))
        proxy.wait_until_held()
        bench.wait(release)
    bench.stop(release)
    assert len(rings) > 1
    assert ids(bench.read(bench.settings.topics.output)) == [*range(PRODUCERS)]
