"""Schedules in the headers of other schedulers: which are followed, and which cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from sources.intake import presets as presets_module
from sources.intake.accept import accept
from sources.intake.preset_headers import Repeat
from state.checkpoint.batch_settings import DelayPolicy
from state.kinds import MESSAGE
from state.repeats.rule import Rule
from state.repeats.schedule import Schedule
from tests.messages import headers, records
from tests.sources.intake.accepted_repeats import CLOCK_MS, DAY, MINUTE, TOPIC, WRITTEN_MS, accepted, settings


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
