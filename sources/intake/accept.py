"""Accepting records: a table of Kafka records becomes a table of scheduled, routed messages.

Vectorised over a table at a time; a header's text is parsed once for each distinct value. Pure: the batch's
clock comes in as a number.
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


@dataclass
class _Verdicts:
    """The errors found so far, by row. The first one found for a row stands."""

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
    # Not `list_parent_indices`: it counts what lies under a null list too, which `flatten` leaves out.
    rows = np.repeat(np.arange(len(headers)), np.asarray(pc.list_value_length(headers).fill_null(0)))
    return _Headers(rows, pc.struct_field(flat, 0), pc.struct_field(flat, 1))


def accept(records: pa.Table, batch_settings: BatchSettings, clock_ms: int) -> pa.Table:
    """Return `records` as messages of `MESSAGE_SCHEMA`, in the same order; none is dropped.

    `records` has key, value, headers, topic, partition, offset, timestamp_ms. `clock_ms` is the batch's own
    time. A record that cannot be scheduled comes out addressed to the dead-letter topic, with its error.
    """
    headers = _flatten(_one_array(records.column("headers").cast(HEADERS)))
    # A record can carry no timestamp (-1): it counts as written when its batch began.
    with_format = records.column("timestamp_ms").to_numpy().astype(np.int64)
    timestamps = np.where(with_format < 0, clock_ms, with_format)
    verdicts = _Verdicts()
    deliver_at = _schedule(headers, timestamps, batch_settings, clock_ms, verdicts)
    topics = _route(headers, len(timestamps), batch_settings, verdicts)
    _check_sizes(records, headers, batch_settings.max_message_bytes, verdicts)
    codes: list[str | None] = [None] * len(timestamps)
    texts: list[str | None] = [None] * len(timestamps)
    for row, error in verdicts.errors.items():
        codes[row], texts[row] = error.code, str(error)
        topics[row] = batch_settings.dead_letter
        deliver_at[row] = min(timestamps[row], clock_ms)
    names, encoded = np.unique(topics.astype(str), return_inverse=True)
    counts = np.array([batch_settings.partitions[name] for name in names], dtype=np.int64)[encoded]
    keys = _one_array(records.column("key"))
    input_partitions = records.column("partition").to_numpy().astype(np.int64)
    columns = {
        "deliver_at_ms": deliver_at,
        "topic": records.column("topic"),
        "partition": records.column("partition"),
        "offset": records.column("offset"),
        "timestamp_ms": timestamps,
        "output_topic": pa.array(names).take(pa.array(encoded)),
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
    headers: _Headers, timestamps: Ints, batch_settings: BatchSettings, clock_ms: int, verdicts: _Verdicts
) -> Ints:
    """Return deliver_at for each row, and put errors into `verdicts`."""
    deliver_at = np.minimum(timestamps, clock_ms)
    seen = np.zeros(len(timestamps), dtype=np.int64)
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
        np.add.at(seen, rows, 1)
        parsed = _parse_distinct(rows, values, parse, verdicts)
        delays = parsed - timestamps[rows] if absolute else parsed
        too_long = delays > batch_settings.max_delay_ms
        if too_long.any():
            verdicts.reject(
                rows[too_long],
                DelayTooLong(
                    f"{name} asks for more than limits.max_delay ({format_duration(batch_settings.max_delay_ms)})"
                ),
            )
        # A delay that is refused is not added up: near the end of 64 bits the sum would wrap.
        deliver_at[rows] = np.where(
            too_long, 0, parsed if absolute else timestamps[rows] + np.where(too_long, 0, parsed)
        )
    twice = np.flatnonzero(seen > 1)
    if len(twice):
        known = batch_settings.headers
        names = f"{known.deliver_at}, {known.deliver_after} and {known.delay_level}"
        for row in twice.tolist():
            verdicts.errors[row] = TwoDelays(f"a message takes one delay header, once: {names} exclude each other")
    return deliver_at


def _parse_distinct(rows: Ints, values: pa.Array, parse: Callable[[bytes | None], int], verdicts: _Verdicts) -> Ints:
    """Parse each distinct header value once; rows whose value is unreadable get 0 and a verdict."""
    encoded = values.dictionary_encode(null_encoding="encode")
    indices = np.asarray(encoded.indices)
    results = np.zeros(len(encoded.dictionary), dtype=np.int64)
    for at, value in enumerate(encoded.dictionary.to_pylist()):
        try:
            results[at] = parse(value)
        except Rejected as error:
            verdicts.reject(rows[indices == at], error)
    return np.asarray(results[indices], dtype=np.int64)


def _route(
    headers: _Headers, count: int, batch_settings: BatchSettings, verdicts: _Verdicts
) -> npt.NDArray[np.object_]:
    """Return the output topic of each row, and put errors into `verdicts`."""
    topics = np.full(count, batch_settings.output, dtype=object)
    rows, values = headers.named(batch_settings.headers.deliver_to)
    if not len(rows):
        return topics
    # Told before what is wrong with either value, or the one told would depend on the records around.
    repeated = np.flatnonzero(np.bincount(rows, minlength=count) > 1)
    verdicts.reject(repeated, BadDeliverTo(f"a message takes one {batch_settings.headers.deliver_to} header"))
    encoded = values.dictionary_encode(null_encoding="encode")
    indices = np.asarray(encoded.indices)
    for at, value in enumerate(encoded.dictionary.to_pylist()):
        chosen = rows[indices == at]
        try:
            topics[chosen] = _allowed(parse_deliver_to(value), batch_settings)
        except Rejected as error:
            verdicts.reject(chosen, error)
    return topics


def _check_sizes(records: pa.Table, headers: _Headers, most: int, verdicts: _Verdicts) -> None:
    """Reject rows whose key, value and headers have together more than `most` bytes."""
    sizes = _lengths(records.column("key")) + _lengths(records.column("value"))
    np.add.at(sizes, headers.rows, _lengths(headers.keys) + _lengths(headers.values))
    for row in np.flatnonzero(sizes > most).tolist():
        verdicts.reject(
            np.array([row]),
            MessageTooLarge(
                f"key, value and headers have {sizes[row]} bytes; limits.max_message_bytes is {most}: "
                "send less, or raise that limit"
            ),
        )


def _lengths(column: pa.Array | pa.ChunkedArray) -> Ints:
    return np.asarray(pc.binary_length(column).fill_null(0)).astype(np.int64)


def _allowed(topic: str, batch_settings: BatchSettings) -> str:
    if not batch_settings.allows(topic):
        raise TopicNotAllowed(f"{topic!r} is not among topics.allowed_outputs, or is a topic of the job's own")
    if topic not in batch_settings.partitions:
        raise TopicUnknown(f"{topic!r} is allowed but did not exist when the job started; create it and restart")
    return topic
