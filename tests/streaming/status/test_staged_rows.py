"""A look reads the logs of all shards with few tasks, and only chunks that may have the messages to show."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from conf.settings import Settings
from sinks.internal_topics.position import Log, topics_of
from sinks.ready_log.chunk import ChunkSummary, chunk_record
from sinks.topics.topics import ensure_topics
from state.order import key_of
from streaming.status.ready import EVERY_BATCH
from streaming.status.staged_rows import Wanted, in_turn, staged_rows
from streaming.status.waiting_rows import Selection, waiting_rows
from tests.conftest import MakeSettings
from tests.messages import messages

_SHARDS = 20


@pytest.fixture
def application(make_settings: MakeSettings) -> Settings:
    """An application with many shards and existing topics."""
    settings = make_settings(f"bucket.shards={_SHARDS}")
    ensure_topics(settings, 1)
    return settings


def due(*dues_ms: int) -> pa.Table:
    return messages({"deliver_at_ms": at, "offset": at} for at in dues_ms)


def stage(settings: Settings, shard: int, chunk: pa.Table, log: Log = Log.READY, payload: bytes | None = None) -> None:
    """Write a chunk, or a record that says it is one and has another `payload`."""
    value, headers = chunk_record(chunk)
    producer = Producer({"bootstrap.servers": settings.kafka.bootstrap_servers})
    producer.produce(topics_of(settings)[log], payload or value, None, shard, headers=headers)
    assert producer.flush(30) == 0


def found(spark: SparkSession, settings: Settings, selection: Selection, at_least: int | None = None) -> list[int]:
    [frame] = staged_rows(spark, settings, EVERY_BATCH, selection, at_least)
    return sorted(row["deliver_at_ms"] for row in frame.select("deliver_at_ms").collect())


@pytest.mark.thorough
def test_few_tasks_read_the_logs_of_all_shards(spark: SparkSession, application: Settings) -> None:
    for shard in range(_SHARDS):
        stage(application, shard, due(shard, shard + 100), Log.NEAR if shard % 2 else Log.READY)
    [frame] = staged_rows(spark, application, EVERY_BATCH, Selection())
    assert frame.rdd.getNumPartitions() <= max(1, spark.sparkContext.defaultParallelism // 4)
    assert found(spark, application, Selection()) == [*range(_SHARDS), *range(100, 100 + _SHARDS)]


def test_chunks_that_cannot_matter_are_not_opened(spark: SparkSession, application: Settings) -> None:
    stage(application, 3, due(50, 60))
    for chunk in (due(10, 49), due(70, 90)):
        stage(application, 3, chunk, payload=b"unreadable")
    assert found(spark, application, Selection(from_ms=50, until_ms=70)) == [50, 60]
    # The first two by due time are known by then.
    stage(application, 4, due(1, 2))
    stage(application, 4, due(3), payload=b"unreadable")
    assert found(spark, application, Selection(from_ms=0, until_ms=5), at_least=2) == [1, 2]


def summary(*dues_ms: int) -> ChunkSummary:
    chunk = due(*dues_ms)
    return ChunkSummary(1, key_of(chunk), key_of(chunk, -1), chunk.num_rows, chunk.nbytes)


def test_only_chunks_that_may_have_a_shards_first_messages_are_wanted() -> None:
    selection = Selection(from_ms=10)
    wanted = Wanted(selection, 3)
    for dues_ms, is_wanted in [
        ((1, 9), False), ((90, 95, 99), True), ((100,), False), ((99, 200), True), ((5, 20, 30), True), ((91,), False),
        # As the last of them: which one is shown depends on its id.
        ((90,), True),
    ]:  # fmt: skip
        assert wanted.may_be_in(summary(*dues_ms)) == is_wanted, dues_ms
        if is_wanted:
            wanted.found(waiting_rows(due(*dues_ms), "ready", selection))
    assert Wanted(selection, None).may_be_in(summary(10, 10**15))


def test_iterators_are_asked_together_and_to_their_ends() -> None:
    together = threading.Barrier(3)

    def count(number: int) -> Iterator[int]:
        if number < 3:
            # Nobody gets by alone.
            together.wait(30)
        yield from range(number)

    def several(numbers: Iterable[int]) -> Iterator[Iterator[int]]:
        return (count(number) for number in numbers)

    assert sorted(in_turn(several([2, 0, 1, 5, 3, 4]), 3)) == [0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 3, 3, 4]
    assert list(in_turn(several([]), 3)) == []
