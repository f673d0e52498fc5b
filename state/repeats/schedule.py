"""A rule with its limits, as it travels with the waiting occurrence, and which occurrences come."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from state.repeats.rule import DEFAULT_ZONE, Rule

# The headers that a publisher writes.
REPEAT_HEADER, ZONE_HEADER = "delayline-repeat", "delayline-repeat-zone"
UNTIL_HEADER, COUNT_HEADER = "delayline-repeat-until", "delayline-repeat-count"
MISSED_HEADER = "delayline-repeat-missed"
REPEAT_HEADERS = (REPEAT_HEADER, ZONE_HEADER, UNTIL_HEADER, COUNT_HEADER, MISSED_HEADER)
# Which missed occurrences come: the first of them, each, or none.
ONE, ALL, NONE = MISSED = ("one", "all", "none")
# The last headers of the waiting occurrence: the schedule, and the number of the occurrence, counted from 1. The number
# is followed by the occurrence's instant if it waits longer, and then by `next_from_ms`. A delivered message has only
# the number.
SCHEDULE_HEADER, NUMBER_HEADER = "delayline-schedule", "delayline-occurrence"


class Occurrence(NamedTuple):
    """An occurrence: its number, and its instant, epoch ms, which is when it is due.

    If it was missed, the next one comes at `next_from_ms` (epoch ms) or later.
    """

    number: int
    at_ms: int
    next_from_ms: int | None = None

    def to_bytes(self, waits_until_ms: int) -> bytes:
        """Return the value of `NUMBER_HEADER` while it waits until this instant, epoch ms: its own or a later one."""
        if self.next_from_ms is not None:
            return b"%d %d %d" % (self.number, self.at_ms, self.next_from_ms)
        return b"%d" % self.number if waits_until_ms == self.at_ms else b"%d %d" % (self.number, self.at_ms)

    @staticmethod
    def from_bytes(value: bytes, waits_until_ms: int) -> Occurrence:
        """Read what `to_bytes` wrote. Raises ValueError for anything else."""
        number, *instants_ms = map(int, value.split(b" "))
        if len(instants_ms) > 2:
            raise ValueError(f"{value!r} is more than a number and two instants")
        return Occurrence(number, *(instants_ms or [waits_until_ms]))


@dataclass(frozen=True)
class Schedule:
    """A schedule: its rule, when it ends, and which missed occurrences come (one of `MISSED`).

    - `until_ms`: the latest possible instant, epoch ms; None: it has no end
    - `count`: how many occurrences come at most
    - `name`: the name that the message has (`state.names.named`); b"" without a name
    - `keeps_name`: whether it keeps the name
    """

    rule: Rule
    until_ms: int | None = None
    count: int | None = None
    missed: str = ONE
    name: bytes = b""
    keeps_name: bool = False

    def coming(self, first: Occurrence, is_missed: bool, clock_ms: int) -> Iterator[Occurrence]:
        """Yield `first`, which waits, and the occurrences after it, in a batch with this clock (epoch ms).

        If the waiting one `is_missed`, so are the next ones before the clock. The very first occurrence comes in any
        case. Occurrences that do not come have no number.
        """
        number, at_ms, next_from_ms = first
        next_ms: int | None = at_ms
        if is_missed and self.missed != ALL:
            next_from_ms = clock_ms
            if self.missed == NONE and number > 1:
                next_ms, next_from_ms = self._after(at_ms, clock_ms), None
        while next_ms is not None and not self._is_over(number):
            yield Occurrence(number, next_ms, next_from_ms)
            number += 1
            next_ms, next_from_ms = self._after(next_ms, next_from_ms), None

    def later(self, first: Occurrence, from_ms: int) -> Iterator[Occurrence]:
        """Yield the occurrences at `from_ms` (epoch ms) or later, if nothing is missed from `first` on."""
        number, at_ms, next_from_ms = first
        second_ms = max(at_ms + 1, next_from_ms or 0)
        if self.rule.interval_ms is not None:
            if (skipped := (from_ms - at_ms) // self.rule.interval_ms) > 0:
                first = Occurrence(number + skipped, at_ms + skipped * self.rule.interval_ms)
        elif second_ms < from_ms:
            next_ms = self.rule.after(at_ms, from_ms)
            if next_ms is None:
                return
            first = Occurrence(number + 1 + self.rule.count(second_ms, from_ms), next_ms)
        for each in self.coming(first, False, 0):
            if self.until_ms is not None and each.at_ms > self.until_ms:
                return
            if each.at_ms >= from_ms:
                yield each

    def upcoming(self, first: Occurrence, most: int) -> list[Occurrence]:
        """Return `first` and the occurrences after it, if nothing is missed: at most `most`."""
        return list(islice(self.coming(first, False, 0), most))

    def _after(self, at_ms: int, since_ms: int | None) -> int | None:
        """Return the next instant after `at_ms`, at or after `since_ms` (epoch ms); None if the schedule has ended."""
        next_ms = self.rule.after(at_ms, since_ms)
        return None if next_ms is None or (self.until_ms is not None and next_ms > self.until_ms) else next_ms

    def _is_over(self, number: int) -> bool:
        return self.count is not None and number > self.count

    def to_bytes(self) -> bytes:
        """Return the value of `SCHEDULE_HEADER`."""
        rule = {"every_ms": self.rule.interval_ms} if self.rule.interval_ms is not None else {"cron": self.rule.cron}
        fields = {
            **rule,
            "zone": None if self.rule.zone == DEFAULT_ZONE else self.rule.zone,
            "until_ms": self.until_ms,
            "count": self.count,
            "missed": None if self.missed == ONE else self.missed,
            "name": self.name.hex() or None,
            "keeps": self.keeps_name or None,
        }
        return json.dumps({name: value for name, value in fields.items() if value is not None}).encode()

    @staticmethod
    @lru_cache(maxsize=1 << 14)
    def from_bytes(value: bytes) -> Schedule:
        """Read what `to_bytes` wrote."""
        fields = json.loads(value)
        rule = Rule(fields.get("every_ms"), fields.get("cron", ""), fields.get("zone", DEFAULT_ZONE))
        return Schedule(
            rule,
            fields.get("until_ms"),
            fields.get("count"),
            fields.get("missed", ONE),
            bytes.fromhex(fields.get("name", "")),
            fields.get("keeps", False),
        )
