"""Which waiting messages are selected, and their form as rows: what the tasks of a look do with chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state.buckets.table_rows import ArrowFunction
from state.kinds import OCCURRENCE, is_request, kinds_of, repeats
from state.message import HEADERS, decode_chunk
from state.message_ids import Ids, contains_mask, id_texts

WAITING_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        # "ready" (staged and not released), "mutable" or "sealed".
        ("place", pa.string()),
        ("deliver_at", pa.timestamp("us", "UTC")),
        ("deliver_at_ms", pa.int64()),
        # The message id in parts, and the record's Kafka timestamp.
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("output_topic", pa.string()),
        # The code of a dead letter.
        ("error_code", pa.string()),
        # Whether it is an occurrence of a message that repeats. Unless it is staged, its last two headers have the rule
        # and its number (`state.repeats.schedule`). Publishers may write headers of these names on any message.
        ("repeats", pa.bool_()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
    ]
)
# With the bytes of the whole value, and whether key, value or headers are not whole.
ROW_SCHEMA = WAITING_SCHEMA.append(pa.field("value_bytes", pa.int64())).append(pa.field("is_cut", pa.bool_()))
END_MS = 2**62
_SHOWN_HEADERS = 50


@dataclass(frozen=True)
class Selection:
    """A selection of messages, and how much of each. All conditions hold; None means no condition.

    - `from_ms`, `until_ms`: due in [from_ms, until_ms), epoch ms
    - `ids`: only these messages
    - `key`, `topic`: the record's key, and its output topic
    - `shown_bytes`: how many bytes of the key, of the value, and of the headers together are shown; None: all
    """

    from_ms: int = 0
    until_ms: int = END_MS
    ids: Ids | None = None
    key: bytes | None = None
    topic: str | None = None
    shown_bytes: int | None = None

    def of(self, messages: pa.Table) -> pa.Table:
        """Return the rows of `messages` that are selected."""
        dues_ms = messages.column("deliver_at_ms").to_numpy()
        # A request is not a message, with or without its answer.
        chosen = (dues_ms >= self.from_ms) & (dues_ms < self.until_ms) & ~is_request(messages)
        if self.ids is not None:
            chosen &= contains_mask(messages, self.ids)
        for name, wanted in (("key", self.key), ("output_topic", self.topic)):
            if wanted is not None:
                chosen &= pc.equal(messages.column(name), wanted).fill_null(False).to_numpy()
        return messages.filter(pa.array(chosen))


def chunk_rows(place: str, selection: Selection) -> ArrowFunction:
    """Return the Arrow function that turns chunks of messages, which wait at `place`, into rows of `ROW_SCHEMA`."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for chunk in batch.column("chunk"):
                yield from waiting_rows(decode_chunk(chunk.as_py()), place, selection)

    return run


def waiting_rows(messages: pa.Table, place: str, selection: Selection) -> list[pa.RecordBatch]:
    """Return the selected rows of `messages`, which wait at `place`, as batches of `ROW_SCHEMA`."""
    chosen = selection.of(messages)
    rows = {name: chosen.column(name) for name in chosen.column_names} | {
        "id": id_texts(chosen),
        "place": pa.array(np.full(chosen.num_rows, place, dtype=object), pa.string()),
        "deliver_at": pc.multiply(chosen.column("deliver_at_ms"), 1000).cast(pa.timestamp("us", "UTC")),
        "repeats": pa.array(repeats(chosen) | (kinds_of(chosen) == OCCURRENCE)),
        "value_bytes": pc.binary_length(chosen.column("value")),
        "is_cut": pa.array(np.zeros(chosen.num_rows, dtype=bool)),
    }
    if selection.shown_bytes is not None:
        rows |= _shortened(chosen, selection.shown_bytes)
    table = pa.table({name: rows[name] for name in ROW_SCHEMA.names}).cast(ROW_SCHEMA)
    batches: list[pa.RecordBatch] = table.combine_chunks().to_batches()
    return batches


def _shortened(messages: pa.Table, most_bytes: int) -> dict[str, Any]:
    """Return the columns key, value and headers with `most_bytes` at most of each, and the column is_cut."""
    is_cut = np.zeros(messages.num_rows, dtype=bool)
    columns = dict[str, Any]()
    for name in ("key", "value"):
        column = messages.column(name)
        is_cut |= _longer_than(pc.binary_length(column), most_bytes)
        columns[name] = pc.binary_slice(column, 0, most_bytes)
    headers = messages.column("headers").combine_chunks()
    if headers.nbytes > most_bytes or len(headers.values) > _SHOWN_HEADERS:
        shown = list[list[dict[str, Any]] | None]()
        for row, (whole, is_repeating) in enumerate(zip(headers.to_pylist(), repeats(messages).tolist(), strict=True)):
            end = len(whole or ()) - 2 * is_repeating
            shown.append(None if whole is None else [*_first_headers(whole[:end], most_bytes), *whole[end:]])
            is_cut[row] |= shown[-1] != whole
        headers = pa.array(shown, HEADERS)
    return {**columns, "headers": headers, "is_cut": pa.array(is_cut)}


def _longer_than(lengths: pa.ChunkedArray, most: int) -> np.ndarray:
    return np.asarray(pc.greater(lengths, most).fill_null(False).to_numpy())


def _first_headers(headers: Sequence[dict[str, Any]], most_bytes: int) -> list[dict[str, Any]]:
    """Return the first headers, the last of them perhaps shortened, with `most_bytes` of names and values in all."""
    shown, left = list[dict[str, Any]](), most_bytes
    for header in headers[:_SHOWN_HEADERS]:
        name = header["key"].encode()[:left].decode(errors="ignore")
        left -= len(name.encode())
        value = header["value"]
        if value is not None:
            value = value[:left]
            left -= len(value)
        shown.append({"key": name, "value": value})
        if left <= 0:
            break
    return shown
