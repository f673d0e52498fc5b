"""The script that moves to another cluster: how messages go on in the new job, and which of them it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from conf.sections import HeaderSettings
from sources.intake.accept import accept
from state.checkpoint.batch_settings import BatchSettings, DelayPolicy
from state.kinds import MESSAGE, REPEATING
from state.repeats.rule import Rule, parse_rule
from state.repeats.schedule import Occurrence, Schedule
from state.repeats.waiting import waiting_in
from streaming.operations.resend_check import as_read
from streaming.status.waiting_rows import Selection, waiting_rows
from tests.messages import PARTITIONS, headers, messages, some_batch_settings
from tests.scripts import module_of

NOW_MS = 1_798_761_600_000
MINUTE, HOUR = 60_000, 3_600_000
EVERY_MINUTE = Rule(interval_ms=MINUTE)
REPEATS = DelayPolicy(repeats=True)
OWN = [("x", b"1"), ("y", None), ("x", b"2")]
INPUTS = [("delayline-in", 0), ("other", 0)]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return module_of(Path(__file__).parent.parent / "examples" / "python" / "move.py")


def new_job(**changes: Any) -> BatchSettings:
    """Return the batch settings of the new job."""
    partitions = {**PARTITIONS, "delayline-results": 1}
    return some_batch_settings(partitions=partitions, allowed_outputs=("orders",), **changes)


def waiting_row(own: Sequence[tuple[str, bytes | None]], until_ms: int, kind: int = MESSAGE, **more: Any) -> Any:
    """Return a message with these headers that waits until this instant (epoch ms), as the script reads it."""
    message = {"kind": kind, "deliver_at_ms": until_ms, "headers": headers(*own), "output_topic": "orders", **more}
    (batch,) = waiting_rows(messages([message]), "sealed", Selection())
    return batch.to_pylist()[0]


def repeating(schedule: Schedule, occurrence: Occurrence, until_ms: int | None = None) -> Any:
    until_ms = occurrence.at_ms if until_ms is None else until_ms
    internal = [("delayline-schedule", schedule.to_bytes()), ("delayline-occurrence", occurrence.to_bytes(until_ms))]
    return waiting_row([*OWN, ("deliver-to", b"orders"), ("deliver-after", b"5s"), *internal], until_ms, REPEATING)


def objection(script: ModuleType, rows: Sequence[Any], **changes: Any) -> str | None:
    found: str | None = script.objection(rows, INPUTS, new_job(**changes), NOW_MS, set())
    return found


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
    assert objection(script, [row], policy=REPEATS) is None
    record = script.moved(row, HeaderSettings(), NOW_MS)
    accepted = accept(as_read([record]), new_job(policy=REPEATS), NOW_MS).messages
    (waiting,) = waiting_in(accepted)
    count = None if schedule.count is None else 5
    assert waiting.schedule == replace(schedule, count=count, name=b"", keeps_name=False)
    assert (waiting.occurrence, waiting.until_ms) == (Occurrence(1, at_ms), at_ms)
    assert accepted.column("output_topic").to_pylist() == ["orders"]
    # A delivered message has those that said when and where, too.
    assert waiting.headers[: len(OWN)] == headers(*OWN)
    assert {header["key"] for header in waiting.headers[len(OWN) :]} == {"deliver-at", "deliver-to"}


@pytest.mark.parametrize(
    ("missed", "number", "until_ms", "begins_ms"),
    [
        ("none", 5, NOW_MS - MINUTE - 1, NOW_MS + 10_000),
        # It is late, but not missed.
        ("none", 5, NOW_MS - 1, NOW_MS - 5 * MINUTE + 10_000),
        # The old job would deliver these, however late they are.
        ("none", 1, NOW_MS - 1, NOW_MS - 5 * MINUTE + 10_000),
        ("none", 5, NOW_MS, NOW_MS - 5 * MINUTE + 10_000),
        ("one", 5, NOW_MS - 1, NOW_MS - 5 * MINUTE + 10_000),
        ("all", 5, NOW_MS - 1, NOW_MS - 5 * MINUTE + 10_000),
    ],
)
def test_a_missed_occurrence_does_not_come_if_the_message_does_without_it(
    script: ModuleType, missed: str, number: int, until_ms: int, begins_ms: int
) -> None:
    schedule = Schedule(EVERY_MINUTE, count=9, missed=missed)
    row = repeating(schedule, Occurrence(number, NOW_MS - 5 * MINUTE + 10_000), until_ms)
    moved = dict(script.moved(row, HeaderSettings(), NOW_MS).headers)
    assert (moved["deliver-at"], moved["delayline-repeat-count"]) == (b"%d" % begins_ms, b"%d" % (10 - number))
    assert objection(script, [row], policy=REPEATS) is None


def test_a_schedule_without_an_occurrence_that_comes_is_left_out(script: ModuleType) -> None:
    last_ms = NOW_MS - MINUTE - 1
    row = repeating(Schedule(EVERY_MINUTE, until_ms=last_ms, missed="none"), Occurrence(5, last_ms))
    assert script.moved(row, HeaderSettings(), NOW_MS) is None
    assert objection(script, [row]) is None


@pytest.mark.parametrize(
    ("schedule", "late_ms", "policy", "why"),
    [
        (Schedule(EVERY_MINUTE), 0, DelayPolicy(), "the policy repeats is off"),
        (Schedule(EVERY_MINUTE), 0, DelayPolicy(repeats=True, repeat_ms=HOUR), "the policy repeat_interval is 1 h"),
        (Schedule(EVERY_MINUTE, missed="all"), 1_001 * MINUTE, REPEATS, "more than 1000 occurrences"),
        (Schedule(EVERY_MINUTE), -HOUR, DelayPolicy(repeats=True, most_ms=MINUTE), "delay-too-long"),
        (Schedule(EVERY_MINUTE), 0, DelayPolicy(repeats=True, expiry_header="x"), "does not expire by x"),
    ],
)
def test_a_repeating_message_that_the_new_job_would_refuse_is_known_before(
    script: ModuleType, schedule: Schedule, late_ms: int, policy: DelayPolicy, why: str
) -> None:
    row = repeating(schedule, Occurrence(5, NOW_MS - late_ms))
    assert why in str(objection(script, [row], policy=policy))


@pytest.mark.parametrize(
    ("row", "changes", "why"),
    [
        ({}, {}, None),
        ({"until_ms": NOW_MS - HOUR, "key": None, "value": None, "own": ()}, {}, None),
        ({"topic": "left-out"}, {}, "the new job does not read partition 0 of left-out"),
        ({"partition": 1}, {}, "the new job does not read partition 1 of delayline-in"),
        ({"output_topic": "elsewhere"}, {}, "topic-not-allowed"),
        ({"output_topic": "delayline-dead-letter", "error_code": "bad-cancel"}, {}, "topic-not-allowed"),
        ({}, {"policy": DelayPolicy(most_ms=MINUTE)}, "delay-too-long"),
        ({}, {"policy": DelayPolicy(most_ms=MINUTE, clamps=True)}, "its deliver_at_ms would change"),
        ({}, {"policy": DelayPolicy(fixed_ms=MINUTE)}, "its deliver_at_ms would change"),
        ({"own": [("scheduler-epoch", b"1")]}, {"presets": {"delayline-in": ("etf1",)}}, "its key and headers would"),
        (
            {"own": [("scheduler-epoch", b"1"), ("scheduler-target-topic", b"orders"), ("scheduler-target-key", b"k")]},
            {"presets": {"delayline-in": ("etf1",)}},
            "its headers would change",
        ),
    ],
)
def test_a_message_that_the_new_job_would_refuse_or_change_is_known_before(
    script: ModuleType, row: dict[str, Any], changes: dict[str, Any], why: str | None
) -> None:
    fields: dict[str, Any] = {"own": OWN, "until_ms": NOW_MS + HOUR, "key": b"k", **row}
    waiting = waiting_row(**fields)
    problem = objection(script, [waiting_row(OWN, NOW_MS), waiting], **changes)
    assert (why or "None") in str(problem)
    if why is not None:
        assert str(problem).startswith(f"{waiting['id']}: ")


@pytest.mark.parametrize(("topic", "is_refused"), [("delayline-in", True), ("other", False)])
def test_a_message_that_would_replace_another_one_is_known_before(
    script: ModuleType, topic: str, is_refused: bool
) -> None:
    first = waiting_row(OWN, NOW_MS + HOUR, key=b"k", topic="delayline-in", offset=7)
    unnamed = waiting_row(OWN, NOW_MS + HOUR, key=None, topic=topic, offset=8)
    second = waiting_row(OWN, NOW_MS + HOUR, key=b"k", topic=topic, offset=9)
    job, names = new_job(policy=DelayPolicy(names="key")), set[bytes]()
    assert script.objection([unnamed, first, unnamed], INPUTS, job, NOW_MS, names) is None
    problem = script.objection([unnamed, second], INPUTS, job, NOW_MS, names)
    assert problem == (
        "delayline-in/0/9: it would have the name of another message, and replace that" if is_refused else None
    )


def test_other_messages_keep_what_looks_like_a_schedule(script: ModuleType) -> None:
    forged = [("delayline-schedule", Schedule(EVERY_MINUTE).to_bytes()), ("delayline-occurrence", b"7")]
    row = waiting_row([("deliver-after", b"5s"), *forged], NOW_MS)
    moved = script.moved(row, HeaderSettings(), NOW_MS).headers
    assert moved == [*forged, ("deliver-at", b"%d" % NOW_MS), ("deliver-to", b"orders")]
    assert objection(script, [row]) is None


def test_the_first_batch_after_a_rebuild_must_be_complete(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its dead letters and answers wait for this batch, and answers are no messages that a reader sees.
    checkpoint = SimpleNamespace(read_offsets=dict, last_committed=lambda: None)
    monkeypatch.setattr(script, "current_checkpoint", lambda *_: checkpoint)
    with pytest.raises(SystemExit, match="no batch of the old job is complete"):
        script.check_stopped(None, None)
