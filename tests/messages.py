"""Builders of test data for the core: input records, messages, and batch settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

import pyarrow as pa

from conf.settings import Settings
from state.buckets.cancelled import CANCELLED_SCHEMA, CancelledIds
from state.buckets.id_rows import ID_ROW_SCHEMA, STORED_IDS, unpacked_ids
from state.checkpoint.batch_settings import BatchSettings, batch_settings_from
from state.checkpoint.origin import CheckpointOrigin
from state.message import HEADERS, MESSAGE_SCHEMA
from state.message_ids import ID_SCHEMA
from state.order import in_order

# Columns and types as `sources.intake.kafka_reader` reads them through Spark.
RECORD_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("key_bytes", pa.int32()),
        ("value", pa.binary()),
        ("value_bytes", pa.int32()),
        ("value_sha256", pa.string()),
        ("headers", HEADERS),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
    ]
)
RECORD: dict[str, Any] = {
    "key": None,
    "value": b"v",
    "headers": None,
    "topic": "delayline-in",
    "partition": 0,
    "offset": 0,
    "timestamp_ms": 0,
}
MESSAGE: dict[str, Any] = {
    **RECORD,
    "deliver_at_ms": 0,
    "output_topic": "delayline-out",
    "output_partition": 0,
    "error_code": None,
    "error_text": None,
}
PARTITIONS = {"delayline-out": 4, "orders": 3, "delayline-dead-letter": 2}


def headers(*pairs: tuple[str, bytes | None]) -> list[dict[str, Any]]:
    """Return headers in the form of Arrow rows."""
    return [{"key": key, "value": value} for key, value in pairs]


def records(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Return a table of records. `RECORD` has the values that a row omits; lengths are those of key and value."""
    whole = [{**RECORD, **row} for row in rows]
    lengths = [
        {f"{name}_bytes": None if row[name] is None else len(row[name]) for name in ("key", "value")} for row in whole
    ]
    return pa.Table.from_pylist(
        [{**length, **row} for length, row in zip(lengths, whole, strict=True)], schema=RECORD_SCHEMA
    )


def messages(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Return a table of `MESSAGE_SCHEMA`. `MESSAGE` has the values that a row omits."""
    return pa.Table.from_pylist([{**MESSAGE, **row} for row in rows], schema=MESSAGE_SCHEMA)


def cancelled(rows: Iterable[tuple[str, int, int, int, int]]) -> pa.Table:
    """Return a table of `CANCELLED_SCHEMA`."""
    return pa.Table.from_pylist([dict(zip(CANCELLED_SCHEMA.names, row, strict=True)) for row in rows], CANCELLED_SCHEMA)


def ids_of_rows(rows: pa.Table) -> pa.Table:
    """Return the ids (`ID_ROW_SCHEMA`) in rows of the bucket table."""
    return pa.Table.from_batches(unpacked_ids(rows.select(STORED_IDS).to_batches()), ID_ROW_SCHEMA)


def cancelled_in(bucket: int, offsets: Iterable[int]) -> CancelledIds:
    """Return these messages of the first input partition as cancelled by the batch that sealed `bucket`."""
    rows = [{"topic": RECORD["topic"], "partition": 0, "offset": offset, "bucket": bucket} for offset in offsets]
    return CancelledIds.of(pa.Table.from_pylist(rows, ID_SCHEMA.append(pa.field("bucket", pa.int64()))))


def placed(buckets: Iterable[Iterable[tuple[int, int]]]) -> list[pa.Table]:
    """Return a table in delivery order for each bucket, given as (due time, output partition) pairs.

    Offsets are numbered through all buckets.
    """
    offsets = count()
    return [
        in_order(
            messages({"deliver_at_ms": due, "offset": next(offsets), "output_partition": to} for due, to in places)
        )
        for places in buckets
    ]


def some_batch_settings(**changes: Any) -> BatchSettings:
    """Return the batch settings of the default settings with two shards, with `changes` applied."""
    return replace(batch_settings_from(Settings(), PARTITIONS, (7, 1), CheckpointOrigin("c", 1, 2)), **changes)
