"""A shard's release against a real broker: the limits on its rate."""

from __future__ import annotations

import time
from typing import cast

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from conf.load import load_settings
from sinks.internal_topics.position import Position
from sinks.release.context import ReleaseContext
from sinks.release.planned import Planned
from sinks.release.rate_limiter import RateLimiter
from sinks.release.ring import Ring
from sinks.release.shard import ShardRelease
from sinks.release.waits import Waits
from state.shards import shard_of
from tests.eventually import assert_eventually
from tests.messages import messages
from tests.sinks.release.bench import ReleaseBench, due_at, released_ids
from tests.sinks.release.topic_records import create_topics, ids


def test_no_more_messages_are_released_in_a_second_than_the_limit(bench: ReleaseBench) -> None:
    bench.change("release.messages_per_second=100")
    begun_s = time.monotonic()
    assert bench.release(due_at(bench, [1] * 250)) == 250
    # 100 at once, 100 a second later, and the rest after another second.
    assert time.monotonic() - begun_s >= 2
    assert released_ids(bench) == [*range(250)]


def test_a_limited_topic_gets_no_more_in_a_second_than_its_limit(bench: ReleaseBench) -> None:
    bench.change(f"rates.{bench.settings.topics.output}=100")
    begun_s = time.monotonic()
    assert bench.release(due_at(bench, [1] * 250)) == 250
    assert time.monotonic() - begun_s >= 2
    assert released_ids(bench) == [*range(250)]


def test_the_limit_of_a_topic_holds_for_partitions_that_it_gets_later(bench: ReleaseBench) -> None:
    bench.waits = Waits(rates=0.0)
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
    bench.stage(due_at(bench, [1], output_topic=topic, output_partition=1))
    bench.wait(release)
    begun_s = time.monotonic()
    bench.stage(due_at(bench, [1] * 250, first=1, output_topic=topic, output_partition=1))
    bench.wait(release)
    assert time.monotonic() - begun_s >= 2
    assert ids(bench.read(topic)) == [*range(251)]


class _Ring:
    """A ring with topics that refuse some messages, by their rows."""

    is_worn = False

    def __init__(self, replaced: dict[int, str]) -> None:
        self.replaced = replaced

    def check(self) -> None:
        pass

    def write(self, *_: object) -> dict[int, str]:
        return self.replaced


def test_what_became_a_dead_letter_while_it_was_written_costs_nothing_of_the_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spent = []
    monkeypatch.setattr(RateLimiter, "spend", lambda _, charges, __: spent.append(charges))
    settings = load_settings(None, ["release.messages_per_second=10"], environ={})
    writer = ShardRelease(ReleaseContext(settings, "test"), 0)._writer
    for replaced in ({}, dict.fromkeys(range(3), "expired")):
        writer.ring = cast(Ring, _Ring(replaced))
        table = messages({"offset": n} for n in range(3))
        writer.write(Planned(table, Position(), 100), dict)
    assert spent == [{None: 3}, {}]
