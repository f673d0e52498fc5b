"""When each record of a table is due, by its delay header: Delayline's own, or one that a preset reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.durations import format_duration
from conf.rejected import BadSchedule, BadTimestamp, DelayTooLong, TwoDelays
from sources.intake.envelopes import check_version
from sources.intake.header_columns import Headers, Ints, Rejections, only, parse_distinct
from sources.intake.preset_headers import Meaning, Preset, ScheduleHeader
from sources.intake.schedule import level_delay_ms, parse_delay_level, parse_deliver_after, parse_deliver_at
from state.checkpoint.batch_settings import BatchSettings, DelayPolicy
from state.kinds import Mask

# Values with which a header for more than one delivery has no effect.
_REQUESTS_FOR_NOTHING = pa.array([None, b"", b"0", b'""', b'"0"'], pa.binary())
_ZERO_OR_LESS = r'^\s*"?\s*(0+|-[0-9]+)\s*"?\s*$'
# Epoch ms from September 2001 to the year 2286.
_EPOCH_MS = "^[1-9][0-9]{12}$"
# The days that exist in every year.
_DAYS = "(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31"
_ISO_8601 = rf"^(19[7-9][0-9]|2[0-9]{{3}})-({_DAYS})T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{{1,3}})?Z$"
_MS = "^[1-9][0-9]{0,14}(ms)?$"
# In April 1970. Timestamps in seconds are below it from 1973 to the year 2286.
LEAST_TIMESTAMP_MS = 10**10
# How far a publisher's clock may be ahead of the job's.
MOST_SKEW_MS = 24 * 60 * 60 * 1000


def due_times(
    headers: Headers,
    timestamps: Ints,
    batch_settings: BatchSettings,
    policy: DelayPolicy,
    presets: tuple[Preset, ...],
    clock_ms: int,
    repeats: Mask,
    rejections: Rejections,
) -> tuple[Ints, Mask]:
    """Return the due time (epoch ms) of each row, and which of them a header or a policy has decided.

    Adds errors to `rejections`. A row that `repeats` and is not decided is due by its rule.

    `timestamps` are the records' own (epoch ms), and `clock_ms` is the batch's clock. A record with one of Delayline's
    headers is due by this header, whatever the headers of `presets` say. `policy` and `presets` belong to the records'
    topic.
    """
    rules = _Rules(batch_settings, policy, clock_ms)
    if policy.fixed_ms is not None:
        rows = np.arange(len(timestamps))
        delays = np.full(len(rows), policy.fixed_ms)
        due = rules.due("the policy fixed_delay", False, rows, delays, timestamps, rejections)
        return due, np.ones(len(rows), dtype=bool)
    deliver_at = np.minimum(timestamps, clock_ms)
    decided = np.zeros(len(timestamps), dtype=bool)

    def decide(header: ScheduleHeader, rows: Ints, values: pa.Array) -> None:
        if len(rows):
            parsed = parse_values(rows, values, rules.parser(header), rejections)
            is_instant = header.meaning is Meaning.INSTANT
            deliver_at[rows] = rules.due(header.name, is_instant, rows, parsed, timestamps, rejections)
            decided[rows] = True

    known = batch_settings.headers
    own = (
        ScheduleHeader(known.deliver_at, Meaning.INSTANT, parse_deliver_at),
        ScheduleHeader(known.deliver_after, Meaning.DELAY, parse_deliver_after),
        ScheduleHeader(known.delay_level, Meaning.LEVEL, parse_delay_level),
    )
    found = [headers.named(header.name) for header in own]
    # Before any value is parsed. Afterwards no row has more than one value, however often a header is repeated.
    counts = np.bincount(np.concatenate([rows for rows, _ in found]), minlength=len(timestamps))
    names = f"{known.deliver_at}, {known.deliver_after} and {known.delay_level}"
    rejections.reject(
        np.flatnonzero(counts > 1), TwoDelays(f"a message may have only one of the headers {names}, and only once")
    )
    for header, (all_rows, all_values) in zip(own, found, strict=True):
        decide(header, *only(counts[all_rows] == 1, all_rows, all_values))
    for decision in _of_presets(presets, headers, counts > 0, repeats, rejections):
        decide(*decision)
    if policy.default_ms and not (decided | repeats).all():
        rows = np.flatnonzero(~(decided | repeats))
        delays = np.full(len(rows), policy.default_ms)
        deliver_at[rows] = rules.due("the policy default_delay", False, rows, delays, timestamps, rejections)
    return deliver_at, decided


def parse_values(rows: Ints, values: pa.Array, parse: Callable[[bytes | None], int], rejections: Rejections) -> Ints:
    """Do what `parse_distinct` does, but parse the usual forms of values as columns.

    Such values are seldom repeated, and parsing them one by one took most of the time of accepting a record.
    """
    parsed = np.zeros(len(rows), dtype=np.int64)
    left = np.ones(len(rows), dtype=bool)
    for pattern, parse_column in _USUAL_FORMS.get(parse, ()):
        is_usual = np.asarray(pc.match_substring_regex(values, pattern).fill_null(False))
        if is_usual.any():
            parsed[is_usual] = parse_column(values.filter(pa.array(is_usual)).cast(pa.string())).to_numpy()
            left &= ~is_usual
    if left.any():
        parsed[left] = parse_distinct(*only(left, rows, values), parse, rejections)
    return parsed


def _numbers(texts: pa.Array) -> pa.Array:
    return pc.utf8_rtrim(texts, "ms").cast(pa.int64())


def _instants(texts: pa.Array) -> pa.Array:
    return pc.utf8_rtrim(texts, "Z").cast(pa.timestamp("ms")).cast(pa.int64())


# Forms of values, by the function that parses a single value. Each has a pattern that matches only valid values, and
# the function that parses a column of them.
_USUAL_FORMS: dict[Callable[[bytes | None], int], tuple[tuple[str, Callable[[pa.Array], pa.Array]], ...]] = {
    parse_deliver_at: ((_EPOCH_MS, _numbers), (_ISO_8601, _instants)),
    parse_deliver_after: ((_MS, _numbers),),
}


def _of_presets(
    presets: tuple[Preset, ...], headers: Headers, decided: Mask, repeats: Mask, rejections: Rejections
) -> Iterator[tuple[ScheduleHeader, Ints, pa.Array]]:
    """Yield each header that decides when rows are due, with these rows and its values; never rows `decided` before."""
    by_another = np.zeros(len(decided), dtype=bool)
    for preset in presets:
        by_this = np.zeros(len(decided), dtype=bool)
        has_schedule = np.zeros(len(decided), dtype=bool)
        for header in preset.schedule:
            all_rows, all_values = headers.named(header.name)
            has_schedule[all_rows] = True
            if header.is_appended:
                # Headers are in the order of their records, so a record's last one is followed by another record's.
                all_rows, all_values = only(np.diff(all_rows, append=-1) != 0, all_rows, all_values)
            if header.may_yield:
                requests = ~np.asarray(pc.match_substring_regex(all_values, _ZERO_OR_LESS).fill_null(False))
                all_rows, all_values = only(requests, all_rows, all_values)
            counts = np.bincount(all_rows, minlength=len(decided))
            has_it = (counts > 0) & ~decided & ~by_this
            if header.may_repeat:
                has_it &= ~repeats
            rejections.reject(
                np.flatnonzero(has_it & (counts > 1)), TwoDelays(f"a message may have {header.name} only once")
            )
            rejections.reject(
                np.flatnonzero(has_it & by_another), TwoDelays("a message may have the headers of one preset only")
            )
            yield header, *only((has_it & (counts == 1))[all_rows], all_rows, all_values)
            by_this |= has_it
        by_another |= by_this
        check_version(preset, headers, by_this, rejections)
        for name in preset.refused + preset.refused_with_schedule:
            rows, values = headers.named(name)
            requests = ~np.asarray(pc.is_in(values, _REQUESTS_FOR_NOTHING)) & ~decided[rows]
            if name in preset.refused_with_schedule:
                requests &= has_schedule[rows]
            if preset.repeat is not None and name in preset.repeat.headers:
                requests &= ~repeats[rows]
            rejections.reject(
                np.unique(rows[requests]), BadSchedule(f"{name} asks for a feature that Delayline does not have")
            )


@dataclass(frozen=True)
class _Rules:
    """The rules for the due times of a table."""

    batch_settings: BatchSettings
    policy: DelayPolicy
    clock_ms: int

    def parser(self, header: ScheduleHeader) -> Callable[[bytes | None], int]:
        """Return a function from a value of `header` to the instant (epoch ms) or the delay (ms) that it means."""
        if header.meaning is not Meaning.LEVEL:
            return header.parse
        return lambda value: level_delay_ms(header.parse(value), self.batch_settings.levels_ms)

    def due(
        self, asked_by: str, is_instant: bool, rows: Ints, parsed: Ints, timestamps: Ints, rejections: Rejections
    ) -> Ints:
        """Return the due time (epoch ms) of each of `rows`, and 0 for a rejected one.

        `parsed` are instants (epoch ms) or delays (ms). `timestamps` has all rows, and `asked_by` is for errors.
        """
        most_ms = self.policy.most_ms
        longest = f"the policy max_delay ({format_duration(most_ms)})"
        # An instant is clamped after the later of both clocks: otherwise a record with an old stamp would be early.
        since = np.maximum(timestamps[rows], self.clock_ms) if is_instant and self.policy.clamps else timestamps[rows]
        delays = parsed - since if is_instant else parsed
        if not is_instant:
            no_stamp = timestamps[rows] < LEAST_TIMESTAMP_MS
            rejections.reject(
                rows[no_stamp],
                BadTimestamp(
                    f"{asked_by} counts from the record's timestamp, which lies before May 1970: is it in milliseconds?"
                ),
            )
        too_long = delays > most_ms
        if too_long.any() and not self.policy.clamps:
            rejections.reject(rows[too_long], DelayTooLong(f"{asked_by} asks for more than {longest}"))
        # A rejected delay is not added: near the end of 64 bits the sum would wrap.
        allowed = since + np.where(too_long, most_ms if self.policy.clamps else 0, delays)
        due = np.where(too_long & (not self.policy.clamps), 0, allowed)
        # Checked by the job's clock too: a timestamp in microseconds lies tens of thousands of years ahead.
        ahead = due - self.clock_ms > most_ms + MOST_SKEW_MS
        if ahead.any():
            rejections.reject(
                rows[ahead],
                DelayTooLong(
                    f"by {asked_by} the message is due more than {longest} after the job's clock: "
                    "is the record's timestamp in milliseconds?"
                ),
            )
        return np.asarray(due, dtype=np.int64)
