"""Accepting records: a table of Kafka records becomes a table of scheduled, routed messages.

Works on whole columns, and parses each distinct header value once. Pure: the batch's clock is an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from conf.durations import format_duration
from conf.errors import (
    BadDeliverTo,
    DelayTooLong,
    MessageTooLarge,
    Rejected,
    TopicNotAllowed,
    TopicUnknown,
    TwoDelays,
)
from sources.intake.partitioner import partitions_for
from sources.intake.schedule import (
    level_delay_ms,
    parse_delay_level,
    parse_deliver_after,
    parse_deliver_at,
    parse_deliver_to,
)
from state.checkpoint.batch_settings import BatchSettings
from state.message import HEADERS, MESSAGE_SCHEMA

Ints = npt.NDArray[np.int64]

# How far a publisher's clock may be ahead of the job's.
_MOST_SKEW_MS = 24 * 60 * 60 * 1000


@dataclass
class _Rejections:
    """The errors so far, by row. A row keeps its first error."""

    errors: dict[int, Rejected] = field(default_factory=dict)

    def reject(self, rows: Ints, error: Rejected) -> None:
        for row in rows.tolist():
            self.errors.setdefault(row, error)


@dataclass(frozen=True)
class _Headers:
    """All headers of a table, flat: `rows[i]` is the record that header `i` belongs to."""

    rows: Ints
    keys: pa.Array
    values: pa.Array

    def named(self, name: str) -> tuple[Ints, pa.Array]:
        mask = pc.equal(self.keys, name)
        return self.rows[np.asarray(mask.fill_null(False))], self.values.filter(mask)


def _flatten(headers: pa.Array) -> _Headers:
    flat = headers.flatten()
    # Not `list_parent_indices`: it also counts entries under a null list, which `flatten` leaves out.
    rows = np.repeat(np.arange(len(headers)), np.asarray(pc.list_value_length(headers).fill_null(0)))
    return _Headers(rows, pc.struct_field(flat, 0), pc.struct_field(flat, 1))


def accept(records: pa.Table, batch_settings: BatchSettings, clock_ms: int) -> pa.Table:
    """Return all `records` as messages of `MESSAGE_SCHEMA`, in the same order.

    `records` has key, value, headers, topic, partition, offset, timestamp_ms. `clock_ms` is the batch's clock, epoch
    ms. A record that cannot be scheduled is addressed to the dead-letter topic, with its error.
    """
    headers = _flatten(_one_array(records.column("headers").cast(HEADERS)))
    # A record without a timestamp (-1) counts as written when its batch began.
    published = records.column("timestamp_ms").to_numpy().astype(np.int64)
    timestamps = np.where(published < 0, clock_ms, published)
    rejections = _Rejections()
    deliver_at = _schedule(headers, timestamps, batch_settings, clock_ms, rejections)
    names, which = _route(headers, len(timestamps), batch_settings, rejections)
    _check_sizes(records, headers, batch_settings.max_message_bytes, rejections)
    codes: list[str | None] = [None] * len(timestamps)
    texts: list[str | None] = [None] * len(timestamps)
    for row, error in rejections.errors.items():
        codes[row], texts[row] = error.code, str(error)
        which[row] = len(names)
        deliver_at[row] = min(timestamps[row], clock_ms)
    names = [*names, batch_settings.dead_letter]
    counts = np.array([batch_settings.partitions[name] for name in names], dtype=np.int64)[which]
    keys = _one_array(records.column("key"))
    input_partitions = records.column("partition").to_numpy().astype(np.int64)
    columns = {
        "deliver_at_ms": deliver_at,
        "topic": records.column("topic"),
        "partition": records.column("partition"),
        "offset": records.column("offset"),
        "timestamp_ms": timestamps,
        "output_topic": pa.array(names, pa.string()).take(pa.array(which)),
        "output_partition": pa.array(partitions_for(keys, input_partitions, counts), pa.int32()),
        "error_code": pa.array(codes, pa.string()),
        "error_text": pa.array(texts, pa.string()),
        "key": keys,
        "value": records.column("value"),
        "headers": records.column("headers"),
    }
    return pa.table(columns).cast(MESSAGE_SCHEMA)


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)


def _schedule(
    headers: _Headers, timestamps: Ints, batch_settings: BatchSettings, clock_ms: int, rejections: _Rejections
) -> Ints:
    """Return the due time of each row, and add errors to `rejections`."""
    deliver_at = np.minimum(timestamps, clock_ms)
    header_counts = np.zeros(len(timestamps), dtype=np.int64)
    forms: list[tuple[str, Callable[[bytes | None], int], bool]] = [
        (batch_settings.headers.deliver_at, parse_deliver_at, True),
        (batch_settings.headers.deliver_after, parse_deliver_after, False),
        (
            batch_settings.headers.delay_level,
            lambda v: level_delay_ms(parse_delay_level(v), batch_settings.levels_ms),
            False,
        ),
    ]
    for name, parse, absolute in forms:
        rows, values = headers.named(name)
        if not len(rows):
            continue
        np.add.at(header_counts, rows, 1)
        parsed = _parse_distinct(rows, values, parse, rejections)
        delays = parsed - timestamps[rows] if absolute else parsed
        too_long = delays > batch_settings.max_delay_ms
        if too_long.any():
            rejections.reject(
                rows[too_long],
                DelayTooLong(
                    f"{name} asks for more than limits.max_delay ({format_duration(batch_settings.max_delay_ms)})"
                ),
            )
        # A rejected delay is not added: near the end of 64 bits the sum would wrap.
        due = np.where(too_long, 0, parsed if absolute else timestamps[rows] + np.where(too_long, 0, parsed))
        # By the job's clock too: a timestamp in microseconds lies tens of thousands of years ahead.
        ahead = due - clock_ms > batch_settings.max_delay_ms + _MOST_SKEW_MS
        if ahead.any():
            rejections.reject(
                rows[ahead],
                DelayTooLong(
                    f"by {name} the message is due more than limits.max_delay "
                    f"({format_duration(batch_settings.max_delay_ms)}) after the job's clock: "
                    "is the record's timestamp in milliseconds?"
                ),
            )
        deliver_at[rows] = due
    ambiguous = np.flatnonzero(header_counts > 1)
    if len(ambiguous):
        known = batch_settings.headers
        names = f"{known.deliver_at}, {known.deliver_after} and {known.delay_level}"
        for row in ambiguous.tolist():
            # Replaces an error of one of the headers.
            rejections.errors[row] = TwoDelays(f"a message may have only one of the headers {names}, and only once")
    return deliver_at


def _parse_distinct(
    rows: Ints, values: pa.Array, parse: Callable[[bytes | None], int], rejections: _Rejections
) -> Ints:
    """Parse each distinct header value once; rows whose value is not valid get 0 and are rejected."""
    encoded = values.dictionary_encode(null_encoding="encode")
    indices = np.asarray(encoded.indices)
    results = np.zeros(len(encoded.dictionary), dtype=np.int64)
    for at, value in enumerate(encoded.dictionary.to_pylist()):
        try:
            results[at] = parse(value)
        except Rejected as error:
            rejections.reject(rows[indices == at], error)
    return np.asarray(results[indices], dtype=np.int64)


def _route(
    headers: _Headers, count: int, batch_settings: BatchSettings, rejections: _Rejections
) -> tuple[list[str], Ints]:
    """Return output topics, and for each row which of these is its own; add errors to `rejections`."""
    names, which = [batch_settings.output], np.zeros(count, dtype=np.int64)
    rows, values = headers.named(batch_settings.headers.deliver_to)
    if not len(rows):
        return names, which
    # Before any error of the values: which of a row's values is parsed first depends on the other records.
    repeated = np.flatnonzero(np.bincount(rows, minlength=count) > 1)
    rejections.reject(repeated, BadDeliverTo(f"a message may have one {batch_settings.headers.deliver_to} header"))
    encoded = values.dictionary_encode(null_encoding="encode")
    indices = np.asarray(encoded.indices)
    # Of a value that is not valid: 0, like a row without the header. The row has an error.
    chosen = np.zeros(len(encoded.dictionary), dtype=np.int64)
    for at, value in enumerate(encoded.dictionary.to_pylist()):
        try:
            names.append(_allowed(parse_deliver_to(value), batch_settings))
            chosen[at] = len(names) - 1
        except Rejected as error:
            rejections.reject(rows[indices == at], error)
    which[rows] = chosen[indices]
    return names, which


def _check_sizes(records: pa.Table, headers: _Headers, max_bytes: int, rejections: _Rejections) -> None:
    """Reject rows whose key, value and headers together have more than `max_bytes` bytes."""
    sizes = _lengths(records.column("key")) + _lengths(records.column("value"))
    np.add.at(sizes, headers.rows, _lengths(headers.keys) + _lengths(headers.values))
    for row in np.flatnonzero(sizes > max_bytes).tolist():
        rejections.reject(
            np.array([row]),
            MessageTooLarge(
                f"key, value and headers have {sizes[row]} bytes; limits.max_message_bytes is {max_bytes}: "
                "send less, or raise that limit"
            ),
        )


def _lengths(column: pa.Array | pa.ChunkedArray) -> Ints:
    return np.asarray(pc.binary_length(column).fill_null(0)).astype(np.int64)


def _allowed(topic: str, batch_settings: BatchSettings) -> str:
    if not batch_settings.allows(topic):
        raise TopicNotAllowed(f"{topic!r} is not among topics.allowed_outputs, or is one of the job's own topics")
    if topic not in batch_settings.partitions:
        raise TopicUnknown(f"{topic!r} is allowed but did not exist when the job started; create it and restart")
    return topic
