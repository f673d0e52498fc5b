"""Policies of delays, by input topic."""

from __future__ import annotations

from typing import Any

import pytest

from conf.load import load_settings
from sources.intake.accept import accept
from state.checkpoint.batch_settings import DelayPolicy, batch_settings_from
from state.checkpoint.origin import CheckpointOrigin
from tests.messages import PARTITIONS, headers, records, some_batch_settings

CLOCK_MS = 1_798_000_000_000
WRITTEN_MS = CLOCK_MS - 1_000
EXPIRY = "ce_expirytime"
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


def accepted(
    policy: DelayPolicy, *pairs: tuple[str, bytes | None], timestamp_ms: int = WRITTEN_MS
) -> tuple[str | None, int]:
    settings = some_batch_settings(policies={"delayline-in": policy})
    table = records([{"timestamp_ms": timestamp_ms, "headers": headers(*pairs)}])
    row: dict[str, Any] = accept(table, settings, CLOCK_MS).messages.to_pylist()[0]
    return row["error_code"], row["deliver_at_ms"]


def test_a_default_delay_is_for_messages_that_ask_for_none() -> None:
    policy = DelayPolicy(default_ms=MINUTE)
    assert accepted(policy) == (None, WRITTEN_MS + MINUTE)
    assert accepted(policy, ("deliver-after", b"0")) == (None, WRITTEN_MS)
    assert accepted(policy, ("delay-level", b"3")) == (None, WRITTEN_MS + 10_000)
    assert accepted(policy, ("deliver-after", b"soon")) == ("bad-deliver-after", WRITTEN_MS)


def test_a_fixed_delay_goes_before_every_header_and_none_of_them_is_an_error() -> None:
    policy = DelayPolicy(default_ms=1, fixed_ms=MINUTE)
    for pairs in ([], [("deliver-after", b"1d")], [("deliver-after", b"soon")], [("delay-level", b"1")] * 2):
        assert accepted(policy, *pairs) == (None, WRITTEN_MS + MINUTE)
    assert accepted(DelayPolicy(fixed_ms=0)) == (None, WRITTEN_MS)


@pytest.mark.parametrize(
    "header", [("deliver-after", b"2h"), ("deliver-at", b"%d" % (WRITTEN_MS + 2 * HOUR)), ("delay-level", b"18")]
)
def test_a_longer_delay_than_the_policys_is_rejected_or_shortened(header: tuple[str, bytes]) -> None:
    assert accepted(DelayPolicy(most_ms=HOUR), header)[0] == "delay-too-long"
    since_ms = CLOCK_MS if header[0] == "deliver-at" else WRITTEN_MS
    assert accepted(DelayPolicy(most_ms=HOUR, clamps=True), header) == (None, since_ms + HOUR)
    assert accepted(DelayPolicy(most_ms=3 * HOUR), header) == (None, WRITTEN_MS + 2 * HOUR)


def test_the_limit_of_all_topics_is_shortened_to_as_well() -> None:
    assert accepted(DelayPolicy(clamps=True), ("deliver-after", b"9999d")) == (None, WRITTEN_MS + 366 * DAY)
    assert accepted(DelayPolicy(most_ms=400 * DAY), ("deliver-after", b"399d")) == (None, WRITTEN_MS + 399 * DAY)


@pytest.mark.parametrize("never", [b"9223372036854775807", b"9007199254740991", b"253402300799999", b"9" * 30,
                                   b"9999-12-31T23:59:59.9999999Z"])  # fmt: skip
def test_an_instant_that_stands_for_never_is_shortened_like_any_other(never: bytes) -> None:
    assert accepted(DelayPolicy(most_ms=HOUR, clamps=True), ("deliver-at", never)) == (None, CLOCK_MS + HOUR)
    assert accepted(DelayPolicy(clamps=True), ("deliver-at", never)) == (None, CLOCK_MS + 366 * DAY)
    assert accepted(DelayPolicy(), ("deliver-at", never))[0] == "delay-too-long"
    assert accepted(DelayPolicy(expiry_header=EXPIRY), (EXPIRY, never)) == (None, WRITTEN_MS)


