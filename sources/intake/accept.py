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
from conf.settings import MOST_MESSAGE_BYTES
from sources.intake.partitioner import partitions_for
from sources.intake.schedule import (
    level_delay_ms,
    parse_delay_level,
    parse_deliver_after,
    parse_deliver_at,
    parse_deliver_to,
)
from sources.intake.stubs import header_counts, sizes, with_stubs
from state.checkpoint.batch_settings import BatchSettings
from state.message import HEADERS, MESSAGE_SCHEMA

Ints = npt.NDArray[np.int64]

# How far a publisher's clock may be ahead of the job's.
_MOST_SKEW_MS = 24 * 60 * 60 * 1000
# A subscriber with librdkafka sees none of a record's headers if there are more than 100,000.
_MOST_HEADERS = 50_000


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

    `records` has the columns of `sources.intake.kafka_reader`. `clock_ms` is the batch's clock, epoch ms. A record that
    cannot be scheduled is addressed to the dead-letter topic, with its error; as a stub if it is larger than both a
    message and a dead letter may be.
    """
    records = records.set_column(
        records.schema.get_field_index("headers"), "headers", _one_array(records.column("headers").cast(HEADERS))
    )
    headers = _flatten(_one_array(records.column("headers")))
    # A record without a timestamp (-1) counts as written when its batch began.
    published = records.column("timestamp_ms").to_numpy().astype(np.int64)
    timestamps = np.where(published < 0, clock_ms, published)
    rejections = _Rejections()
    deliver_at = _schedule(headers, timestamps, batch_settings, clock_ms, rejections)
    names, which = _route(headers, len(timestamps), batch_settings, rejections)
    carried = _check_sizes(records, batch_settings, rejections)
    codes: list[str | None] = [None] * len(timestamps)
    texts: list[str | None] = [None] * len(timestamps)
    for row, error in rejections.errors.items():
        codes[row], texts[row] = error.code, str(error)
        which[row] = len(names)
        deliver_at[row] = min(timestamps[row], clock_ms)
    names = [*names, batch_settings.dead_letter]
    counts = np.array([batch_settings.partitions[name] for name in names], dtype=np.int64)[which]
    keys = _one_array(carried.column("key"))
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
        "value": carried.column("value"),
        "headers": carried.column("headers"),
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
    known = batch_settings.headers
    forms: list[tuple[str, Callable[[bytes | None], int], bool]] = [
        (known.deliver_at, parse_deliver_at, True),
        (known.deliver_after, parse_deliver_after, False),
        (known.delay_level, lambda v: level_delay_ms(parse_delay_level(v), batch_settings.levels_ms), False),
    ]
    found = [headers.named(name) for name, _, _ in forms]
    # Before any value is parsed: then no row has more than one, however often a header is repeated.
    counts = np.bincount(np.concatenate([rows for rows, _ in found]), minlength=len(timestamps))
    names = f"{known.deliver_at}, {known.deliver_after} and {known.delay_level}"
    rejections.reject(
        np.flatnonzero(counts > 1), TwoDelays(f"a message may have only one of the headers {names}, and only once")
    )
    for (name, parse, absolute), (all_rows, all_values) in zip(forms, found, strict=True):
        rows, values = _only(counts[all_rows] == 1, all_rows, all_values)
        if not len(rows):
            continue
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
    return deliver_at


def _only(mask: npt.NDArray[np.bool_], rows: Ints, values: pa.Array) -> tuple[Ints, pa.Array]:
    return (rows, values) if mask.all() else (rows[mask], values.filter(pa.array(mask)))


def _parse_distinct(
    rows: Ints, values: pa.Array, parse: Callable[[bytes | None], int], rejections: _Rejections
) -> Ints:
    """Parse each distinct header value once; rows whose value is not valid get 0 and are rejected.

    The time grows with the number of values alone, however many of them are not valid.
    """
    encoded = values.dictionary_encode(null_encoding="encode")
    indices = np.asarray(encoded.indices)
    results = np.zeros(len(encoded.dictionary), dtype=np.int64)
    errors: dict[int, Rejected] = {}
    for at, value in enumerate(encoded.dictionary.to_pylist()):
        try:
            results[at] = parse(value)
        except Rejected as error:
            errors[at] = error
    if errors:
        places = np.argsort(indices, kind="stable")
        bounds = np.searchsorted(indices[places], np.arange(len(results) + 1)).tolist()
        for at, rejected in errors.items():
            rejections.reject(rows[places[bounds[at] : bounds[at + 1]]], rejected)
    return np.asarray(results[indices], dtype=np.int64)


def _route(
    headers: _Headers, count: int, batch_settings: BatchSettings, rejections: _Rejections
) -> tuple[list[str], Ints]:
    """Return output topics, and for each row which of these is its own; add errors to `rejections`."""
    names, which = [batch_settings.output], np.zeros(count, dtype=np.int64)
    all_rows, all_values = headers.named(batch_settings.headers.deliver_to)
    if not len(all_rows):
        return names, which
    counts = np.bincount(all_rows, minlength=count)
    repeated = BadDeliverTo(f"a message may have one {batch_settings.headers.deliver_to} header")
    rejections.reject(np.flatnonzero(counts > 1), repeated)
    rows, values = _only(counts[all_rows] == 1, all_rows, all_values)

    def number_of(value: bytes | None) -> int:
        names.append(_allowed(parse_deliver_to(value), batch_settings))
        return len(names) - 1

    which[rows] = _parse_distinct(rows, values, number_of, rejections)
    return names, which


def _check_sizes(records: pa.Table, batch_settings: BatchSettings, rejections: _Rejections) -> pa.Table:
    """Reject rows that are too large; return key, value and headers of all rows, with stubs for the largest."""
    counts = header_counts(records)
    nbytes = sizes(records, counts)
    most = min(batch_settings.max_message_bytes, MOST_MESSAGE_BYTES)
    for row in np.flatnonzero(nbytes > most).tolist():
        rejections.reject(
            np.array([row]),
            MessageTooLarge(
                f"key, value and headers have {nbytes[row]} bytes, each header counting 8 more; "
                f"limits.max_message_bytes is {most}: send less, or raise that limit"
            ),
        )
    has_too_many = counts > _MOST_HEADERS
    rejections.reject(
        np.flatnonzero(has_too_many), MessageTooLarge(f"a message may have {_MOST_HEADERS} headers: send fewer")
    )
    carried = max(most, min(batch_settings.dead_letter_bytes, MOST_MESSAGE_BYTES))
    return with_stubs(records, np.flatnonzero((nbytes > carried) | has_too_many))


def _allowed(topic: str, batch_settings: BatchSettings) -> str:
    if not batch_settings.allows(topic):
        raise TopicNotAllowed(f"{topic!r} is not among topics.allowed_outputs, or is one of the job's own topics")
    if topic not in batch_settings.partitions:
        raise TopicUnknown(f"{topic!r} is allowed but did not exist when the job started; create it and restart")
    return topic
