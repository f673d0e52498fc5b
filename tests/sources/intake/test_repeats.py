"""Messages that repeat: what their headers may say, when they are due first, and how they wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from sources.intake import presets as presets_module
from sources.intake.accept import accept
from sources.intake.near import accept_near
from sources.intake.preset_headers import Repeat
from state.cancel import ALWAYS, requests_of
from state.checkpoint.batch_settings import DelayPolicy
from state.kinds import DEAD_LETTER, MESSAGE, REPEATING, REQUEST
from state.kinds import repeats as repeat_mask
from state.names import named
from state.repeats import rule as rule_module
from state.repeats.rule import Rule
from state.repeats.schedule import Occurrence, Schedule
from state.repeats.waiting import waiting_in
from tests.messages import PARTITIONS, headers, records, some_batch_settings

CLOCK_MS = 1_798_000_000_000
WRITTEN_MS = CLOCK_MS - 1_000
TOPIC, RESULTS = "delayline-in", "delayline-results"
MINUTE, QUARTER, HOUR, DAY = 60_000, 900_000, 3_600_000, 86_400_000
RULE = ("delayline-repeat", b"every 10m")
POLICY = DelayPolicy(repeats=True)


def settings(policy: DelayPolicy = POLICY, **changes: Any) -> Any:
    return some_batch_settings(policy=policy, partitions=PARTITIONS | {RESULTS: 3}, **changes)


def accepted(*pairs: tuple[str, bytes | None], policy: DelayPolicy = POLICY, **changes: Any) -> dict[str, Any]:
    """Return the message that a record with these headers becomes, with its schedule in the column `schedule`."""
    stamp = changes.pop("timestamp_ms", WRITTEN_MS)
    row = {"timestamp_ms": stamp, "offset": 7, "headers": headers(*pairs), "key": b"k"}
    found = accept(records([row]), settings(policy, **changes), CLOCK_MS).messages
    message: dict[str, Any]
    (message,) = found.slice(0, 1).to_pylist()
    schedules = [] if message["kind"] != REPEATING else waiting_in(found.slice(0, 1))
    return message | {"waiting": schedules[0] if schedules else None}


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


def test_default_delay_is_not_for_messages_that_repeat() -> None:
    policy = DelayPolicy(repeats=True, default_ms=HOUR)
    assert accepted(RULE, policy=policy)["deliver_at_ms"] == WRITTEN_MS + 10 * MINUTE
    fixed = DelayPolicy(repeats=True, fixed_ms=HOUR)
    assert accepted(RULE, policy=fixed)["deliver_at_ms"] == WRITTEN_MS + HOUR


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


def test_no_end_is_too_late_and_no_count_too_large() -> None:
    found = accepted(RULE, ("delayline-repeat-until", b"9999-12-31T23:59:59Z"), ("delayline-repeat-count", b"9" * 500))
    assert found["waiting"].schedule.count == 2**31


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


def test_expiry_is_not_for_messages_that_repeat() -> None:
    policy = DelayPolicy(repeats=True, expiry_header="ce_expirytime")
    found = accepted(RULE, ("ce_expirytime", b"2099-01-01T00:00:00Z"), policy=policy)
    assert (found["error_code"], "delayline-repeat-until" in found["error_text"]) == ("bad-repeat", True)


def test_forwarders_leave_messages_that_repeat_to_the_batches() -> None:
    rows = [{"timestamp_ms": WRITTEN_MS, "offset": 0, "headers": headers(RULE, ("deliver-after", b"1s"))}]
    rows.append({"timestamp_ms": WRITTEN_MS, "offset": 1, "headers": headers(("deliver-after", b"1s"))})
    near = accept_near(records(rows), settings(), CLOCK_MS, CLOCK_MS + MINUTE)
    assert near.messages.column("offset").to_pylist() == [1]
    assert not repeat_mask(near.messages).any()
    assert near.is_urgent


@pytest.mark.parametrize(
    ("pairs", "rule", "count", "due_ms"),
    [
        ([("Nats-Schedule", b"@every 5m")], Rule(interval_ms=5 * MINUTE), None, WRITTEN_MS + 5 * MINUTE),
        ([("Nats-Schedule", b"@yearly")], Rule(cron="0 0 1 1 *"), None, 1_798_761_600_000),
        (
            [("Nats-Schedule", b"0 0 0 1 1 *"), ("Nats-Schedule-Time-Zone", b"Europe/Berlin")],
            Rule(cron="0 0 0 1 1 *", zone="Europe/Berlin"), None, 1_798_758_000_000,
        ),
        ([("Nats-Schedule", b"0 0 0 ? 1 *")], Rule(cron="0 0 0 * 1 *"), None, 1_798_761_600_000),
        # A step restricts: either field matches. The second of January is a Saturday.
        ([("Nats-Schedule", b"0 0 0 */2 1 SAT")], Rule(cron="0 0 0 1-31/2 1 SAT"), None, 1_798_761_600_000),
        ([("Nats-Schedule", b"0 0 0 2 1 */6")], Rule(cron="0 0 0 2 1 0-6/6"), None, 1_798_848_000_000),
        ([("Nats-Schedule", b"0 0 0 */2 1 ?")], Rule(cron="0 0 0 */2 1 *"), None, 1_798_761_600_000),
        ([("Nats-Schedule", b"0 0 0 */1 1 SAT")], Rule(cron="0 0 0 */1 1 SAT"), None, 1_798_848_000_000),
        ([("AMQ_SCHEDULED_CRON", b"0 0 1 1 *")], Rule(cron="0 0 1 1 *"), None, 1_798_761_600_000),
        (
            [("AMQ_SCHEDULED_PERIOD", b"60000"), ("AMQ_SCHEDULED_REPEAT", b"9"), ("AMQ_SCHEDULED_DELAY", b"5000")],
            Rule(interval_ms=MINUTE), 10, WRITTEN_MS + 5_000,
        ),
        (
            [("AMQ_SCHEDULED_PERIOD", b"60000"), ("AMQ_SCHEDULED_REPEAT", b"-1")],
            Rule(interval_ms=MINUTE), None, WRITTEN_MS + MINUTE,
        ),
    ],
)  # fmt: skip
def test_schedules_of_other_schedulers_are_followed(
    pairs: list[tuple[str, bytes]], rule: Rule, count: int | None, due_ms: int
) -> None:
    found = accepted(("x", b"1"), *pairs, presets={TOPIC: ("nats", "activemq")})
    assert found["error_text"] is None
    assert found["waiting"].schedule == Schedule(rule, count=count)
    assert found["deliver_at_ms"] == due_ms
    assert found["waiting"].headers == headers(("x", b"1")), "published again, it would repeat a second time"


@pytest.mark.parametrize(
    ("field", "days"),
    [
        (b"1/2", {1, 3, 5}),
        (b"mon/2,5/2", {1, 3, 5}),
        (b"SAT/1", {6}),
        (b"6/01", {6}),
        (b"2/1,0", {0, 2, 3, 4, 5, 6}),
        (b"5/9", {5}),
        (b"0/3", {0, 3, 6}),
        (b"*/3", {0, 3, 6}),
        (b"1-5/2", {1, 3, 5}),
        (b"5-5/2", {5}),
    ],
)
def test_week_of_nats_ends_with_saturday(field: bytes, days: set[int]) -> None:
    """A Sunday is day 0 there, and never day 7."""
    found = accepted(("Nats-Schedule", b"0 0 9 * * " + field), presets={TOPIC: ("nats",)})
    came, at_ms = set(), CLOCK_MS
    for _ in range(14):
        at_ms = found["waiting"].schedule.rule.after(at_ms)
        # The first of January 1970 was a Thursday.
        came.add((at_ms // DAY + 4) % 7)
    assert came == days


@pytest.mark.parametrize(
    ("pairs", "code"),
    [
        ([("Nats-Schedule", b"0 0 9 * * 1/0")], "bad-repeat"),
        ([("Nats-Schedule", b"@every 1s")], "bad-repeat"),
        ([("Nats-Schedule", b"@reboot")], "bad-repeat"),
        ([("Nats-Schedule", b"@every 5m"), ("Nats-Schedule-Time-Zone", b"UTC")], "bad-repeat"),
        ([("AMQ_SCHEDULED_CRON", b"0 9 * * *"), ("AMQ_SCHEDULED_DELAY", b"5000")], "bad-repeat"),
        ([("AMQ_SCHEDULED_REPEAT", b"3"), ("AMQ_SCHEDULED_DELAY", b"5000")], "bad-repeat"),
        ([("AMQ_SCHEDULED_CRON", b"every day")], "bad-repeat"),
        ([("AMQ_SCHEDULED_PERIOD", b"60000"), ("AMQ_SCHEDULED_REPEAT", b"often")], "bad-repeat"),
    ],
)
def test_schedules_of_others_that_cannot_be_followed(pairs: list[tuple[str, bytes]], code: str) -> None:
    assert accepted(*pairs, presets={TOPIC: ("nats", "activemq")})["error_code"] == code


def test_each_schedule_of_others_is_read_once_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes | None] = []
    nats = presets_module._BY_NAME["nats"]
    assert nats.repeat is not None
    parse = nats.repeat.parse

    def counted(values: Mapping[str, bytes | None]) -> Schedule | None:
        read.append(values["Nats-Schedule"])
        return parse(values)

    counting = replace(nats, repeat=Repeat(nats.repeat.headers, counted))
    monkeypatch.setitem(presets_module._BY_NAME, "nats", counting)
    schedules = [b"@every 10m", b"0 0 0 30 2 *", b"@every 1ms", b"@at 2027-01-01T00:00:00Z"]
    rows = [
        {"timestamp_ms": WRITTEN_MS, "offset": n, "headers": headers(("Nats-Schedule", schedules[n % 4]))}
        for n in range(40)
    ]
    found = accept(records(rows), settings(presets={TOPIC: ("nats",)}), CLOCK_MS).messages.slice(0, 40)
    assert sorted(each or b"" for each in read) == sorted(schedules)
    assert found.column("error_code").to_pylist() == [None, "bad-repeat", "bad-repeat", None] * 10


def test_other_schedules_are_what_they_were() -> None:
    presets = {TOPIC: ("nats", "activemq")}
    at = ("Nats-Schedule", b"@at 2027-01-01T00:00:00Z")
    found = accepted(at, presets=presets)
    assert (found["kind"], found["deliver_at_ms"], found["headers"]) == (MESSAGE, 1_798_761_600_000, headers(at))
    found = accepted(("AMQ_SCHEDULED_PERIOD", b"60000"), ("AMQ_SCHEDULED_REPEAT", b"0"), presets=presets)
    assert (found["kind"], found["deliver_at_ms"]) == (MESSAGE, WRITTEN_MS + MINUTE)
    off = accepted(("Nats-Schedule", b"@every 5m"), presets=presets, policy=DelayPolicy())
    assert (off["error_code"], "policy repeats" in off["error_text"]) == ("bad-schedule", True)
    assert (
        accepted(("AMQ_SCHEDULED_CRON", b"0 9 * * *"), presets=presets, policy=DelayPolicy())["error_code"]
        == "bad-schedule"
    )
