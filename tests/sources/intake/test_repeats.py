"""Messages that repeat: when they are due first, and how they wait."""

from __future__ import annotations

import pytest

from sources.intake.accept import accept
from sources.intake.near import accept_near
from state.cancel import ALWAYS, requests_of
from state.checkpoint.batch_settings import DelayPolicy
from state.kinds import REPEATING, REQUEST
from state.kinds import repeats as repeat_mask
from state.names import named
from state.repeats.rule import Rule
from state.repeats.schedule import Occurrence, Schedule
from state.repeats.waiting import waiting_in
from tests.messages import headers, records
from tests.sources.intake.accepted_repeats import (
    CLOCK_MS,
    DAY,
    HOUR,
    MINUTE,
    RULE,
    TOPIC,
    WRITTEN_MS,
    accepted,
    settings,
)


def test_message_waits_with_its_schedule_in_place_of_the_headers_of_that() -> None:
    found = accepted(("x", b"1"), RULE, ("delayline-repeat-count", b"3"), ("delayline-occurrence", b"99"), ("y", None))
    schedule, occurrence, own, _ = found["waiting"]
    assert schedule == Schedule(Rule(interval_ms=10 * MINUTE), count=3)
    assert occurrence == Occurrence(1, WRITTEN_MS + 10 * MINUTE)
    assert own == headers(("x", b"1"), ("y", None))


@pytest.mark.parametrize(
    ("pairs", "due_ms"),
    [
        ([RULE], WRITTEN_MS + 10 * MINUTE),
        ([RULE, ("deliver-after", b"5s")], WRITTEN_MS + 5_000),
        ([RULE, ("deliver-after", b"0")], WRITTEN_MS),
        ([RULE, ("deliver-at", b"%d" % (CLOCK_MS + DAY))], CLOCK_MS + DAY),
        # By an expression: the first instant then, or later. The clock shows a time in December 2026.
        ([("delayline-repeat", b"0 0 1 1 *")], 1_798_761_600_000),
        ([("delayline-repeat", b"0 0 1 1 *"), ("deliver-at", b"1798761600000")], 1_798_761_600_000),
        ([("delayline-repeat", b"0 0 1 1 *"), ("delayline-repeat-zone", b"Europe/Berlin")], 1_798_758_000_000),
    ],
)
def test_first_occurrence(pairs: list[tuple[str, bytes]], due_ms: int) -> None:
    assert accepted(*pairs)["deliver_at_ms"] == due_ms


def test_default_delay_is_not_for_messages_that_repeat() -> None:
    policy = DelayPolicy(repeats=True, default_ms=HOUR)
    assert accepted(RULE, policy=policy)["deliver_at_ms"] == WRITTEN_MS + 10 * MINUTE
    fixed = DelayPolicy(repeats=True, fixed_ms=HOUR)
    assert accepted(RULE, policy=fixed)["deliver_at_ms"] == WRITTEN_MS + HOUR


def test_no_end_is_too_late_and_no_count_too_large() -> None:
    found = accepted(RULE, ("delayline-repeat-until", b"9999-12-31T23:59:59Z"), ("delayline-repeat-count", b"9" * 500))
    assert found["waiting"].schedule.count == 2**31


def test_timestamp_that_is_none_is_no_start() -> None:
    assert accepted(RULE, timestamp_ms=1_798_000_000)["error_code"] == "bad-timestamp"
    assert accepted(RULE, timestamp_ms=WRITTEN_MS * 1000)["error_code"] == "delay-too-long"
    # Written when its batch began.
    assert accepted(RULE, timestamp_ms=-1)["deliver_at_ms"] == CLOCK_MS + 10 * MINUTE


def test_message_with_a_name_has_it_in_its_schedule_and_asks_for_what_has_it() -> None:
    policy = DelayPolicy(repeats=True, names="key")
    row = {"timestamp_ms": WRITTEN_MS, "headers": headers(RULE, ("x", b"1")), "key": b"order 7"}
    messages, requests = accept(records([row]), settings(policy), CLOCK_MS)
    message, request_row = messages.to_pylist()
    assert (message["kind"], request_row["kind"]) == (REPEATING, REQUEST)
    assert waiting_in(messages.slice(0, 1))[0].schedule.name == named(TOPIC, b"order 7")
    assert request_row["headers"] == headers(("x", b"1")), "an answer has what the publisher sent"
    assert [(request.condition, request.deliver_at_ms) for request in requests_of(requests)] == [
        (ALWAYS, WRITTEN_MS + 10 * MINUTE)
    ]


@pytest.mark.parametrize(
    ("rule", "first_ms"),
    [(b"every 10s", WRITTEN_MS - 30_000), (b"every 10s", WRITTEN_MS), (b"*/20 * * * * *", WRITTEN_MS - 60_000)],
)
def test_no_occurrence_has_the_order_key_of_the_request_that_came_with_the_message(rule: bytes, first_ms: int) -> None:
    """The request is due when the record was written. That may be an instant of the schedule."""
    assert not (WRITTEN_MS + 1_000) % 20_000
    pairs = (("delayline-repeat", rule), ("deliver-at", b"%d" % first_ms), ("delayline-name", b"n"))
    row = {"timestamp_ms": WRITTEN_MS, "headers": headers(*pairs)}
    for written_ms in (WRITTEN_MS, WRITTEN_MS + 1_000):
        policy = DelayPolicy(repeats=True, names="header")
        own = records([row | {"timestamp_ms": written_ms}])
        messages, _ = accept(own, settings(policy), CLOCK_MS)
        (waiting,) = waiting_in(messages.slice(0, 1))
        instants = {each.at_ms for each in waiting.schedule.upcoming(waiting.occurrence, 20)}
        assert messages.column("deliver_at_ms")[1].as_py() not in instants


def test_forwarders_leave_messages_that_repeat_to_the_batches() -> None:
    rows = [{"timestamp_ms": WRITTEN_MS, "offset": 0, "headers": headers(RULE, ("deliver-after", b"1s"))}]
    rows.append({"timestamp_ms": WRITTEN_MS, "offset": 1, "headers": headers(("deliver-after", b"1s"))})
    near = accept_near(records(rows), settings(), CLOCK_MS, CLOCK_MS + MINUTE)
    assert near.messages.column("offset").to_pylist() == [1]
    assert not repeat_mask(near.messages).any()
    assert near.is_urgent
