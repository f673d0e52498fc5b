"""Sealed buckets on a real Delta table, as a job would have stored them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from sinks.buckets.bucket_table import ALL_BUCKETS, BucketTable
from state.buckets.parts import IdRows
from state.buckets.segments import Segment, cut
from state.buckets.table_rows import STORED_SCHEMA, described_segment, stored_rows
from state.checkpoint.batch_settings import BatchSettings
from state.index.offset_bitmaps import bitmaps_of
from state.message import decode_chunk, encode_chunk
from state.order import in_order
from streaming.operations.corruption import SKIP_CORRUPT_FILES
from tests.messages import messages


def seal_messages(
    store: BucketTable, number: int, rows: Iterable[Mapping[str, Any]], batch_settings: BatchSettings
) -> list[Segment]:
    """Store the messages `rows` as bucket `number`, of shard 0, and return its segments."""
    rows = list(rows)
    store.append(sealed_rows(store.spark, number, rows, batch_settings), "checkpoint", number)
    return [segment for segment, _ in _cut(number, rows, batch_settings)]


def sealed_rows(
    spark: SparkSession, number: int, rows: Iterable[Mapping[str, Any]], batch_settings: BatchSettings
) -> DataFrame:
    """Return the table's rows for bucket `number` with the messages `rows`."""
    sealed = sealed_table(number, rows, batch_settings)
    return spark.createDataFrame(sealed, from_arrow_schema(STORED_SCHEMA)).coalesce(1)


def sealed_table(number: int, rows: Iterable[Mapping[str, Any]], batch_settings: BatchSettings) -> pa.Table:
    """Return the same rows (`STORED_SCHEMA`), not as Spark's."""
    sealed = [{**asdict(segment), "chunk": encode_chunk(part)} for segment, part in _cut(number, rows, batch_settings)]
    batches = stored_rows(batch_settings.index_precision_bits)(iter(pa.Table.from_pylist(sealed).to_batches()))
    return pa.Table.from_batches(batches, STORED_SCHEMA)


def waiting_offsets(store: BucketTable) -> list[int]:
    """Return the offsets of all messages in the table, in order."""
    parts = {described_segment(row.asDict()).part for row in store.metadata()}
    chunks = store.chunks(0, 10**15, parts).collect()
    return sorted(offset for row in chunks for offset in decode_chunk(bytes(row["chunk"])).column("offset").to_pylist())


@contextmanager
def repairing(spark: SparkSession) -> Iterator[None]:
    """Give the session the options of a repair."""
    for name, value in SKIP_CORRUPT_FILES.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in SKIP_CORRUPT_FILES:
            spark.conf.unset(name)


def cancelled_in(store: BucketTable) -> dict[tuple[str, int], list[int]]:
    """Return the ids of all cancelled messages that the table has."""
    bitmaps = bitmaps_of(store.ids_before(IdRows.CANCELLED, ALL_BUCKETS))
    return {source: list(offsets) for source, offsets in bitmaps.items()}


def written_late(rows: DataFrame, begun: Path, released: Path) -> DataFrame:
    """Return `rows` with a task that makes the file `begun`, and waits for the file `released` before it gives them."""

    def late(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begun.touch()
        deadline_s = time.monotonic() + 60
        while not released.exists() and time.monotonic() < deadline_s:
            time.sleep(0.02)
        yield from batches

    return rows.mapInArrow(late, rows.schema)


def cut_short(file: Path) -> bytes:
    """Damage a data file, and return its earlier content."""
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    # Hadoop's checksum of a local file. An object store has no such file.
    file.with_name(f".{file.name}.crc").unlink()
    return whole


def _cut(
    number: int, rows: Iterable[Mapping[str, Any]], batch_settings: BatchSettings
) -> list[tuple[Segment, pa.Table]]:
    return list(cut(in_order(messages(rows)), number, 0, batch_settings))
