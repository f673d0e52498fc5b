"""Shared parts of the tests of the decision about cancels and names: a batch, its input, and its decision."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from state.buckets.operator import ASKED, SHARD_OUTPUT_SCHEMA, TAKEN_OUT, TAKEN_OUT_COLUMNS
from state.cancel import REQUEST_SCHEMA, MessageId
from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.progress import BatchSpan
from state.kinds import KIND, MESSAGE
from state.message import encode_chunk
from state.message_ids import ID
from state.names import HASH_BYTES
from tests.messages import some_batch_settings
from tests.streaming.job.requests.memory_table import MemoryTable
from tests.streaming.job.requests.spark_table import SparkTable
from tests.streaming.sealed import sealed_table

BATCH_SETTINGS = some_batch_settings(segment_max_messages=4, index_precision_bits=4)
TOPIC = "delayline-in"
Table = MemoryTable | SparkTable
# The batch that decides reads from this offset. Then its number, and the cutoff of the batch before.
READ, BATCH, PREVIOUS_MS = 60, 9, 1_000
# The batch's clock, which is before its cutoff.
CLOCK_MS = 400
# A request; and if the state stage has taken out the message, when that was due (epoch ms).
ASKED_SCHEMA = REQUEST_SCHEMA.append(pa.field("found_due_ms", pa.int64()))


def seal(store: Table, number: int, **dues: int) -> None:
    """Seal messages as bucket `number`: due times by offset, as `_5=1_200`."""
    rows = [{"offset": int(name[1:]), "deliver_at_ms": due} for name, due in dues.items()]
    store.append(sealed_table(number, rows, BATCH_SETTINGS), "checkpoint", number)


class CancelledId(NamedTuple):
    """A row of `CANCELLED_SCHEMA`."""

    id: MessageId
    from_ms: int
    until_ms: int


def each_of(cancelled: pa.Table) -> list[CancelledId]:
    """Return the rows of a table of `CANCELLED_SCHEMA`."""
    rows = zip(*(column.to_pylist() for column in cancelled.columns), strict=True)
    return [CancelledId(row[:3], *row[3:]) for row in rows]


def span(
    batch_id: int = BATCH, previous_ms: int = PREVIOUS_MS, ends: dict[str, dict[str, int]] | None = None, **origin: Any
) -> BatchSpan:
    """Return the span of a batch that reads nothing unless it has `ends`."""
    starts = {TOPIC: {"0": READ}}
    return BatchSpan(
        CheckpointOrigin("c", 1, 2, **origin), batch_id, previous_ms, previous_ms + 500, starts, ends or starts
    )


def output_of(store: Table, rows: Iterable[dict[str, Any]]) -> tuple[Any, list[Any]]:
    """Return rows of `SHARD_OUTPUT_SCHEMA` as the state stage gives them, and those that the driver reads."""
    texts = {"part": "", "by_topic": "{}", "accepted": "{}", "topic": ""}
    empty = dict.fromkeys(SHARD_OUTPUT_SCHEMA.names, 0) | texts | {"chunk": b""}
    table = pa.Table.from_pylist([empty | row for row in rows], schema=SHARD_OUTPUT_SCHEMA)
    frame: Any = store.frame(table)
    return frame, store.driver_rows(frame)


def asked_rows(requests: pa.Table) -> list[dict[str, Any]]:
    """Return state stage rows for `requests` (`ASKED_SCHEMA`). Two shards pass them on. One had the found ones."""
    found = requests.filter(pc.is_valid(requests.column("found_due_ms"))).select([*ID, "found_due_ms"])
    found = found.append_column(KIND, pa.repeat(pa.scalar(MESSAGE, KIND.type), found.num_rows))
    own, half = requests.select(REQUEST_SCHEMA.names), requests.num_rows // 2
    chunks = [
        (ASKED, 0, own.slice(0, half)),
        (ASKED, 1, own.slice(half)),
        (TAKEN_OUT, 1, found.rename_columns(TAKEN_OUT_COLUMNS)),
    ]
    return [{"kind": kind, "shard": shard, "chunk": encode_chunk(each)} for kind, shard, each in chunks if len(each)]


def hash_of(name: str) -> bytes:
    """Return a stand-in for the hash of a short name. It ends with zero bytes, as a hash may."""
    return name.encode().ljust(HASH_BYTES, b"\0")


def name_of(hash_: bytes) -> str:
    """Return the name with the hash `hash_`."""
    return hash_.rstrip(b"\0").decode()
