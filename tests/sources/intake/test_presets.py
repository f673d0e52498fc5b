"""The records that presets read, as the publishers of other schedulers write them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.topic_tables import PRESETS
from sources.intake.accept import accept
from sources.intake.presets import presets_named
from tests.messages import headers, records, some_batch_settings

CLOCK_MS = 1_798_000_000_000
WRITTEN_MS = CLOCK_MS - 1_000
# 2026-12-24T18:00:00Z
DUE_MS = 1_798_135_200_000


def accepted(preset: str, *pairs: tuple[str, bytes | None], topic: str = "delayline-in") -> dict[str, Any]:
    settings = some_batch_settings(presets={"delayline-in": tuple(preset.split(","))}, allowed_outputs=("orders",))
    table = records([{"timestamp_ms": WRITTEN_MS, "topic": topic, "headers": headers(*pairs)}])
    row: dict[str, Any] = accept(table, settings, CLOCK_MS).messages.to_pylist()[0]
    return row


@pytest.mark.parametrize(
    ("preset", "pairs", "deliver_at_ms"),
    [
        ("rabbitmq", [("x-delay", b"5000")], WRITTEN_MS + 5_000),
        ("rabbitmq", [("x-delay", b"4294967295")], WRITTEN_MS + 2**32 - 1),
        # The exchange negates the header when it delivers.
        ("rabbitmq", [("x-delay", b"-5000")], WRITTEN_MS),
        ("activemq", [("AMQ_SCHEDULED_DELAY", b"60000"), ("AMQ_SCHEDULED_PERIOD", b"5")], WRITTEN_MS + 60_000),
        ("activemq", [("AMQ_SCHEDULED_PERIOD", b"5"), ("AMQ_SCHEDULED_REPEAT", b'"0"')], WRITTEN_MS + 5),
        ("activemq", [("AMQ_SCHEDULED_CRON", b"")], WRITTEN_MS),
        # ActiveMQ adds the delay if it is above 0, and the period if not.
        ("activemq", [("AMQ_SCHEDULED_DELAY", b"0"), ("AMQ_SCHEDULED_PERIOD", b"5")], WRITTEN_MS + 5),
        ("activemq", [("AMQ_SCHEDULED_DELAY", b'"-1"'), ("AMQ_SCHEDULED_PERIOD", b"5")], WRITTEN_MS + 5),
        ("activemq", [("AMQ_SCHEDULED_DELAY", b"-60000")], WRITTEN_MS),
        # Artemis: the property of its own clients, and the other header of its STOMP. Both go before the delay there.
        ("activemq", [("_AMQ_SCHED_DELIVERY", b"%d" % DUE_MS)], DUE_MS),
        ("activemq", [("AMQ_SCHEDULED_TIME", b"%d" % DUE_MS), ("AMQ_SCHEDULED_DELAY", b"5")], DUE_MS),
        ("activemq", [("AMQ_SCHEDULED_DELAY", b"60000"), ("_AMQ_SCHED_DELIVERY", b"%d" % DUE_MS)], DUE_MS),
        ("activemq", [("_AMQ_SCHED_DELIVERY", b"0"), ("AMQ_SCHEDULED_DELAY", b"5")], WRITTEN_MS + 5),
        ("activemq", [("_AMQ_SCHED_DELIVERY", b"0")], WRITTEN_MS),
        # Java's BigInteger.valueOf(epoch ms).toByteArray(), as Spring's DeadLetterPublishingRecovererFactory writes it.
        (
            "spring-retry",
            [("retry_topic-backoff-timestamp", DUE_MS.to_bytes(6)), ("retry_topic-attempts", b"\0\0\0\2")],
            DUE_MS,
        ),
        # Each retry adds one, and Spring reads the last.
        ("spring-retry", [("retry_topic-backoff-timestamp", due.to_bytes(6)) for due in (WRITTEN_MS, DUE_MS)], DUE_MS),
        ("nats", [("Nats-Schedule", b"@at 2026-12-24T18:00:00Z")], DUE_MS),
        ("nats", [("Nats-Schedule", b"@at 2026-12-24T19:00:00.0000001+01:00")], DUE_MS + 1),
        ("nats", [("Nats-Schedule", b"@at 2020-01-01T00:00:00Z")], 1_577_836_800_000),
        ("rocketmq", [("DELAY", b"3")], WRITTEN_MS + 10_000),
        ("rocketmq", [("TIMER_DELAY_SEC", b"7")], WRITTEN_MS + 7_000),
        ("rocketmq", [("TIMER_DELAY_MS", b"7")], WRITTEN_MS + 7),
        ("rocketmq", [("TIMER_DELIVER_MS", b"%d" % DUE_MS)], DUE_MS),
        ("rocketmq", [("__STARTDELIVERTIME", b"%d" % DUE_MS)], DUE_MS),
        # RocketMQ's own precedence.
        ("rocketmq", [("DELAY", b"0"), ("TIMER_DELIVER_MS", b"%d" % DUE_MS)], DUE_MS),
        ("rocketmq", [("DELAY", b"-1"), ("TIMER_DELAY_SEC", b"7")], WRITTEN_MS + 7_000),
        ("rocketmq", [("TIMER_DELAY_MS", b"-7"), ("TIMER_DELIVER_MS", b"%d" % DUE_MS)], WRITTEN_MS),
        ("rocketmq", [("TIMER_DELIVER_MS", b"9"), ("TIMER_DELAY_MS", b"7"), ("DELAY", b"1")], WRITTEN_MS + 1_000),
    ],
)  # fmt: skip
def test_each_preset_reads_when(preset: str, pairs: list[tuple[str, bytes]], deliver_at_ms: int) -> None:
    message = accepted(preset, *pairs)
    assert (message["error_code"], message["deliver_at_ms"]) == (None, deliver_at_ms)
    # A consumer that relies on a header finds it.
    assert message["headers"] == headers(*pairs)


@pytest.mark.parametrize(("preset", "header"), [("rocketmq", "REAL_TOPIC"), ("nats", "Nats-Schedule-Target")])
def test_a_preset_reads_where(preset: str, header: str) -> None:
    assert accepted(preset, (header, b"orders"))["output_topic"] == "orders"
    assert accepted(preset, (header, b"secret"))["error_code"] == "topic-not-allowed"
    assert f"{header} names a topic: 'a b'" in accepted(preset, (header, b"a b"))["error_text"]
    assert accepted(preset, (header, b"orders"), (header, b"orders"))["error_code"] == "bad-deliver-to"
    own = accepted(preset, (header, b"secret"), ("deliver-to", b"orders"))
    assert (own["error_code"], own["output_topic"]) == (None, "orders")


@pytest.mark.parametrize(
    ("preset", "header", "value", "named"),
    [
        ("rabbitmq", "x-delay", b"--1", "x-delay is a whole number"),
        ("rabbitmq", "x-delay", b"\0\0\x13\x88", "perhaps the number 5000"),
        ("rabbitmq", "x-delay", None, "it has no value"),
        ("activemq", "AMQ_SCHEDULED_CRON", b"0 * * * *", "AMQ_SCHEDULED_CRON asks for a feature"),
        ("activemq", "_AMQ_SCHED_DELIVERY", b"5000", "is before September 2001 as epoch ms. Is it a delay?"),
        ("activemq", "_AMQ_SCHED_DELIVERY", b"%d" % (DUE_MS // 1_000), "is seconds by its size"),
        ("spring-retry", "retry_topic-backoff-timestamp", b"%d" % DUE_MS, "1 to 8 bytes"),
        ("spring-retry", "retry_topic-backoff-timestamp", b"\xff" * 6, "1 to 8 bytes"),
        ("nats", "Nats-Schedule", b"@every 5m", "need the policy repeats"),
        ("nats", "Nats-Schedule", b"@at tomorrow", "'tomorrow' is not RFC 3339"),
        ("nats", "Nats-Schedule", b"@at 1798135200000", "is not RFC 3339"),
        ("rocketmq", "TIMER_DELIVER_MS", b"1798135200", "is seconds by its size"),
        ("rocketmq", "DELAY", b"soon", "DELAY: "),
    ],
)
def test_what_a_preset_cannot_follow_is_a_dead_letter_that_names_the_header(
    preset: str, header: str, value: bytes | None, named: str
) -> None:
    message = accepted(preset, (header, value))
    assert message["error_code"] == "bad-schedule"
    assert header in message["error_text"]
    assert named in message["error_text"]


@pytest.mark.parametrize(
    ("preset", "schedule", "other"),
    [
        ("activemq", ("AMQ_SCHEDULED_DELAY", b"0"), ("AMQ_SCHEDULED_REPEAT", b"9")),
        ("nats", ("Nats-Schedule", b"@at 2026-12-24T18:00:00Z"), ("Nats-Schedule-Source", b"orders")),
    ],
)
def test_a_header_about_a_schedule_is_refused_with_it_and_means_nothing_without(
    preset: str, schedule: tuple[str, bytes], other: tuple[str, bytes]
) -> None:
    assert f"{other[0]} asks for a feature" in accepted(preset, schedule, other)["error_text"]
    alone = accepted(preset, other)
    assert (alone["error_code"], alone["deliver_at_ms"]) == (None, WRITTEN_MS)


@pytest.mark.parametrize("value", [b" ", b"-1 ", b'" '], ids=["blanks", "blanks behind a number", "blanks in quotes"])
@pytest.mark.parametrize(
    ("preset", "name"),
    [("rabbitmq", "x-delay"), ("activemq", "AMQ_SCHEDULED_PERIOD"), ("rocketmq", "TIMER_DELAY_SEC")],
)
def test_a_header_of_blanks_costs_no_more_than_its_length(preset: str, name: str, value: bytes) -> None:
    # With a pattern that tries each place of the blanks, a value of this length takes an hour.
    message = accepted(preset, (name, value[:-1] + value[-1:] * 600_000))
    assert message["error_code"] == "bad-schedule"
    assert len(message["error_text"]) <= 1024


@pytest.mark.parametrize("value", [b"-5", b' " -5 " ', b'"-5"', b" -5 "])
def test_a_negative_delay_may_be_in_quotes(value: bytes) -> None:
    assert accepted("rabbitmq", ("x-delay", value))["deliver_at_ms"] == WRITTEN_MS


def test_the_limits_of_delays_hold_for_presets() -> None:
    assert accepted("rabbitmq", ("x-delay", b"9" * 30))["error_code"] == "delay-too-long"
    assert accepted("rocketmq", ("TIMER_DELAY_SEC", b"9" * 18))["error_code"] == "delay-too-long"
    assert accepted("spring-retry", ("retry_topic-backoff-timestamp", b"\x7f" * 8))["error_code"] == "delay-too-long"


def test_delaylines_own_header_goes_before_that_of_a_preset() -> None:
    message = accepted("rabbitmq", ("x-delay", b"never"), ("deliver-after", b"10s"))
    assert (message["error_code"], message["deliver_at_ms"]) == (None, WRITTEN_MS + 10_000)


def test_headers_of_two_presets_and_repeated_ones_are_refused() -> None:
    both = [("x-delay", b"1"), ("Nats-Schedule", b"@at 2026-12-24T18:00:00Z")]
    assert accepted("rabbitmq,nats", *both)["error_code"] == "two-delays"
    assert accepted("rabbitmq", *both)["error_code"] is None
    assert accepted("rabbitmq", ("x-delay", b"1"), ("x-delay", b"2"))["error_code"] == "two-delays"
    assert accepted("rabbitmq,nats", both[1])["deliver_at_ms"] == DUE_MS


def test_a_preset_is_for_its_topic_alone() -> None:
    assert accepted("rabbitmq", ("x-delay", b"5000"), topic="other-in")["deliver_at_ms"] == WRITTEN_MS


_VALUES = st.one_of(st.none(), st.binary(max_size=12), st.integers(0, 2**70).map(lambda number: b"%d" % number))
_HEADERS = st.lists(
    st.tuples(
        st.sampled_from([
            "deliver-after", "deliver-to",
            *(header.name for preset in presets_named(PRESETS) for header in preset.schedule),
            *(
                name
                for preset in presets_named(PRESETS)
                for name in (preset.target, *preset.refused, *preset.refused_with_schedule)
                if name
            ),
        ]),
        _VALUES,
    ),
    max_size=4,
)  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(["delayline-in", "other-in", "third"]), _HEADERS), max_size=20))
def test_a_table_gives_the_same_messages_as_its_records_one_by_one(rows: list[tuple[str, Any]]) -> None:
    settings = some_batch_settings(presets={"delayline-in": PRESETS, "other-in": ("rocketmq",)})
    each = [
        {"topic": topic, "offset": offset, "timestamp_ms": WRITTEN_MS, "headers": headers(*pairs)}
        for offset, (topic, pairs) in enumerate(rows)
    ]
    whole = accept(records(each), settings, CLOCK_MS).messages
    assert whole.to_pylist() == [accept(records([row]), settings, CLOCK_MS).messages.to_pylist()[0] for row in each]
