"""The rest of a lost job: its markers, the records that a rebuild reads again, and the rows that are left of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyroaring import BitMap64

from state.checkpoint.batch_settings import BatchSettings, DelayPolicy
from state.checkpoint.origin import CheckpointOrigin, Offsets
from state.checkpoint.progress import BatchSpan, Progress
from state.checkpoint.staged import StagedMessages
from state.message import decode_chunk, empty_messages
from state.name_holders import HOLDER_SCHEMA
from state.order import OrderKey
from streaming.operations.moved import Moved
from streaming.operations.rest import Rest
from tests.messages import PARTITIONS, headers, records, some_batch_settings

TOPIC, RESULTS = "delayline-in", "delayline-results"
CLOCK_MS = 1_798_000_000_000
FAR_MS = CLOCK_MS + 3_600_000
# The last batch has read 10 records, and staged the messages that are due before its cutoff.
CUTOFF_MS = CLOCK_MS + 60_000
READ = {TOPIC: {"0": 10}}
LEFT_IN = 8
SETTINGS = some_batch_settings(
    shard_keys=(7,), partitions=PARTITIONS | {RESULTS: 1}, policy=DelayPolicy(names="header")
)
ORIGIN = CheckpointOrigin("new", 2, 1, LEFT_IN + 1, CUTOFF_MS, READ)


def rest_of(
    in_table: Iterable[int] = (),
    settings: BatchSettings = SETTINGS,
    ends: Offsets = READ,
    now_ms: int = CLOCK_MS,
    others: Iterable[Progress] = (),
) -> Rest:
    """Return the rest of a job, by default with one shard. The table has the messages `in_table`.

    `ends` is where the last batch has read to, and `others` are the markers of other shards.
    """
    span = BatchSpan(CheckpointOrigin("c", 1, 1), 7, CUTOFF_MS - 500, CUTOFF_MS, READ, ends, previous_clock_ms=CLOCK_MS)
    last = OrderKey(CUTOFF_MS - 100, TOPIC, 0, 0)
    staged = StagedMessages((Progress(span, 3, last), *others))
    return Rest(staged, {(TOPIC, 0): BitMap64(in_table)}, {}, {}, settings, now_ms, Moved(staged))


def rows_left(rest: Rest, *rows: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows that are left of records: messages, dead letters and answers."""
    batches = rest.messages()(iter(records(rows).to_batches()))
    chunks = [decode_chunk(chunk.as_py()) for batch in batches for chunk in batch.column("chunk")]
    found: list[dict[str, Any]] = pa.concat_tables([empty_messages(), *chunks]).to_pylist()
    return found


def left(rest: Rest, *rows: dict[str, Any]) -> dict[int, int]:
    """Return the due time of each message that is left, in ms after the lost job's last clock, by its offset."""
    messages = (row for row in rows_left(rest, *rows) if row["error_code"] is None)
    return {row["offset"]: row["deliver_at_ms"] - CLOCK_MS for row in messages}


def published(offset: int, published_ms: int, delay: tuple[str, int] | None = None) -> dict[str, Any]:
    """Return a record that was published so long after the lost job's last clock. An instant counts from that too."""
    own = []
    if delay is not None:
        own = [(delay[0], b"%d" % (delay[1] + (CLOCK_MS if delay[0] == "deliver-at" else 0)))]
    return {"offset": offset, "headers": headers(*own), "timestamp_ms": CLOCK_MS + published_ms}


def record(offset: int, name: str | None, due_ms: int = FAR_MS) -> dict[str, Any]:
    """Return a record with an instant, and perhaps a name."""
    own = [("deliver-at", b"%d" % due_ms)] + ([] if name is None else [("delayline-name", name.encode())])
    return {"offset": offset, "headers": headers(*own), "timestamp_ms": CLOCK_MS - 1_000}


def holders(rest: Rest, *rows: dict[str, Any]) -> dict[int, tuple[bytes, bool]]:
    """Return for each message that got a name the name, and whether it is left."""
    batches = rest.names(LEFT_IN)(iter(records(rows).to_batches()))
    found = pa.Table.from_batches(batches, HOLDER_SCHEMA).to_pylist()
    assert {row["bucket"] for row in found} <= {LEFT_IN}
    return {row["offset"]: (row["name"], row["is_left"]) for row in found}
