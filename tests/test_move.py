"""The script that moves to another cluster: how a message that repeats goes on in the new job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from conf.sections import HeaderSettings
from sources.intake.accept import accept
from state.checkpoint.batch_settings import DelayPolicy
from state.kinds import MESSAGE, REPEATING
from state.repeats.occurrences import waiting_in
from state.repeats.rule import Rule, parse_rule
from state.repeats.schedule import Occurrence, Schedule
from streaming.status.waiting_rows import Selection, waiting_rows
from tests.messages import PARTITIONS, headers, messages, records, some_batch_settings
from tests.scripts import module_of

NOW_MS = 1_798_761_600_000
MINUTE, HOUR = 60_000, 3_600_000
EVERY_MINUTE = Rule(interval_ms=MINUTE)
REPEATS = DelayPolicy(repeats=True)
OWN = [("x", b"1"), ("y", None), ("x", b"2")]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return module_of(Path(__file__).parent.parent / "examples" / "python" / "move.py")


def waiting_row(own: Sequence[tuple[str, bytes | None]], until_ms: int, kind: int = REPEATING) -> dict[str, Any]:
    """Return a message with these headers that waits until this instant (epoch ms), as the script reads it."""
    message = {"kind": kind, "deliver_at_ms": until_ms, "headers": headers(*own), "output_topic": "orders"}
    (batch,) = waiting_rows(messages([message]), "sealed", Selection())
    found: list[dict[str, Any]] = batch.to_pylist()
    return found[0]


def repeating(schedule: Schedule, occurrence: Occurrence, until_ms: int | None = None) -> dict[str, Any]:
    until_ms = occurrence.at_ms if until_ms is None else until_ms
    internal = [("delayline-schedule", schedule.to_bytes()), ("delayline-occurrence", occurrence.to_bytes(until_ms))]
    return waiting_row([*OWN, ("deliver-to", b"orders"), ("deliver-after", b"5s"), *internal], until_ms)


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(EVERY_MINUTE),
        Schedule(Rule(interval_ms=2_592_000_001), missed="none"),
        Schedule(EVERY_MINUTE, until_ms=NOW_MS + HOUR, count=9, missed="all"),
        Schedule(parse_rule("0 9 * * mon-fri"), missed="all"),
        Schedule(parse_rule("30 0 9 L * *", "Europe/Berlin"), until_ms=NOW_MS + 400 * 24 * HOUR),
        Schedule(parse_rule("@hourly"), name=b"12345678", keeps_name=True),
    ],
)
@pytest.mark.parametrize("put_off_ms", [0, 90_000])
def test_a_moved_schedule_continues_at_its_next_occurrence(
    script: ModuleType, schedule: Schedule, put_off_ms: int
) -> None:
    at_ms = NOW_MS + MINUTE if schedule.rule.interval_ms else schedule.rule.after(NOW_MS)
    assert at_ms is not None
    row = repeating(schedule, Occurrence(5, at_ms), at_ms + put_off_ms)
    moved = script.moved_headers(row, HeaderSettings())
    assert script.refusal(moved, REPEATS, HeaderSettings(), NOW_MS) is None
    record = {"headers": headers(*moved), "timestamp_ms": NOW_MS}
    job = some_batch_settings(policy=REPEATS, partitions=PARTITIONS, allowed_outputs=("orders",))
    accepted = accept(records([record]), job, NOW_MS).messages
    (waiting,) = waiting_in(accepted)
    count = None if schedule.count is None else 5
    assert waiting.schedule == replace(schedule, count=count, name=b"", keeps_name=False)
    assert (waiting.occurrence, waiting.until_ms) == (Occurrence(1, at_ms), at_ms)
    assert accepted.column("output_topic").to_pylist() == ["orders"]
    # A delivered message has those that said when and where, too.
    assert waiting.headers[: len(OWN)] == headers(*OWN)
    assert {header["key"] for header in waiting.headers[len(OWN) :]} == {"deliver-at", "deliver-to"}


@pytest.mark.parametrize(
    ("schedule", "late_ms", "policy", "why"),
    [
        (Schedule(EVERY_MINUTE), 0, DelayPolicy(), "the policy repeats is off"),
        (Schedule(EVERY_MINUTE), 0, DelayPolicy(repeats=True, repeat_ms=HOUR), "the policy repeat_interval is 1 h"),
        (Schedule(EVERY_MINUTE, missed="all"), 1_001 * MINUTE, REPEATS, "more than 1000 occurrences"),
        (Schedule(EVERY_MINUTE), -HOUR, DelayPolicy(repeats=True, most_ms=MINUTE), "the longest delay"),
        (Schedule(EVERY_MINUTE), 0, DelayPolicy(repeats=True, expiry_header="x"), "does not expire by x"),
    ],
)
def test_what_the_new_job_would_refuse_is_known_before(
    script: ModuleType, schedule: Schedule, late_ms: int, policy: DelayPolicy, why: str
) -> None:
    moved = script.moved_headers(repeating(schedule, Occurrence(5, NOW_MS - late_ms)), HeaderSettings())
    error = script.refusal(moved, policy, HeaderSettings(), NOW_MS)
    assert why in str(error)


def test_other_messages_keep_what_looks_like_a_schedule(script: ModuleType) -> None:
    forged = [("delayline-schedule", Schedule(EVERY_MINUTE).to_bytes()), ("delayline-occurrence", b"7")]
    moved = script.moved_headers(waiting_row([("deliver-after", b"5s"), *forged], NOW_MS, MESSAGE), HeaderSettings())
    assert moved == [*forged, ("deliver-at", b"%d" % NOW_MS), ("deliver-to", b"orders")]
