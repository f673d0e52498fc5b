"""From messages to the records that a subscriber gets, and how many bytes those take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from conf.rejected import Rejected
from sinks.release.wall_clock import now_ms
from state.dead_letter import Headers, error_headers
from state.message import DELIVER_AT_HEADER, ID_HEADER
from state.stub import mark_of_whole

# Lets the client choose by the key, as Kafka's own partitioner would.
ANY_PARTITION = -1
# Kafka's value for a record without a timestamp, to which it applies no limit.
NO_TIMESTAMP = -1
# Records that are overdue by more than this are stamped with the present time. It exceeds the lateness of a job that
# runs or restarts, and is short compared to any `retention.ms`. It is documented for subscribers (`docs/subscribe.md`).
OVERDUE_MS = 60_000
# The bytes that Kafka adds around the single record of a batch (message format 2).
_BATCH_BYTES = 61
# More than the service's own headers, the lengths, and what is around a record take; without the error's sentence.
_OWN_BYTES = 1_024
_HEADER_LENGTHS_BYTES = 10


class Record(NamedTuple):
    """A record as it is written. `timestamp_ms` (epoch ms) is the due time, or the time of writing: see `records`."""

    timestamp_ms: int
    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def records(batch: pa.RecordBatch) -> Iterator[Record]:
    """Turn messages into output records: input headers first, then the service's headers.

    A record's timestamp is its due time. It is the present time if that is more than `OVERDUE_MS` past, and for a dead
    letter: a topic may be about to delete what is as old as that. So a record that is written again may have another
    timestamp; nothing depends on it. The due time, and a dead letter's time of publication, are in headers.
    """
    # A message may take a few microseconds in all, so everything possible is computed a column at a time.
    written_ms = now_ms()
    # Records that are due before this are stamped with the present time.
    overdue_ms = written_ms - OVERDUE_MS
    names, contents, bounds = _headers(batch)
    ends = bounds.tolist()
    inputs = list(zip(_list(names), _list(contents), strict=True))
    columns = [
        *(batch.column(name) for name in ("deliver_at_ms", "output_topic", "output_partition", "key", "value")),
        message_ids(batch),
        *(batch.column(name) for name in ("error_code", "error_text", "timestamp_ms")),
    ]
    new = tuple.__new__
    for start, end, due_ms, topic, partition, key, value, identity, code, text, published_ms in zip(
        ends, ends[1:], *map(_list, columns), strict=False
    ):
        if code is None:
            own = [*inputs[start:end], (ID_HEADER, identity), (DELIVER_AT_HEADER, b"%d" % due_ms)]
            # Not `Record(...)`, which takes twice as long.
            stamp_ms = written_ms if due_ms < overdue_ms else due_ms
            yield new(Record, (stamp_ms, topic, partition, key, value, own))
        else:
            own = [*inputs[start:end], (ID_HEADER, identity), *error_headers(code, text, published_ms)]
            yield Record(written_ms, topic, partition, key, value, own)


def message_ids(batch: pa.RecordBatch) -> pa.Array:
    """Return the id of each message, as binary."""
    places = [batch.column("topic"), batch.column("partition").cast(pa.string())]
    return pc.binary_join_element_wise(*places, batch.column("offset").cast(pa.string()), "/").cast(pa.binary())


def _headers(batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array, npt.NDArray[np.int32]]:
    """Return names and contents of the headers of all messages, and the bounds of each message's headers.

    `batch` is mostly a slice. Arrow would return the headers of the whole batch, a hundred times as many.
    """
    headers = batch.column("headers")
    bounds = headers.offsets.to_numpy()
    own = headers.values.slice(bounds[0], bounds[-1] - bounds[0])
    return own.field(0), own.field(1), bounds - bounds[0]


def _list(column: pa.Array) -> list[Any]:
    # Four times as fast as `to_pylist`, which makes an Arrow scalar of each value first.
    return list(column.to_numpy(zero_copy_only=False).tolist())


def record_id(record: Record) -> bytes:
    """Return the message id of an output record."""
    # The last one: the service adds its headers after the publisher's.
    return next(value or b"" for name, value in reversed(record.headers) if name == ID_HEADER)


def record_due_ms(record: Record) -> int:
    """Return the due time of an output record that is not a dead letter, epoch ms."""
    # The last header: the service adds its own after the publisher's.
    return int(record.headers[-1][1] or b"")


def as_dead_letter(record: Record, timestamp_ms: int, topic: str, error: Rejected) -> Record:
    """Return the dead letter that replaces the record of a due message: for the dead-letter `topic`, with the error.

    `timestamp_ms` (epoch ms) is the input record's.
    """
    # The last two headers are the message id and the due time; a dead letter has the error in place of that.
    own, identity = record.headers[:-2], record.headers[-2]
    marks = mark_of_whole(record.value, own)
    headers = [*own, *marks, identity, *error_headers(error.code, str(error), timestamp_ms)]
    return Record(now_ms(), topic, ANY_PARTITION, record.key, record.value, headers)


def record_bytes(record: Record) -> int:
    """Return the bytes of a record batch with only this record, uncompressed: topic limits apply to this size."""
    # Attributes, and the differences to the batch's time and offset, which are 0: a byte each.
    body = 3 + _field_bytes(record.key) + _field_bytes(record.value) + _varint_bytes(len(record.headers))
    body += sum(_field_bytes(name.encode()) + _field_bytes(content) for name, content in record.headers)
    return _BATCH_BYTES + _varint_bytes(body) + body


def _field_bytes(field: bytes | None) -> int:
    return _varint_bytes(-1) if field is None else _varint_bytes(len(field)) + len(field)


def _varint_bytes(number: int) -> int:
    zigzag = (number << 1) ^ (number >> 63)
    return max(1, -(-zigzag.bit_length() // 7))


def bytes_at_most(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return for each message a little more than its `record_bytes`, a column at a time."""
    total = np.full(batch.num_rows, _OWN_BYTES, dtype=np.int64)
    for name in ("key", "value", "error_text"):
        total += _lengths(batch.column(name))
    names, contents, bounds = _headers(batch)
    until = np.concatenate([[0], np.cumsum(_lengths(names) + _lengths(contents) + _HEADER_LENGTHS_BYTES)])[bounds]
    return np.asarray(total + np.diff(until))


def _lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    lengths = pc.binary_length(column).fill_null(0)
    return np.asarray(lengths.to_numpy(zero_copy_only=False)).astype(np.int64)
