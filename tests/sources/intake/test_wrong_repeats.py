"""Schedules that cannot be followed, or that a policy forbids: shorter delays, and dead letters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from state.checkpoint.batch_settings import DelayPolicy
from state.kinds import DEAD_LETTER, REPEATING
from state.repeats import rule as rule_module
from tests.messages import headers
from tests.sources.intake.accepted_repeats import CLOCK_MS, DAY, HOUR, QUARTER, RULE, accepted


@pytest.mark.parametrize("age_ms", [1_000, 3 * DAY, -HOUR])
@pytest.mark.parametrize(
    ("rule", "delay", "due_ms"),
    [
        # From the later of both clocks, or from the record's own timestamp.
        (
            b"every 10m",
            ("deliver-at", b"%d" % (CLOCK_MS + 99 * DAY)),
            lambda written_ms: max(written_ms, CLOCK_MS) + DAY,
        ),
        (b"every 10m", ("deliver-after", b"99d"), lambda written_ms: written_ms + DAY),
        # The first full quarter of an hour then, or later.
        (b"*/15 * * * *", ("deliver-after", b"99d"), lambda written_ms: -(-(written_ms + DAY) // QUARTER) * QUARTER),
    ],
)
def test_first_delay_that_is_too_long_is_shortened_if_the_policy_says_so(
    rule: bytes, delay: tuple[str, bytes], due_ms: Callable[[int], int], age_ms: int
) -> None:
    """A message that repeats is a dead letter only where any message is."""
    written_ms, pairs = CLOCK_MS - age_ms, [("delayline-repeat", rule), delay]
    policy = DelayPolicy(repeats=True, most_ms=DAY, clamps=True)
    found = accepted(*pairs, policy=policy, timestamp_ms=written_ms)
    assert (found["error_text"], found["deliver_at_ms"]) == (None, due_ms(written_ms))
    rejected = accepted(*pairs, policy=replace(policy, clamps=False), timestamp_ms=written_ms)
    assert rejected["error_code"] == "delay-too-long"


@pytest.mark.parametrize("delay", [(), (("deliver-after", b"99d"),)])
def test_policy_shortens_no_time_between_occurrences(delay: tuple[tuple[str, bytes], ...]) -> None:
    policy = DelayPolicy(repeats=True, most_ms=DAY, clamps=True)
    for rule in (b"every 2d", b"0 0 1 7 *"):
        found = accepted(("delayline-repeat", rule), *delay, policy=policy)
        assert found["error_code"] == "delay-too-long"


@pytest.mark.parametrize(
    ("pairs", "code", "why"),
    [
        ([RULE, RULE], "bad-repeat", "one delayline-repeat"),
        ([("delayline-repeat", None)], "bad-repeat", "no value"),
        ([("delayline-repeat", b"")], "bad-repeat", "interval"),
        ([("delayline-repeat", b"\xff\xfe\xfd")], "bad-repeat", "UTF-8"),
        ([("delayline-repeat", b"soon")], "bad-repeat", "interval"),
        ([("delayline-repeat", b"every 9s")], "bad-repeat", "repeat_interval"),
        ([("delayline-repeat", b"*/5 * * * * *")], "bad-repeat", "repeat_interval"),
        ([("delayline-repeat", b"0 0 31 2 *")], "bad-repeat", "cron"),
        ([("delayline-repeat", b"0 0 */31 * 1#2")], "bad-repeat", "never"),
        ([("delayline-repeat", b"every 100000w")], "delay-too-long", "longest"),
        ([("delayline-repeat", b"x" * 1_000_000)], "bad-repeat", "1000000 bytes"),
        ([RULE, ("delayline-repeat-zone", b"UTC")], "bad-repeat", "no time zone"),
        ([("delayline-repeat", b"0 9 * * *"), ("delayline-repeat-zone", b"Mars/Base")], "bad-repeat", "zone"),
        ([RULE, ("delayline-repeat-count", b"0")], "bad-repeat", "count"),
        ([RULE, ("delayline-repeat-count", b"-1")], "bad-repeat", "count"),
        ([RULE, ("delayline-repeat-count", b"many")], "bad-repeat", "count"),
        ([RULE, ("delayline-repeat-until", b"2020-01-01T00:00:00Z")], "bad-repeat", "no occurrence"),
        ([RULE, ("delayline-repeat-until", b"tomorrow")], "bad-repeat", "until"),
        ([RULE, ("delayline-repeat-missed", b"some")], "bad-repeat", "missed"),
        ([("delayline-repeat-count", b"3")], "bad-repeat", "without delayline-repeat"),
        ([("Delayline-Repeat", b"every 10m")], "header-case", "delayline-repeat"),
        ([RULE, ("deliver-after", b"soon")], "bad-deliver-after", "duration"),
        ([RULE, ("deliver-after", b"9999d")], "delay-too-long", "policy max_delay"),
    ],
)
def test_what_cannot_be_followed_is_a_dead_letter(pairs: list[tuple[str, bytes]], code: str, why: str) -> None:
    found = accepted(*pairs)
    assert (found["kind"], found["error_code"]) == (DEAD_LETTER, code)
    assert why in found["error_text"]
    assert found["headers"] == headers(*pairs), "whole, so that it can be resent"


def test_policy_is_off_by_default() -> None:
    found = accepted(RULE, policy=DelayPolicy())
    assert (found["error_code"], "policy repeats" in found["error_text"]) == ("bad-repeat", True)


@pytest.mark.parametrize("rule", [b"every 10s", b"*/10 * * * * *"])
def test_no_flood_of_occurrences_begins_before_the_record(rule: bytes) -> None:
    """Each of them would come at once."""
    every = [("delayline-repeat", rule), ("delayline-repeat-missed", b"all")]
    # All but the first one are at full tens of seconds.
    allowed, too_many = (("deliver-at", b"%d" % (CLOCK_MS - each * 10_000)) for each in (1_000, 1_001))
    assert accepted(*every, allowed)["kind"] == REPEATING
    found = accepted(*every, too_many)
    assert (found["error_code"], "1000 occurrences" in found["error_text"]) == ("bad-repeat", True)
    assert accepted(*every, too_many, ("delayline-repeat-count", b"1000"))["kind"] == REPEATING
    assert accepted(every[0], too_many)["kind"] == REPEATING, "one late occurrence comes"


def test_rare_occurrences_before_the_record_are_not_searched_beyond_it() -> None:
    """Many records may have such a rule, each one of its own."""
    before = rule_module._next_by_cron.cache_info().misses
    yearly = [("delayline-repeat", b"17 3 29 2 *"), ("delayline-repeat-missed", b"all")]
    assert accepted(*yearly, ("deliver-at", b"%d" % (CLOCK_MS - 2_000 * DAY)))["kind"] == REPEATING
    assert rule_module._next_by_cron.cache_info().misses - before < 10


def test_expiry_is_not_for_messages_that_repeat() -> None:
    policy = DelayPolicy(repeats=True, expiry_header="ce_expirytime")
    found = accepted(RULE, ("ce_expirytime", b"2099-01-01T00:00:00Z"), policy=policy)
    assert (found["error_code"], "delayline-repeat-until" in found["error_text"]) == ("bad-repeat", True)
