"""Names of headers that differ from one with a meaning by case alone: such a record is refused, and never delivered."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from conf.sections import HeaderSettings
from conf.topic_tables import PRESETS
from sources.intake.accept import accept
from sources.intake.presets import presets_named
from state.cancel import CANCEL_HEADER, CONDITION_HEADER, OPERATOR_HEADER, REPLACES_HEADER
from state.checkpoint.batch_settings import BatchSettings, DelayPolicy
from state.names import ANSWER_HEADER, CANCEL_NAME_HEADER, FROM_HEADER, NAME_HEADER
from tests.messages import PARTITIONS, headers, records, some_batch_settings
from tests.thorough import examples

CLOCK_MS = 1_798_000_000_000
RESULTS, EXPIRY_HEADER = "delayline-results", "ce_expirytime"
DELAYS = ["deliver-at", "deliver-after", "delay-level"]
REQUESTS = [
    CANCEL_HEADER, REPLACES_HEADER, CONDITION_HEADER, OPERATOR_HEADER, NAME_HEADER, CANCEL_NAME_HEADER, ANSWER_HEADER,
]  # fmt: skip
SCHEDULES = [header.name for preset in presets_named(PRESETS) for header in preset.schedule]
TARGETS = [preset.target for preset in presets_named(PRESETS) if preset.target]
OTHERS = [
    "AMQ_SCHEDULED_CRON", "AMQ_SCHEDULED_REPEAT", "Nats-Schedule-Source", "scheduler-target-key", "schedule_target_key",
    "schedule_target_partition", "schedule_target_partition_key", "schedule_schema_version", "schedule_source_type",
]  # fmt: skip


def batch_settings(**changes: Any) -> BatchSettings:
    policy = DelayPolicy(names=FROM_HEADER, expiry_header=EXPIRY_HEADER)
    own: dict[str, Any] = {"policy": policy, "partitions": PARTITIONS | {RESULTS: 3}, "allowed_outputs": ("orders",)}
    return some_batch_settings(**own | changes)


def accepted(settings: BatchSettings, *pairs: tuple[str, bytes | None], **record: Any) -> dict[str, Any]:
    row = {"timestamp_ms": CLOCK_MS, "key": b"k", "headers": headers(*pairs)} | record
    only: dict[str, Any] = accept(records([row]), settings, CLOCK_MS).messages.to_pylist()[0]
    return only


@example("deliver-after", [False], b"10s")
@given(
    st.sampled_from([*DELAYS, "deliver-to", EXPIRY_HEADER, *REQUESTS, *SCHEDULES, *TARGETS, *OTHERS]),
    st.lists(st.booleans(), min_size=1, max_size=30),
    st.sampled_from([b"10s", b"1", b"orders", b"delayline-in/0/1", None]),
)
@settings(max_examples=examples(200))
def test_a_name_in_another_case_is_refused_by_the_name_that_was_meant(
    name: str, is_upper: list[bool], value: bytes | None
) -> None:
    written = "".join(
        letter.upper() if is_upper[at % len(is_upper)] else letter.lower() for at, letter in enumerate(name)
    )
    assume(written != name)
    message = accepted(batch_settings(presets={"delayline-in": PRESETS}), (written, value), value=b"v")
    assert (message["error_code"], message["output_topic"]) == ("header-case", "delayline-dead-letter")
    assert f"'{written}'" in message["error_text"]
    assert f"write {name}" in message["error_text"]


def test_other_names_and_names_of_presets_that_the_topic_does_not_have_are_delivered() -> None:
    for name in ("deliver", "deliver_after", "DELIVER-AFTERS", "X-DELAY", "Delayline-Id", "sp\u00e4ter"):
        assert accepted(batch_settings(), (name, b"10s"))["error_code"] is None


def test_the_names_of_the_settings_count() -> None:
    own = batch_settings(headers=HeaderSettings(deliver_after="Deliver-After", deliver_at="sp\u00e4ter"))
    assert accepted(own, ("Deliver-After", b"10s"))["deliver_at_ms"] == CLOCK_MS + 10_000
    for name in ("deliver-after", "SP\u00e4TER"):
        assert accepted(own, (name, b"10s"))["error_code"] == "header-case"


def test_a_record_with_the_right_name_too_is_refused() -> None:
    message = accepted(batch_settings(), ("deliver-after", b"1h"), ("Deliver-After", b"10s"))
    assert message["error_code"] == "header-case"


def test_where_delay_headers_count_for_nothing_their_case_does_not_either() -> None:
    fixed = batch_settings(
        policy=DelayPolicy(fixed_ms=5_000, names=FROM_HEADER), presets={"delayline-in": ("rabbitmq", "activemq")}
    )
    for name in ("Deliver-After", "DELAY-LEVEL", "X-Delay", "amq_scheduled_cron"):
        message = accepted(fixed, (name, b"soon"))
        assert (message["error_code"], message["deliver_at_ms"]) == (None, CLOCK_MS + 5_000)
    assert accepted(fixed, ("Deliver-To", b"orders"))["error_code"] == "header-case"


@pytest.mark.parametrize(
    ("preset", "pairs", "value"),
    [
        ("etf1", [("Deliver-After", b"10s")], None),
        ("etf1", [("Deliver-To", b"orders")], None),
        ("karafka", [("schedule_source_type", b"cancel"), ("Deliver-After", b"10s")], b"v"),
    ],
)
def test_a_record_that_asks_for_a_delay_in_another_case_cancels_nothing(
    preset: str, pairs: list[tuple[str, bytes]], value: bytes | None
) -> None:
    message = accepted(batch_settings(presets={"delayline-in": (preset,)}), *pairs, value=value)
    assert (message["error_code"], message["output_topic"]) == ("header-case", "delayline-dead-letter")


def test_the_headers_of_a_cancel_are_read_like_those_of_a_message() -> None:
    cancel = (CANCEL_HEADER, b"delayline-in/0/1")
    # Its schedule counts for nothing.
    assert accepted(batch_settings(), cancel, ("Deliver-After", b"10s"))["output_topic"] == RESULTS
    assert accepted(batch_settings(), cancel, ("Delayline-Replaces", b"x"))["error_code"] == "header-case"


def test_thousands_of_cases_of_one_name_are_refused_in_linear_time() -> None:
    name = "deliver-after"
    written = ["".join(c.upper() if number >> at & 1 else c for at, c in enumerate(name)) for number in range(2**13)]
    pairs = [(each, b"10s") for each in sorted({*written} - {name})]
    rows = [{"timestamp_ms": CLOCK_MS, "headers": headers(*pairs), "offset": offset} for offset in range(20)]
    # With a search for each name it takes minutes, and the limit of a test's time ends it.
    codes = accept(records(rows), batch_settings(max_message_bytes=2**24), CLOCK_MS).messages.column("error_code")
    assert codes.unique().to_pylist() == ["header-case"]
