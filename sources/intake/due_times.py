"""When each record of a table is due, by its delay header: Delayline's own, or one that a preset reads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from conf.durations import format_duration
from conf.errors import BadSchedule, DelayTooLong, TwoDelays
from sources.intake.header_columns import Headers, Ints, Rejections, only, parse_distinct
from sources.intake.presets import Meaning, Preset, ScheduleHeader
from sources.intake.schedule import level_delay_ms, parse_delay_level, parse_deliver_after, parse_deliver_at
from state.checkpoint.batch_settings import BatchSettings

# How far a publisher's clock may be ahead of the job's.
_MOST_SKEW_MS = 24 * 60 * 60 * 1000


def due_times(
    headers: Headers,
    timestamps: Ints,
    batch_settings: BatchSettings,
    presets: tuple[Preset, ...],
    clock_ms: int,
    rejections: Rejections,
) -> Ints:
    """Return the due time (epoch ms) of each row, and add errors to `rejections`.

    `timestamps` are the records' own (epoch ms), and `clock_ms` is the batch's clock. A record with one of Delayline's
    headers is due by that, whatever the headers say that `presets` read.
    """
    deliver_at = np.minimum(timestamps, clock_ms)

    def decide(header: ScheduleHeader, rows: Ints, values: pa.Array) -> None:
        if len(rows):
            deliver_at[rows] = _due(header, rows, values, timestamps, batch_settings, clock_ms, rejections)

    known = batch_settings.headers
    own = (
        ScheduleHeader(known.deliver_at, Meaning.INSTANT, parse_deliver_at),
        ScheduleHeader(known.deliver_after, Meaning.DELAY, parse_deliver_after),
        ScheduleHeader(known.delay_level, Meaning.LEVEL, parse_delay_level),
    )
    found = [headers.named(header.name) for header in own]
    # Before any value is parsed: then no row has more than one, however often a header is repeated.
    counts = np.bincount(np.concatenate([rows for rows, _ in found]), minlength=len(timestamps))
    names = f"{known.deliver_at}, {known.deliver_after} and {known.delay_level}"
    rejections.reject(
        np.flatnonzero(counts > 1), TwoDelays(f"a message may have only one of the headers {names}, and only once")
    )
    for header, (all_rows, all_values) in zip(own, found, strict=True):
        decide(header, *only(counts[all_rows] == 1, all_rows, all_values))
    for decision in _of_presets(presets, headers, counts > 0, rejections):
        decide(*decision)
    return deliver_at


def _of_presets(
    presets: tuple[Preset, ...], headers: Headers, decided: npt.NDArray[np.bool_], rejections: Rejections
) -> Iterator[tuple[ScheduleHeader, Ints, pa.Array]]:
    """Yield each header that decides when rows are due, with these rows and its values; never rows `decided` before."""
    by_another = np.zeros(len(decided), dtype=bool)
    for preset in presets:
        by_this = np.zeros(len(decided), dtype=bool)
        for header in preset.schedule:
            all_rows, all_values = headers.named(header.name)
            counts = np.bincount(all_rows, minlength=len(decided))
            has_it = (counts > 0) & ~decided & ~by_this
            rejections.reject(
                np.flatnonzero(has_it & (counts > 1)), TwoDelays(f"a message may have {header.name} only once")
            )
            rejections.reject(
                np.flatnonzero(has_it & by_another), TwoDelays("a message may have the headers of one preset only")
            )
            yield header, *only((has_it & (counts == 1))[all_rows], all_rows, all_values)
            by_this |= has_it
        by_another |= by_this
        for name in preset.repeats:
            rows, values = headers.named(name)
            asks = np.asarray(pc.not_equal(values, b"0").fill_null(True)) & ~decided[rows]
            rejections.reject(np.unique(rows[asks]), BadSchedule(f"{name}: schedules that repeat are not supported"))


def _due(
    header: ScheduleHeader,
    rows: Ints,
    values: pa.Array,
    timestamps: Ints,
    batch_settings: BatchSettings,
    clock_ms: int,
    rejections: Rejections,
) -> Ints:
    """Return the due time (epoch ms) of each of `rows` by its value of `header`, and 0 for a rejected one."""

    def parse(value: bytes | None) -> int:
        number = header.parse(value)
        return level_delay_ms(number, batch_settings.levels_ms) if header.meaning is Meaning.LEVEL else number

    parsed = parse_distinct(rows, values, parse, rejections)
    is_instant = header.meaning is Meaning.INSTANT
    delays = parsed - timestamps[rows] if is_instant else parsed
    too_long = delays > batch_settings.max_delay_ms
    longest = format_duration(batch_settings.max_delay_ms)
    if too_long.any():
        error = DelayTooLong(f"{header.name} asks for more than limits.max_delay ({longest})")
        rejections.reject(rows[too_long], error)
    # A rejected delay is not added: near the end of 64 bits the sum would wrap.
    due = np.where(too_long, 0, parsed if is_instant else timestamps[rows] + np.where(too_long, 0, parsed))
    # By the job's clock too: a timestamp in microseconds lies tens of thousands of years ahead.
    ahead = due - clock_ms > batch_settings.max_delay_ms + _MOST_SKEW_MS
    if ahead.any():
        rejections.reject(
            rows[ahead],
            DelayTooLong(
                f"by {header.name} the message is due more than limits.max_delay ({longest}) after the job's clock: "
                "is the record's timestamp in milliseconds?"
            ),
        )
    return np.asarray(due, dtype=np.int64)
