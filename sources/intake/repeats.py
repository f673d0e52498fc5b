"""Accepting messages that repeat: their rules, the due time of the first occurrence, and the headers while it waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from conf.durations import format_duration
from conf.rejected import BadRepeat, BadTimestamp, DelayTooLong, Rejected
from sources.intake.due_times import LEAST_TIMESTAMP_MS, MOST_SKEW_MS
from sources.intake.header_columns import Headers, Ints, Rejections
from sources.intake.preset_headers import Preset, Repeat
from state.checkpoint.batch_settings import DelayPolicy
from state.header_values import header_text, parse_instant, whole_number
from state.kinds import Mask
from state.message import HEADERS
from state.names import named
from state.repeats.rule import parse_rule
from state.repeats.schedule import (
    ALL,
    COUNT_HEADER,
    MISSED,
    MISSED_HEADER,
    NUMBER_HEADER,
    ONE,
    REPEAT_HEADER,
    REPEAT_HEADERS,
    SCHEDULE_HEADER,
    UNTIL_HEADER,
    ZONE_HEADER,
    Occurrence,
    Schedule,
)
from state.repeats.zones import zone_named

_MOST_COUNT = 2**31
# More of them before the record's timestamp are taken for an error of its publisher. An outage holds back later ones.
_MOST_BEFORE = 1_000
_OFF = f"{REPEAT_HEADER} has no meaning on this topic: the policy repeats is off"


@dataclass
class Repeats:
    """The messages of a table that repeat, by row: their schedules, still without names.

    `left_out` are the names of headers that are removed from these messages.
    """

    count: int
    schedules: dict[int, Schedule] = field(default_factory=dict)
    left_out: tuple[str, ...] = (*REPEAT_HEADERS, SCHEDULE_HEADER, NUMBER_HEADER)

    @property
    def rows(self) -> Mask:
        """Which rows repeat."""
        found: npt.NDArray[np.bool_] = np.zeros(self.count, dtype=bool)
        found[list(self.schedules)] = True
        return found

    def first_due(
        self,
        dues: Ints,
        decided: Mask,
        timestamps: Ints,
        policy: DelayPolicy,
        clock_ms: int,
        rejections: Rejections,
    ) -> Ints:
        """Return `dues`, with the instant of the first occurrence for each message that repeats, epoch ms.

        With an interval, this is when the message is due, or an interval after its timestamp if no header or policy has
        `decided` that. With a cron expression, it is the first instant then or later, or else after the timestamp.
        """
        dues = dues.copy()
        for row, schedule in self.schedules.items():
            if row in rejections.errors:
                continue
            try:
                published_ms = int(timestamps[row])
                start_ms = int(dues[row]) if decided[row] else None
                dues[row] = _first_ms(schedule, start_ms, published_ms, policy, clock_ms)
            except Rejected as error:
                rejections.reject(np.array([row]), error)
        return dues

    def kept_headers(
        self, all_headers: pa.Array, topic: str, names: pa.Array, keeps_names: bool, rejected: Mapping[int, Rejected]
    ) -> tuple[pa.Array, Ints]:
        """Return the headers of all rows, with the headers of schedules as they wait, and the rows with schedules.

        `names` has the name of each message on the input `topic`, or null.
        """
        own = [row for row in self.schedules if row not in rejected]
        if not own:
            return all_headers, np.zeros(0, dtype=np.int64)
        rows = np.array(own, dtype=np.int64)
        changed = []
        given = zip(
            own, all_headers.take(pa.array(rows)).to_pylist(), names.take(pa.array(rows)).to_pylist(), strict=True
        )
        for row, headers, name in given:
            schedule = self.schedules[row]
            if name is not None:
                schedule = replace(schedule, name=named(topic, name), keeps_name=keeps_names)
            left = [each for each in headers or [] if each["key"] not in self.left_out]
            left.append({"key": SCHEDULE_HEADER, "value": schedule.to_bytes()})
            left.append({"key": NUMBER_HEADER, "value": b"1"})
            changed.append(left)
        places = np.arange(len(all_headers))
        places[rows] = len(all_headers) + np.arange(len(rows))
        both = pa.concat_arrays([all_headers.cast(HEADERS), pa.array(changed, HEADERS)])
        return both.take(pa.array(places)), rows


def find_repeats(
    headers: Headers, count: int, policy: DelayPolicy, presets: Sequence[Preset], rejections: Rejections
) -> Repeats:
    """Return which of `count` records repeat, by Delayline's headers or else the headers of `presets`."""
    found = Repeats(count)
    if {*REPEAT_HEADERS} & headers.names:
        _own(found, headers, policy, rejections)
    for preset in presets:
        if preset.repeat is not None and policy.repeats:
            _of_preset(found, preset, preset.repeat, headers, policy, rejections)
    if found.schedules and policy.expiry_header:
        rows, _ = headers.named(policy.expiry_header)
        both = rows[found.rows[rows]]
        error = BadRepeat(f"a message that repeats does not expire by {policy.expiry_header}: write {UNTIL_HEADER}")
        rejections.reject(both, error)
    return found


