"""Builders of test data for the core: input records, messages, and batch settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

import pyarrow as pa

from conf.settings import Settings
from state import kinds
from state.answers import answers_to
from state.buckets.cancelled import CANCELLED_SCHEMA
from state.buckets.id_rows import ID_ROW_SCHEMA, STORED_IDS, unpacked_ids
from state.cancel import REQUEST_ID, MessageId
from state.checkpoint.batch_settings import BatchSettings, batch_settings_from
from state.checkpoint.origin import CheckpointOrigin
from state.message import HEADERS, MESSAGE_SCHEMA, encode_chunk
from state.message_ids import ID
from state.order import in_order, key_of
from state.reasons import Reason

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
# Chunks among which are chunks of cancelled ids (`CancelledFilter.left`).
KEYED_SCHEMA = pa.schema(
    [
        ("deliver_at_ms", pa.int64()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("bucket", pa.int64()),
        ("chunk", pa.binary()),
        ("has_ids", pa.bool_()),
    ]
)
PARTITIONS = {"delayline-out": 4, "orders": 3, "delayline-dead-letter": 2}


def headers(*pairs: tuple[str, bytes | None]) -> list[dict[str, Any]]:
    """Return headers in the form of Arrow rows."""
    return [{"key": key, "value": value} for key, value in pairs]


class CountedTable:
    """Stands for a table of which only the bytes are asked for, and counts how often that is."""

    def __init__(self) -> None:
        self.reads = 0

    @property
    def nbytes(self) -> int:
        """How many bytes it has."""
        self.reads += 1
        return 1


def records(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Return a table of records. `RECORD` has the values that a row omits. Lengths come from key and value."""
    whole = [{**RECORD, **row} for row in rows]
    lengths = [
        {f"{name}_bytes": None if row[name] is None else len(row[name]) for name in ("key", "value")} for row in whole
    ]
    return pa.Table.from_pylist(
        [{**length, **row} for length, row in zip(lengths, whole, strict=True)], schema=RECORD_SCHEMA
    )


def messages(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Return a table of `MESSAGE_SCHEMA`. `MESSAGE` has the values that a row omits; an error makes a dead letter."""
    whole = [{"kind": kinds.DEAD_LETTER if row.get("error_code") else kinds.MESSAGE, **MESSAGE, **row} for row in rows]
    return pa.Table.from_pylist(whole, schema=MESSAGE_SCHEMA)


def cancelled(rows: Iterable[tuple[str, int, int, int, int]]) -> pa.Table:
    """Return a table of `CANCELLED_SCHEMA`."""
    return pa.Table.from_pylist([dict(zip(CANCELLED_SCHEMA.names, row, strict=True)) for row in rows], CANCELLED_SCHEMA)


def answer_value(asked: MessageId, reason: Reason, own: MessageId = ("in", 0, 0), **more: Any) -> bytes:
    """Return the value of the answer to request `own`. `more` are `accepted`, or where the message went (`output`)."""
    request = pa.table([[part] for part in (*asked, *own)], names=[*ID, *REQUEST_ID])
    accepted, output = pa.array([more.get("accepted")], pa.bool_()), more.get("output")
    (row,) = answers_to(request, [reason], accepted, [output.field() if output else {}]).to_pylist()
    value: bytes = row["value"]
    return value


def ids_of_rows(rows: pa.Table) -> pa.Table:
    """Return the ids (`ID_ROW_SCHEMA`) in rows of the bucket table."""
    return pa.Table.from_batches(unpacked_ids(rows.select(STORED_IDS).to_batches()), ID_ROW_SCHEMA)


def keyed_rows(chunk: pa.Table, has_ids: bool, bucket: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the row of `KEYED_SCHEMA` for a chunk of messages in `bucket`, or of cancelled ids."""
    yield {**key_of(chunk)._asdict(), "bucket": bucket, "chunk": encode_chunk(chunk), "has_ids": has_ids}


def with_cancelled(
    chunks: Iterable[pa.RecordBatch], bucket: int, cancelled: Iterable[Mapping[str, Any]]
) -> list[pa.RecordBatch]:
    """Return stored chunks with the ids of `cancelled` messages among them, cancelled by the batch of `bucket`.

    Their due times are known to some ms.
    """
    columns = ("deliver_at_ms", "topic", "partition", "offset", "bucket", "chunk")
    rows = [row | {"has_ids": False} for batch in chunks for row in batch.select(columns).to_pylist()]
    ids = [
        {name: row[name] for name in ("topic", "partition", "offset")}
        | {"bucket": bucket, "deliver_at_ms": row["deliver_at_ms"] - 1, "max_deliver_at_ms": row["deliver_at_ms"] + 3}
        for row in cancelled
    ]
    for row in in_order(pa.Table.from_pylist(ids, ID_ROW_SCHEMA)).to_batches(max_chunksize=4):
        rows += keyed_rows(pa.Table.from_batches([row]), True)
    return list(in_order(pa.Table.from_pylist(rows, KEYED_SCHEMA)).to_batches(max_chunksize=3))


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
