"""The checks of messages that repeat: which occurrences had to come, by a calculation of its own.

It goes through the minutes, or seconds, of a clock on the wall one by one, and shares nothing with the service's rules.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import count, pairwise, takewhile
from zoneinfo import ZoneInfo

from streaming.judge.record import Header, Received

_NUMBER_HEADER, DUE_HEADER = "delayline-occurrence", "delayline-deliver-at"
_EPOCH, _HOUR_MS = datetime(1970, 1, 1), 3_600_000
_MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
_DAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
_BOUNDS = ((0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


@dataclass(frozen=True)
class Repeated:
    """A message that repeats, as it was published.

    - `id`: `topic/partition/offset` of its record
    - `first_ms`: when its first occurrence is due, epoch ms
    - `every_ms`: its interval; or else `cron`, an expression of minutes, in `zone`
    - `most`: how many occurrences come, at the most
    - `until_ms`: none comes later, epoch ms
    - `missed`: what comes of those that are missed: "one", "all" or "none"
    - `headers`: those that it is delivered with, besides the service's own
    - `superseded`: whether another message may have taken its name
    - `name`: its name, if it has one
    - `known_ms`: when the job had read it, epoch ms: what was due before may count as missed
    - `staged_below_ms`: below which the batches before the one that accepted it had staged, epoch ms; None: unknown
    """

    id: str
    first_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    output: str
    every_ms: int | None = None
    cron: str = ""
    zone: str = "UTC"
    most: int | None = None
    until_ms: int | None = None
    missed: str = "one"
    superseded: bool = False
    name: str = ""
    known_ms: int = 0
    staged_below_ms: int | None = None

    def instants(self, end_ms: int) -> Iterator[int]:
        """Yield the instants of its rule from the first one on and before `end_ms`, epoch ms."""
        end_ms = end_ms if self.until_ms is None else min(end_ms, self.until_ms + 1)
        if self.every_ms is not None:
            yield from takewhile(lambda at_ms: at_ms < end_ms, count(self.first_ms, self.every_ms))
        else:
            start_hour, end_hour = self.first_ms // _HOUR_MS, -(-end_ms // _HOUR_MS)
            several = _instants_of_hours(self.cron, self.zone, start_hour, end_hour)
            yield from (at_ms for at_ms in several if self.first_ms <= at_ms < end_ms)


@lru_cache(maxsize=1_000)
def _instants_of_hours(cron: str, zone: str, start_hour: int, end_hour: int) -> tuple[int, ...]:
    """Return `instants_of` the hours of the epoch. Many messages have the same expression."""
    return tuple(instants_of(cron, zone, start_hour * _HOUR_MS, end_hour * _HOUR_MS))


def instants_of(cron: str, zone: str, start_ms: int, end_ms: int) -> Iterator[int]:
    """Yield the instants of an expression of five or six fields from `start_ms` on and before `end_ms`, epoch ms.

    A time that the clock skips comes when it is set forward; one that it shows twice comes first. But with `*` for the
    hour, each minute counts that the clock shows.
    """
    fields = cron.upper().split()
    step_s = 60 if len(fields) == 5 else 1
    fields = ["0", *fields] if len(fields) == 5 else fields
    sets = [_values(field, *bounds) for field, bounds in zip(fields, _BOUNDS, strict=True)]
    either = not (fields[3].startswith("*") or fields[5].startswith("*"))
    follows_clock, tz = fields[2] == "*", ZoneInfo(zone)

    def comes(wall: datetime) -> bool:
        days = (wall.day in sets[3], wall.isoweekday() % 7 in {each % 7 for each in sets[5]})
        return (
            all(own in each for own, each in zip((wall.second, wall.minute, wall.hour), sets, strict=False))
            and wall.month in sets[4]
            and (any(days) if either else all(days))
        )

    shown_until: datetime | None = None
    at_s = -(-start_ms // 1000 // step_s) * step_s - 2 * 86_400
    while at_s * 1000 < end_ms:
        wall = (_EPOCH + timedelta(seconds=at_s)).replace(tzinfo=UTC).astimezone(tz).replace(tzinfo=None, fold=0)
        if shown_until is None or follows_clock:
            found = comes(wall)
        else:
            # All times since the last one that were shown or skipped; none if the clock was set back.
            steps = (wall - shown_until) // timedelta(seconds=step_s)
            found = any(comes(shown_until + timedelta(seconds=step_s * each)) for each in range(1, steps + 1))
        shown_until = wall if shown_until is None else max(shown_until, wall)
        if found and at_s * 1000 >= start_ms:
            yield at_s * 1000
        at_s += step_s


def _values(field: str, lowest: int, highest: int) -> set[int]:
    found: set[int] = set()
    for term in field.split(","):
        base, _, step = term.partition("/")
        if base == "*":
            first, last = lowest, highest
        else:
            start, _, end = base.partition("-")
            first = _value(start)
            last = _value(end) if end else (highest if step else first)
        found |= set(range(first, last + 1, int(step or 1)))
    return found


def _value(text: str) -> int:
    if text in _MONTHS:
        return _MONTHS.index(text) + 1
    return _DAYS.index(text) if text in _DAYS else int(text)


def schedule_problems(
    repeated: Mapping[str, Repeated],
    received: Iterable[Received],
    ended_at: Mapping[str, int | None],
    complete_until_ms: int,
    was_down: Callable[[int, int], bool],
    horizon_ms: int = 60_000,
) -> Iterator[str]:
    """Yield what is wrong with the occurrences of `repeated` messages, by id, a sentence each.

    Args:
        repeated: the messages. Among messages with a name, the older ones come first.
        received: all records of output topics.
        ended_at: of those that were cancelled the number of the last occurrence, as far as it was answered.
        complete_until_ms: each occurrence that is due before must have come, epoch ms.
        was_down: returns whether the job was down at some time between two instants, epoch ms.
        horizon_ms: by how much an occurrence is late if it is missed (`clock.horizon`).
    """
    by_id: dict[str, list[Received]] = {}
    for record in received:
        if record.id in repeated:
            by_id.setdefault(record.id, []).append(record)
    # Until when messages have come, by name and expression: a new one with both begins after what was staged before it.
    until_ms: dict[tuple[str, str, str], int] = {}
    for identity, message in repeated.items():
        records = by_id.get(identity, [])
        rule = (message.name, message.cron, message.zone)
        before_ms = until_ms.get(rule, -1) if message.name and message.cron else -1
        for problem in _problems(message, records, ended_at, complete_until_ms, was_down, horizon_ms, before_ms):
            yield f"{identity}: {problem}"
        until_ms[rule] = max([before_ms, *map(_due_ms, records)])


def _due_ms(record: Received) -> int:
    return int(record.last(DUE_HEADER) or -1)


def _problems(
    message: Repeated,
    records: list[Received],
    ended_at: Mapping[str, int | None],
    complete_until_ms: int,
    was_down: Callable[[int, int], bool],
    horizon_ms: int,
    before_ms: int,
) -> Iterator[str]:
    numbers = [int(record.last(_NUMBER_HEADER) or -1) for record in records]
    dues = [_due_ms(record) for record in records]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"its occurrences came as {_runs(numbers)}"
        return
    for record, due_ms in zip(records, dues, strict=True):
        if record.received_ms < due_ms:
            yield f"it came at {record.received_ms}, before {due_ms}"
        expected = (message.output, message.key, message.value)
        if (record.topic, record.key, record.value) != expected:
            yield f"an occurrence has {(record.topic, record.key, record.value)}, and not {expected}"
        own = tuple(each for each in record.headers if not each[0].startswith("delayline-"))
        if own != message.headers:
            yield f"an occurrence has the headers {own}, and not {message.headers}"
    if message.most is not None and len(records) > message.most:
        yield f"it came {len(records)} times, and may come {message.most} times"
    instants = list(message.instants(max([complete_until_ms, *(due_ms + 1 for due_ms in dues)])))
    places = {at_ms: place for place, at_ms in enumerate(instants)}
    if off := [due_ms for due_ms in dues if due_ms not in places]:
        yield f"it came at {off[:3]}, which its rule does not have"
        return
    for (before, after), (first, second) in zip(pairwise(records), pairwise(dues), strict=True):
        # The instants before this had passed when the first one was staged late; or when the second one was staged, if
        # none comes late.
        passed_ms = after.received_ms if message.missed == "none" else before.received_ms
        between = instants[places[first] + 1 : places[second]]
        # The one that waited was late: the first one; or the next one, if none comes late.
        is_late = before.received_ms > first + horizon_ms
        is_late |= message.missed == "none" and bool(between) and after.received_ms > between[0] + horizon_ms
        for skipped in between:
            may_miss = is_late and (skipped < message.known_ms or was_down(first, second))
            if message.missed == "all" or skipped > passed_ms or not may_miss:
                yield f"nothing came at {skipped}, between {first} and {second}"
    # If the one before had ended, it begins with its first instant all the same.
    firsts = {*instants[:1], *[at_ms for at_ms in instants if at_ms > before_ms][:1]}
    if dues and dues[0] not in firsts:
        yield f"it came at {dues[0]} at first, and not at {max(firsts)}"
    if message.id in ended_at:
        last = ended_at[message.id]
        if last is not None and len(records) > last:
            yield f"it came {len(records)} times, and was answered to have come {last} times"
        if last is None or len(records) >= last:
            return
    left = [at_ms for at_ms in left_of(message, dues, complete_until_ms, was_down) if at_ms > before_ms]
    if left and not message.superseded:
        yield f"nothing came at {left[:3]}, after {len(records)} occurrences"


def left_of(message: Repeated, dues: list[int], end_ms: int, was_down: Callable[[int, int], bool]) -> list[int]:
    """Return the instants before `end_ms` at which it should have come after `dues` (all epoch ms), if it goes on.

    `was_down` is as of `schedule_problems`.
    """
    if message.most is not None and len(dues) >= message.most:
        return []
    left = [at_ms for at_ms in message.instants(end_ms) if not dues or at_ms > dues[-1]]
    if left and message.missed != "all" and (left[-1] < message.known_ms or was_down(left[0], end_ms)):
        return []
    return left


def last_numbers(requests: Mapping[str, str], answers: Iterable[Received]) -> dict[str, int | None]:
    """Return the messages that were answered to be cancelled, and the number of the last occurrence in an answer.

    `requests` has the id that each request asks for, by its own id. Only the first cancel is told the number.
    """
    found: dict[str, int | None] = {}
    for record in answers:
        content = json.loads(record.value or b"{}")
        if content.get("result") == "cancelled" and record.id in requests:
            number = content.get("occurrence")
            found[requests[record.id]] = found.get(requests[record.id]) if number is None else number
    return found


def _runs(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:20])) + (" ..." if len(numbers) > 20 else "")