def parse_schedule(values: Mapping[str, bytes | None]) -> Schedule:
    """Return the schedule in the values of `REPEAT_HEADERS`. Raises BadRepeat."""
    if REPEAT_HEADER not in values:
        raise BadRepeat(f"{next(iter(values))} has no meaning without {REPEAT_HEADER}")
    at = REPEAT_HEADER
    try:
        zone = None
        if ZONE_HEADER in values:
            at = ZONE_HEADER
            zone = header_text(values[ZONE_HEADER])
            zone_named(zone)
        at = REPEAT_HEADER
        rule = parse_rule(header_text(values[REPEAT_HEADER]), zone)
        until_ms, most, missed = None, None, ONE
        if UNTIL_HEADER in values:
            at = UNTIL_HEADER
            until_ms = parse_instant(header_text(values[UNTIL_HEADER]))
        if COUNT_HEADER in values:
            at = COUNT_HEADER
            most = whole_number(header_text(values[COUNT_HEADER]), _MOST_COUNT)
            if not most:
                raise ValueError("0 occurrences are none")
        if MISSED_HEADER in values:
            at = MISSED_HEADER
            missed = header_text(values[MISSED_HEADER])
            if missed not in MISSED:
                raise ValueError(f"it is {', '.join(MISSED[:-1])} or {MISSED[-1]}")
    except ValueError as problem:
        raise BadRepeat(f"{at}: {problem}") from None
    return Schedule(rule, until_ms, most, missed)


def first_instant(schedule: Schedule, start_ms: int | None, published_ms: int) -> int:
    """Return the instant of the first occurrence, epoch ms. `start_ms` is when the message is due, if that is decided.

    Raises BadRepeat if the schedule ends before.
    """
    rule = schedule.rule
    if start_ms is None:
        first_ms = rule.after(published_ms)
    else:
        first_ms = start_ms if rule.interval_ms is not None else rule.after(start_ms - 1)
    if first_ms is None or (schedule.until_ms is not None and first_ms > schedule.until_ms):
        raise BadRepeat(f"{rule} has no occurrence before it ends")
    return first_ms


# The values of the headers of a schedule, by header.
_Values = dict[str, bytes | None]


def _own(found: Repeats, headers: Headers, policy: DelayPolicy, rejections: Rejections) -> None:
    values: dict[int, _Values] = {}
    for name in REPEAT_HEADERS:
        rows, contents = headers.single(name, BadRepeat, rejections)
        for row, value in zip(rows.tolist(), contents.to_pylist(), strict=True):
            values.setdefault(row, {})[name] = value
    _add(found, values, parse_schedule, policy, rejections)