def test_an_instant_in_another_unit_is_never_shortened() -> None:
    for number in (CLOCK_MS // 1_000, CLOCK_MS * 1_000, CLOCK_MS * 1_000_000):
        assert accepted(DelayPolicy(clamps=True), ("deliver-at", b"%d" % number))[0] == "bad-deliver-at"


def test_an_instant_is_never_shortened_to_one_before_the_clock() -> None:
    policy, hours_ago = DelayPolicy(most_ms=HOUR, clamps=True), CLOCK_MS - 5 * HOUR
    soon, later = CLOCK_MS + 10 * MINUTE, CLOCK_MS + 3 * HOUR
    assert accepted(policy, ("deliver-at", b"%d" % soon), timestamp_ms=hours_ago) == (None, soon)
    assert accepted(policy, ("deliver-at", b"%d" % later), timestamp_ms=hours_ago) == (None, CLOCK_MS + HOUR)
    assert accepted(policy, ("deliver-after", b"2h"), timestamp_ms=hours_ago) == (None, hours_ago + HOUR)


@pytest.mark.parametrize("policy", [DelayPolicy(clamps=True), DelayPolicy(fixed_ms=1), DelayPolicy(default_ms=1)])
def test_no_policy_hides_a_timestamp_in_microseconds(policy: DelayPolicy) -> None:
    requests = [("deliver-after", b"1s")] if policy.clamps else []
    assert accepted(policy, *requests, timestamp_ms=WRITTEN_MS * 1_000)[0] == "delay-too-long"


def test_a_default_or_fixed_delay_above_the_longest_is_treated_like_one_that_was_asked_for() -> None:
    assert accepted(DelayPolicy(default_ms=2 * HOUR, most_ms=HOUR))[0] == "delay-too-long"
    assert accepted(DelayPolicy(fixed_ms=2 * HOUR, most_ms=HOUR, clamps=True)) == (None, WRITTEN_MS + HOUR)


def test_a_topics_policies_go_over_those_of_all_topics() -> None:
    settings = load_settings(
        None,
        ["topics.input=a,b.c", "policies.default_delay=1m", "policies.max_delay=1h",
         "policies.b.c.default_delay=2m", "policies.b.c.over_max_delay=clamp", "policies.b.c.name_mode=keep"],
        {},
    )  # fmt: skip
    batch_settings = batch_settings_from(settings, PARTITIONS, (7, 1), CheckpointOrigin("c", 1, 2))
    assert batch_settings.policy == DelayPolicy(default_ms=MINUTE, most_ms=HOUR, names="off")
    assert batch_settings.policies == {
        "b.c": DelayPolicy(2 * MINUTE, None, HOUR, clamps=True, names="off", name_mode="keep")
    }
    assert [batch_settings.name_mode(topic) for topic in ("a", "b.c")] == ["replace", "keep"]
    rows = [{"topic": topic, "timestamp_ms": WRITTEN_MS} for topic in ("a", "b.c", "a")]
    due_ms = accept(records(rows), batch_settings, CLOCK_MS).messages.column("deliver_at_ms").to_pylist()
    assert due_ms == [WRITTEN_MS + MINUTE, WRITTEN_MS + 2 * MINUTE, WRITTEN_MS + MINUTE]


@pytest.mark.parametrize(
    ("pairs", "code"),
    [
        ([], None),
        ([(EXPIRY, b"%d" % (WRITTEN_MS + MINUTE))], None),
        ([(EXPIRY, b"%d" % (WRITTEN_MS + MINUTE - 1))], "expired"),
        ([(EXPIRY, b"2026-12-23T05:00:00Z")], None),
        ([(EXPIRY, b"2020-01-01T00:00:00Z")], "expired"),
        ([(EXPIRY, b"soon")], "bad-expiry"),
        ([(EXPIRY, b"60000")], "bad-expiry"),
        ([(EXPIRY.upper(), b"2020-01-01T00:00:00Z")], "header-case"),
        ([(EXPIRY, None)], "bad-expiry"),
        ([(EXPIRY, b"2026-12-24T18:00:00Z")] * 2, "bad-expiry"),
        ([(EXPIRY, b"9" * 600_000)], "bad-expiry"),
    ],
)  # fmt: skip
def test_what_expires_before_it_is_due_is_refused_at_once(pairs: list[tuple[str, bytes]], code: str | None) -> None:
    delay = ("deliver-after", b"1m")
    assert accepted(DelayPolicy(expiry_header=EXPIRY), delay, *pairs)[0] == code
    assert accepted(DelayPolicy(), delay, *pairs)[0] is None, "without the policy it is a header like any other"
