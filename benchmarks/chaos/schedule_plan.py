"""Chooses what a campaign publishes of schedules: messages that repeat, and requests about them. Does no I/O."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from benchmarks.load import Header
from benchmarks.stand import PARTITIONS
from state.cancel import CANCEL_HEADER, DELIVER_NOW_HEADER
from state.names import ANSWER_HEADER, CANCEL_NAME_HEADER, NAME_HEADER
from state.repeats.schedule import COUNT_HEADER, MISSED, MISSED_HEADER, REPEAT_HEADER, UNTIL_HEADER, ZONE_HEADER
from streaming.judge.schedules import Repeated

# Shares of the records. The rest are schedules.
_DELIVERIES, _CANCELS, _CANCELS_BY_NAME = 0.1, 0.12, 0.08
# At the rate of a campaign, a name is used again after about a minute.
_NAMES, _NAMED = 100, 0.6
# The least interval that the default policy allows, and three times that.
_SHORTEST_S, _LONGEST_S = 10, 30
_CRONS = ("*/10 * * * * *", "*/15 * * * * *", "5,25,45 * * * * *", "0,30 * * * * *", "* * * * *")
_ZONES = ("UTC", "Europe/Berlin", "Asia/Kolkata")
# The first occurrence comes within 80 s: a minute after the longest delay, by the last of the expressions.
_DELAYS_MS, _ENDS_MS = (1_000, 20_000), (90_000, 180_000)


@dataclass(frozen=True)
class Sent:
    """A record: a message that `repeats`, or a request for the schedule number `asked`, or the one with the `name`.

    The id, key and value of a message are not known yet. Its first occurrence is due `after_ms` after its timestamp, or
    at the first instant of its rule then or later.
    """

    asked: int | None = None
    name: str = ""
    delivers: bool = False
    repeats: Repeated | None = None
    after_ms: int = 0

    @property
    def is_request(self) -> bool:
        """Whether it gets an answer. A message gets one about the message that had its name."""
        return self.repeats is None or bool(self.name)


class SchedulePlan:
    """Chooses records by their numbers, which must ascend from `first` without gaps, for input topic and output topic.

    A record is in the partition of its number. A request and its message are in the same one. `sent` has the records.
    """

    def __init__(self, topic: str, output: str, seed: int, first: int) -> None:
        self._topic, self._output, self._first = topic, output, first
        self._chance = random.Random(seed)
        self.sent: dict[int, Sent] = {}
        # The schedules that no record has asked to end, and the one that has each name.
        self._open: set[int] = set()
        self._holders: dict[str, int] = {}

    def id_of(self, number: int) -> str:
        """Return the message id of the record with this number."""
        return f"{self._topic}/{number % PARTITIONS}/{(number - self._first) // PARTITIONS}"

    def record(self, number: int, stamp_ms: int) -> list[Header]:
        """Choose the record with this number, published at `stamp_ms` (epoch ms), and return its headers."""
        kind = self._chance.random()
        others = sorted(each for each in self._open if each % PARTITIONS == number % PARTITIONS)
        if others and kind < _DELIVERIES + _CANCELS:
            return self._request(number, self._chance.choice(others), kind < _DELIVERIES)
        name = f"n{self._chance.randrange(_NAMES // PARTITIONS) * PARTITIONS + number % PARTITIONS}"
        if kind < _DELIVERIES + _CANCELS + _CANCELS_BY_NAME:
            self.sent[number] = Sent(name=name)
            self._open.discard(self._holders.pop(name, -1))
            return [(CANCEL_NAME_HEADER, name.encode())]
        return self._schedule(number, name if self._chance.random() < _NAMED else "", stamp_ms)

    def cancels(self) -> list[tuple[int, list[Header]]]:
        """Choose a cancel of each schedule that goes on, or has ended by its rule. Return their numbers and headers.

        The numbers have gaps, so no record may be chosen after them.
        """
        found, number = [], max(self.sent, default=self._first - 1) + 1
        for asked in sorted(self._open):
            number += (asked - number) % PARTITIONS
            found.append((number, self._request(number, asked, delivers=False)))
            number += 1
        return found

    def _request(self, number: int, asked: int, delivers: bool) -> list[Header]:
        self.sent[number] = Sent(asked, delivers=delivers)
        if not delivers:
            self._open.discard(asked)
        return [(DELIVER_NOW_HEADER if delivers else CANCEL_HEADER, self.id_of(asked).encode())]

    def _schedule(self, number: int, name: str, stamp_ms: int) -> list[Header]:
        own: list[Header] = [("deliver-to", self._output.encode()), ("trace", b"%d" % number)]
        delay_ms = self._chance.randrange(*_DELAYS_MS) if self._chance.random() < 0.3 else None
        if delay_ms is not None:
            own.append(("deliver-after", b"%dms" % delay_ms))
        missed = self._chance.choice(MISSED)
        message = Repeated("", 0, None, None, tuple(own), self._output, missed=missed, name=name)
        rule: list[Header] = [(MISSED_HEADER, missed.encode())]
        if self._chance.random() < 0.5:
            every_s = self._chance.randint(_SHORTEST_S, _LONGEST_S)
            message, after_ms = replace(message, every_ms=every_s * 1000), every_s * 1000
            rule.append((REPEAT_HEADER, b"every %ds" % every_s))
        else:
            # Without a delay, after the timestamp.
            message, after_ms = replace(message, cron=self._chance.choice(_CRONS), zone=self._chance.choice(_ZONES)), 1
            rule += [(REPEAT_HEADER, message.cron.encode()), (ZONE_HEADER, message.zone.encode())]
        end = self._chance.choice(("never", "never", "count", "until"))
        if end == "count":
            most = self._chance.randint(1, 6)
            message = replace(message, most=most)
            rule.append((COUNT_HEADER, b"%d" % most))
        elif end == "until":
            until_ms = stamp_ms + self._chance.randrange(*_ENDS_MS)
            message = replace(message, until_ms=until_ms)
            rule.append((UNTIL_HEADER, b"%d" % until_ms))
        if name:
            rule += [(NAME_HEADER, name.encode()), (ANSWER_HEADER, b"true")]
            self._open.discard(self._holders.get(name, -1))
            self._holders[name] = number
        self._open.add(number)
        self.sent[number] = Sent(name=name, repeats=message, after_ms=after_ms if delay_ms is None else delay_ms)
        return [*own, *rule]