def _of_preset(
    found: Repeats, preset: Preset, repeat: Repeat, headers: Headers, policy: DelayPolicy, rejections: Rejections
) -> None:
    values: dict[int, _Values] = {}
    for name in repeat.headers:
        rows, contents = headers.named(name)
        for row, value in zip(rows.tolist(), contents.to_pylist(), strict=True):
            if row not in found.schedules:
                values.setdefault(row, {})[name] = value

    def parse(own: _Values) -> Schedule | None:
        try:
            return repeat.parse(own)
        except ValueError as problem:
            raise BadRepeat(f"a schedule of {preset.name}: {problem}") from None

    _add(found, values, parse, policy, rejections)
    found.left_out = (*found.left_out, *repeat.headers)


def _add(
    found: Repeats,
    values: Mapping[int, _Values],
    parse: Callable[[_Values], Schedule | None],
    policy: DelayPolicy,
    rejections: Rejections,
) -> None:
    """Add the schedule of each row, by the values of its headers, or reject the row. Equal values are parsed once."""
    known: dict[tuple[tuple[str, bytes | None], ...], Schedule | Rejected | None] = {}
    for row, own in values.items():
        if row in rejections.errors:
            continue
        key = tuple(own.items())
        if key not in known:
            try:
                schedule = parse(own)
                known[key] = None if schedule is None else _allowed(schedule, policy)
            except Rejected as error:
                known[key] = error
        outcome = known[key]
        if isinstance(outcome, Rejected):
            rejections.reject(np.array([row]), outcome)
        elif outcome is not None:
            found.schedules[row] = outcome


def _allowed(schedule: Schedule, policy: DelayPolicy) -> Schedule:
    """Return `schedule`. Raises BadRepeat if the policy does not allow it."""
    if not policy.repeats:
        raise BadRepeat(_OFF)
    if schedule.rule.shortest_ms < policy.repeat_ms:
        least, own = format_duration(policy.repeat_ms), format_duration(schedule.rule.shortest_ms)
        raise BadRepeat(f"{schedule.rule} may come after {own}; the policy repeat_interval is {least}")
    return schedule


def _first_ms(schedule: Schedule, start_ms: int | None, published_ms: int, policy: DelayPolicy, clock_ms: int) -> int:
    """Return the instant of the first occurrence, epoch ms. `start_ms` is when the message is due, if that is decided.

    Raises BadRepeat without an occurrence, BadTimestamp and DelayTooLong.
    """
    rule, most_ms = schedule.rule, policy.most_ms
    longest = format_duration(most_ms)
    if start_ms is None and published_ms < LEAST_TIMESTAMP_MS:
        raise BadTimestamp("the schedule begins at the record's timestamp, which lies before May 1970: is it in ms?")
    if rule.interval_ms is not None and rule.interval_ms > most_ms:
        raise DelayTooLong(f"{rule} is more than the longest delay ({longest})")
    first_ms = first_instant(schedule, start_ms, published_ms)
    if schedule.missed == ALL and _has_more_before(schedule, first_ms, published_ms):
        raise BadRepeat(f"more than {_MOST_BEFORE} occurrences of {rule} lie before the record's timestamp")
    # A delay that a policy has shortened is not refused: an expression's first instant may come a little later.
    from_ms, latest_ms = published_ms, clock_ms + MOST_SKEW_MS
    if policy.clamps and start_ms is not None:
        from_ms, latest_ms = max(published_ms, start_ms), max(latest_ms, start_ms)
    if first_ms > min(from_ms, latest_ms) + most_ms:
        raise DelayTooLong(f"the first occurrence of {rule} comes after more than the longest delay ({longest})")
    return first_ms


def _has_more_before(schedule: Schedule, first_ms: int, published_ms: int) -> bool:
    """Return whether more than `_MOST_BEFORE` occurrences from `first_ms` on come before `published_ms` (epoch ms)."""
    if (published_ms - first_ms) // schedule.rule.shortest_ms < _MOST_BEFORE:
        return False
    # The instants of a yearly rule lie far behind that. Searching for many of them takes long.
    before = takewhile(lambda each: each.at_ms < published_ms, schedule.coming(Occurrence(1, first_ms), False, 0))
    return sum(1 for _ in islice(before, _MOST_BEFORE + 1)) > _MOST_BEFORE
