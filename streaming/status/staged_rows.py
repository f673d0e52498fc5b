"""The staged messages of a look: a few tasks read the logs of all shards, and open only chunks that can matter.

A task holds a core while it waits for brokers, and batches need the cores. So the tasks are few, and each of them reads
several shards at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.internal_topics.position_reader import read_position
from sinks.ready_log.chunk import ChunkSummary
from sinks.topics.partitions import partition_counts
from state.buckets.table_rows import ArrowFunction
from streaming.status.ready import ready_messages
from streaming.status.waiting_rows import ROW_SCHEMA, Selection, waiting_rows

# The part of the session's cores that the tasks take at most.
_CORES_PART = 4
_SHARDS_AT_ONCE = 8
T = TypeVar("T")


def staged_rows(
    spark: SparkSession, settings: Settings, last_batch: int, selection: Selection, at_least: int | None = None
) -> list[DataFrame]:
    """Return what batches up to `last_batch`, and forwarders, have staged, as no DataFrame or one of `ROW_SCHEMA`.

    With `at_least`, only so many messages of each shard are there, the first by due time, and some more.
    """
    shards = partition_counts(settings, [settings.ready_topic]).get(settings.ready_topic, 0)
    if not shards:
        return []
    tasks = min(-(-shards // _SHARDS_AT_ONCE), max(1, spark.sparkContext.defaultParallelism // _CORES_PART))
    numbers = spark.range(0, shards, 1, tasks)
    return [numbers.mapInArrow(_rows(settings, last_batch, selection, at_least), from_arrow_schema(ROW_SCHEMA))]


def _rows(settings: Settings, last_batch: int, selection: Selection, at_least: int | None) -> ArrowFunction:
    """Return the Arrow function that turns numbers of shards into rows of `ROW_SCHEMA`."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        shards = (shard for batch in batches for shard in batch.column("id").to_pylist())
        rows = (_rows_of(settings, shard, last_batch, selection, at_least) for shard in shards)
        for several in in_turn(rows, _SHARDS_AT_ONCE):
            yield from several

    return run


def _rows_of(
    settings: Settings, shard: int, last_batch: int, selection: Selection, at_least: int | None
) -> Iterator[list[pa.RecordBatch]]:
    """Yield the rows of each chunk of a shard that may have some."""
    options = librdkafka_options(settings.kafka)
    position = read_position(options, settings.position_topic, shard)
    wanted = Wanted(selection, at_least)
    for messages in ready_messages(settings, options, shard, position, last_batch, wanted.may_be_in):
        rows = waiting_rows(messages, "ready", selection)
        wanted.found(rows)
        yield rows


class Wanted:
    """Which chunks of a shard may have a message that a look shows."""

    def __init__(self, selection: Selection, at_least: int | None) -> None:
        """Take the selection of wanted messages, and how many of them, the first by due time; None: all."""
        self._selection, self._at_least = selection, at_least
        # The due times of the first messages found so far.
        self._dues_ms = np.zeros(0, dtype=np.int64)

    def may_be_in(self, summary: ChunkSummary) -> bool:
        """Return whether a chunk may have a wanted message, apart from those that are found."""
        first_ms, last_ms = summary.first.deliver_at_ms, summary.last.deliver_at_ms
        if last_ms < self._selection.from_ms or first_ms >= self._selection.until_ms:
            return False
        return self._at_least is None or len(self._dues_ms) < self._at_least or first_ms <= self._dues_ms[-1]

    def found(self, rows: Iterable[pa.RecordBatch]) -> None:
        """Take the rows of wanted messages (`ROW_SCHEMA`)."""
        if self._at_least is not None:
            dues_ms = np.concatenate([self._dues_ms, *(batch.column("deliver_at_ms").to_numpy() for batch in rows)])
            self._dues_ms = np.sort(dues_ms)[: self._at_least]


def in_turn(iterators: Iterator[Iterator[T]], most: int) -> Iterator[T]:
    """Yield the elements of `iterators`. Asks `most` of them at once, each in a thread, for one element at a time."""
    with ThreadPoolExecutor(most) as threads:
        running = list(islice(iterators, most))
        while running:
            found = list(threads.map(lambda each: list(islice(each, 1)), running))
            for elements in found:
                yield from elements
            running = [each for each, elements in zip(running, found, strict=True) if elements]
            running += islice(iterators, most - len(running))
