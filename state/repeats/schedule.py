"""A rule with its limits, as it travels with the occurrence that waits, and what a batch stages of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from state.repeats.rule import DEFAULT_ZONE, Rule

# What a publisher writes.
REPEAT_HEADER, ZONE_HEADER = "delayline-repeat", "delayline-repeat-zone"
UNTIL_HEADER, COUNT_HEADER = "delayline-repeat-until", "delayline-repeat-count"
MISSED_HEADER = "delayline-repeat-missed"
REPEAT_HEADERS = (REPEAT_HEADER, ZONE_HEADER, UNTIL_HEADER, COUNT_HEADER, MISSED_HEADER)
# What comes of occurrences that fell due while no batch ran: the first of them, each, or none.
ONE, ALL, NONE = MISSED = ("one", "all", "none")
# The last headers of the occurrence that waits: the schedule, and the number of the occurrence, counted from 1. What is
# delivered has the number alone.
SCHEDULE_HEADER, NUMBER_HEADER = "delayline-schedule", "delayline-occurrence"
# How many occurrences that fell due come after one outage, at the most.
MOST_MISSED = 1_000


class Occurrence(NamedTuple):
    """An occurrence: its number, and its instant, epoch ms, which is when it is due."""

    number: int
    at_ms: int


class Staging(NamedTuple):
    """What a batch makes of a schedule: the occurrences that it hands over, and the one that waits then, if any."""

    staged: list[Occurrence]
    following: Occurrence | None


@dataclass(frozen=True)
class Schedule:
    """A schedule: its rule, when it ends, and what comes of occurrences that fell due (one of `MISSED`).

    - `until_ms`: its last instant, epoch ms, at the most; None: it has no end
    - `count`: how many occurrences come, at the most
    - `name`: the name that the message has (`state.names.named`), or none: b""
    - `keeps_name`: whether it keeps that
    """

    rule: Rule
    until_ms: int | None = None
    count: int | None = None
    missed: str = ONE
    name: bytes = b""
    keeps_name: bool = False

    def stage(self, first: Occurrence, clock_ms: int, cutoff_ms: int) -> Staging:
        """Return what a batch stages, whose next occurrence is `first`, below the cutoff. Epoch ms.

        What is due before `clock_ms`, the batch's clock, fell due while no batch ran, and counts as missed. The very
        first occurrence comes in any case. Occurrences that do not come have no number.
        """
        staged: list[Occurrence] = []
        number, at_ms, missed = first.number, first.at_ms, 0
        while True:
            is_missed = at_ms < clock_ms
            if not is_missed or self.missed != NONE or number == 1:
                staged.append(Occurrence(number, at_ms))
                number += 1
            missed += is_missed
            is_each = self.missed == ALL and missed < MOST_MISSED
            following = None if self._is_over(number) else self.rule.after(at_ms, None if is_each else clock_ms)
            if following is None or (self.until_ms is not None and following > self.until_ms):
                return Staging(staged, None)
            if following >= cutoff_ms:
                return Staging(staged, Occurrence(number, following))
            at_ms = following

    def upcoming(self, first: Occurrence, most: int) -> list[Occurrence]:
        """Return `first`, and what comes after it if nothing is missed: `most` at the most."""
        found = [first]
        while len(found) < most and not self._is_over(found[-1].number + 1):
            at_ms = self.rule.after(found[-1].at_ms)
            if at_ms is None or (self.until_ms is not None and at_ms > self.until_ms):
                break
            found.append(Occurrence(found[-1].number + 1, at_ms))
        return found

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
