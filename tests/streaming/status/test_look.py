"""What is shown of a message that repeats, while it waits."""

from __future__ import annotations

from pyspark.sql import Row

from state.repeats.rule import Rule, parse_rule
from state.repeats.schedule import Schedule
from streaming.status.look import message_fields, repeat_fields

DUE_MS = 1_798_761_600_000


def headers(schedule: Schedule, number: int = 7) -> list[Row]:
    own = [("x", b"1"), ("delayline-schedule", schedule.to_bytes()), ("delayline-occurrence", b"%d" % number)]
    return [Row(key=key, value=value) for key, value in own]


def test_rule_and_next_three_instants_are_shown_in_place_of_its_headers() -> None:
    row = Row(
        id="in/0/1", place="sealed", deliver_at_ms=DUE_MS, timestamp_ms=1, output_topic="out", error_code=None,
        key=None, value=b"v", headers=headers(Schedule(parse_rule("0 9 * * *", "Europe/Berlin"))),
    )  # fmt: skip
    shown = message_fields(row.asDict())
    assert shown["headers"] == [["x", "1"]]
    assert shown["repeat"] == {
        "rule": "0 9 * * * (Europe/Berlin)",
        "number": 7,
        "next": ["2027-01-01T00:00:00.000Z", "2027-01-01T08:00:00.000Z", "2027-01-02T08:00:00.000Z"],
    }


def test_no_instant_is_shown_after_the_last_one() -> None:
    found = repeat_fields(headers(Schedule(Rule(interval_ms=60_000), count=8)), DUE_MS)
    assert found is not None
    assert len(found["next"]) == 2


def test_zone_that_this_host_does_not_have_is_no_reason_to_show_nothing() -> None:
    own = headers(Schedule(Rule(cron="0 9 * * *", zone="Europe/Atlantis")))
    found = repeat_fields(own, DUE_MS)
    assert found is not None
    assert found["next"] == ["2027-01-01T00:00:00.000Z"]


def test_other_messages_may_have_headers_of_these_names() -> None:
    own = [Row(key="delayline-schedule", value=b"tonight"), Row(key="delayline-occurrence", value=b"1")]
    assert repeat_fields(own, DUE_MS) is None
    assert repeat_fields(own[:1], DUE_MS) is None
