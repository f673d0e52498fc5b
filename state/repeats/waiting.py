"""Messages that repeat, as they wait: one occurrence of each at a time, with its schedule in its last headers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa

from state.cancel import MessageId
from state.checkpoint.progress import BatchSpan
from state.repeats.rule import Rule
from state.repeats.schedule import NUMBER_HEADER, SCHEDULE_HEADER, Occurrence, Schedule


class Predecessor(NamedTuple):
    """A message that repeats, which another may replace: its waiting occurrence (epoch ms), and its rule."""

    number: int
    at_ms: int
    rule: Rule


NO_PREDECESSORS: Mapping[MessageId, Predecessor] = MappingProxyType({})


class Waiting(NamedTuple):
    """An occurrence that waits: its schedule, itself, and the headers of its delivery without the occurrence's number.

    It waits until `until_ms` (epoch ms), which is later than its instant if a batch had put it off.
    """

    schedule: Schedule
    occurrence: Occurrence
    headers: list[dict[str, Any]]
    until_ms: int

    def coming(self, span: BatchSpan) -> Iterator[Occurrence]:
        """Yield the occurrences that come in the batch of `span` (`Schedule.coming`). A postponed one is not missed."""
        return self.schedule.coming(self.occurrence, self.until_ms < span.missed_before_ms, span.clock_ms)

    def after(self, before: Predecessor | None, staged_below_ms: int) -> Waiting:
        """Return it without the instants that the message `before` has staged, if both have the same expression.

        Earlier batches have staged nothing at `staged_below_ms` (epoch ms) or later, however late `before` begins.
        """
        rule = self.schedule.rule
        if before is None or before.rule != rule or rule.interval_ms is not None:
            return self
        next_ms = rule.after(staged_below_ms - 1)
        at_ms = max(self.occurrence.at_ms, before.at_ms if next_ms is None else min(before.at_ms, next_ms))
        # A schedule that ends before has no other instant.
        if self.schedule.until_ms is not None and at_ms > self.schedule.until_ms:
            return self
        return self._replace(occurrence=Occurrence(self.occurrence.number, at_ms), until_ms=max(self.until_ms, at_ms))


def waiting_in(messages: pa.Table) -> list[Waiting]:
    """Return the waiting occurrence in each of `messages`, which all repeat."""
    found = []
    rows = zip(messages.column("deliver_at_ms").to_pylist(), messages.column("headers").to_pylist(), strict=True)
    for until_ms, headers in rows:
        # Written last, in this order (`sources.intake.repeats`).
        *own, schedule, number = headers
        assert (schedule["key"], number["key"]) == (SCHEDULE_HEADER, NUMBER_HEADER)
        occurrence = Occurrence.from_bytes(number["value"], until_ms)
        found.append(Waiting(Schedule.from_bytes(schedule["value"]), occurrence, own, until_ms))
    return found
