"""The contract with publishers, rule by rule."""

from __future__ import annotations

from typing import Any

import pytest

from conf import rejected
from conf.rejected import Rejected
from conf.sections import HeaderSettings
from sources.intake.accept import accept
from state.message import MESSAGE_SCHEMA
from tests.messages import PARTITIONS, headers, records, some_batch_settings

CLOCK_MS = 1_798_000_000_000
WRITTEN_MS = CLOCK_MS - 1_000
DAY_MS = 86_400_000
BATCH_SETTINGS = some_batch_settings(allowed_outputs=("orders", "new-*"), max_message_bytes=1_000)


def accept_one(*pairs: tuple[str, bytes | None], **record: Any) -> dict[str, Any]:
    table = records([{"timestamp_ms": WRITTEN_MS, "headers": headers(*pairs), **record}])
    row: dict[str, Any] = accept(table, BATCH_SETTINGS, CLOCK_MS).messages.to_pylist()[0]
    return row


@pytest.mark.parametrize(
    ("header", "deliver_at_ms"),
    [
        (("deliver-at", b"1798000005000"), 1_798_000_005_000),
        (("deliver-at", b"2026-12-24T18:00:00Z"), 1_798_135_200_000),
        (("deliver-at", b"0"), 0),
        (("deliver-at", b"1000000000000"), 10**12),
        (("deliver-after", b"10s"), WRITTEN_MS + 10_000),
        (("deliver-after", b"0"), WRITTEN_MS),
        (("deliver-after", b"366d"), WRITTEN_MS + 366 * DAY_MS),
        (("delay-level", b"3"), WRITTEN_MS + 10_000),
        (("delay-level", b"99"), WRITTEN_MS + 7_200_000),
        (("delay-level", b"0"), WRITTEN_MS),
        (("x-other", b"1"), WRITTEN_MS),
    ],
)
def test_each_header_sets_the_due_time(header: tuple[str, bytes], deliver_at_ms: int) -> None:
    message = accept_one(header)
    assert (message["deliver_at_ms"], message["error_code"]) == (deliver_at_ms, None)
    assert message["output_topic"] == "delayline-out"


@pytest.mark.parametrize("unit", [1_000, 1_000_000], ids=["microseconds", "nanoseconds"])
@pytest.mark.parametrize(
    "header",
    [("deliver-after", b"10s"), ("delay-level", b"3"), ("deliver-at", b"9" * 14)],
    ids=lambda header: header[0],
)
def test_a_delay_is_measured_against_the_jobs_clock_too(header: tuple[str, bytes], unit: int) -> None:
    message = accept_one(header, timestamp_ms=WRITTEN_MS * unit)
    assert message["error_code"] == "delay-too-long"
    assert "after the job's clock: is the record's timestamp in milliseconds?" in message["error_text"]


def test_a_publishers_clock_may_be_ahead_even_with_the_longest_delay() -> None:
    ahead_ms = CLOCK_MS + DAY_MS
    message = accept_one(("deliver-after", b"366d"), timestamp_ms=ahead_ms)
    assert (message["deliver_at_ms"], message["error_code"]) == (ahead_ms + 366 * DAY_MS, None)


@pytest.mark.parametrize(
    ("pairs", "error"),
    [
        ([("deliver-at", b"1"), ("deliver-after", b"1s")], rejected.TwoDelays),
        ([("deliver-after", b"1s"), ("deliver-after", b"1s")], rejected.TwoDelays),
        ([("delay-level", b"x"), ("deliver-at", b"x")], rejected.TwoDelays),
        ([("deliver-at", b"soon")], rejected.BadDeliverAt),
        ([("deliver-at", None)], rejected.BadDeliverAt),
        ([("deliver-after", b"\x00")], rejected.BadDeliverAfter),
        ([("deliver-after", None)], rejected.BadDeliverAfter),
        ([("delay-level", b"-1")], rejected.BadDelayLevel),
        ([("deliver-after", b"367d")], rejected.DelayTooLong),
        ([("deliver-at", b"9" * 14)], rejected.DelayTooLong),
        ([("deliver-at", b"9" * 100)], rejected.DelayTooLong),
        ([("deliver-at", b"9223372036854775807")], rejected.DelayTooLong),
        ([("deliver-at", b"1798000005")], rejected.BadDeliverAt),
        ([("deliver-at", b"60000")], rejected.BadDeliverAt),
        ([("Deliver-After", b"10s")], rejected.HeaderCase),
        ([("deliver-after", b"999999999999999999d")], rejected.DelayTooLong),
        ([("deliver-to", b"")], rejected.BadDeliverTo),
        ([("deliver-to", None)], rejected.BadDeliverTo),
        ([("deliver-to", b"orders\x00")], rejected.BadDeliverTo),
        ([("deliver-to", b"orders"), ("deliver-to", b"orders")], rejected.BadDeliverTo),
        ([("deliver-to", b"secret")], rejected.TopicNotAllowed),
        ([("deliver-to", b"delayline-in")], rejected.TopicNotAllowed),
        ([("deliver-to", b"new-orders")], rejected.TopicUnknown),
        ([("x", bytes(1_000))], rejected.MessageTooLarge),
        ([("delayline-repeat", b"every 10m")], rejected.BadRepeat),
        # If a record has two errors, the error about the delay is reported.
        ([("deliver-to", b"secret"), ("deliver-after", b"soon")], rejected.BadDeliverAfter),
        ([("deliver-to", b"secret"), ("deliver-to", b"new-orders")], rejected.BadDeliverTo),
        ([("deliver-to", b"secret"), ("x", bytes(1_000))], rejected.TopicNotAllowed),
    ],
)
def test_each_error_sends_the_whole_record_to_the_dead_letters_under_its_code(
    pairs: list[tuple[str, bytes | None]], error: type[Rejected]
) -> None:
    message = accept_one(*pairs, key=b"k", value=b"whole", offset=7)
    assert message["error_code"] == error.code
    assert message["error_text"].startswith(f"{error.code}: ")
    assert message["output_topic"] == "delayline-dead-letter"
    assert message["output_partition"] < PARTITIONS["delayline-dead-letter"]
    assert message["deliver_at_ms"] == WRITTEN_MS
    assert (message["key"], message["value"], message["offset"]) == (b"k", b"whole", 7)
    assert message["headers"] == headers(*pairs)


def test_there_is_a_case_above_for_every_error_that_rejects() -> None:
    marks = test_each_error_sends_the_whole_record_to_the_dead_letters_under_its_code.pytestmark  # type: ignore[attr-defined]
    # Whether an output topic refuses a record is known only when it is due. Presets, policies, names, cancels
    # and replacements have tests of their own.
    elsewhere = {
        rejected.RecordRefused,
        rejected.TopicClosed,
        rejected.BadSchedule,
        rejected.BadCancel,
        rejected.BadDeliverNow,
        rejected.BadName,
        rejected.BadReplaces,
        rejected.BadExpiry,
        rejected.Expired,
        rejected.TooManyWaiting,
        rejected.BadTimestamp,
    }
    assert {error for _, error in marks[0].args[1]} == set(Rejected.__subclasses__()) - elsewhere


def test_one_bad_record_does_not_affect_the_others() -> None:
    good = {"headers": headers(("deliver-after", b"10s")), "timestamp_ms": WRITTEN_MS}
    bad = {"headers": headers(("deliver-after", b"ten")), "timestamp_ms": WRITTEN_MS}
    accepted = accept(records([good, bad, good]), BATCH_SETTINGS, CLOCK_MS).messages
    assert accepted.column("error_code").to_pylist() == [None, "bad-deliver-after", None]
    assert accepted.column("deliver_at_ms").to_pylist() == [
        WRITTEN_MS + 10_000,
        WRITTEN_MS,
        WRITTEN_MS + 10_000,
    ]


@pytest.mark.parametrize(
    ("timestamp_ms", "plain_ms", "after_10s_ms"),
    [
        (-1, CLOCK_MS, CLOCK_MS + 10_000),
        (10**10, 10**10, 10**10 + 10_000),
        (CLOCK_MS, CLOCK_MS, CLOCK_MS + 10_000),
        # A plain message is due at once, whatever its timestamp. A delay counts from the timestamp.
        (CLOCK_MS + 300 * DAY_MS, CLOCK_MS, CLOCK_MS + 300 * DAY_MS + 10_000),
    ],
)
def test_records_with_odd_timestamps_are_accepted(timestamp_ms: int, plain_ms: int, after_10s_ms: int) -> None:
    assert accept_one(timestamp_ms=timestamp_ms)["deliver_at_ms"] == plain_ms
    delayed = accept_one(("deliver-after", b"10s"), timestamp_ms=timestamp_ms)
    assert (delayed["deliver_at_ms"], delayed["error_code"]) == (after_10s_ms, None)


@pytest.mark.parametrize("timestamp_ms", [0, CLOCK_MS // 1000, 10**10 - 1])
@pytest.mark.parametrize("header", [("deliver-after", b"1h"), ("delay-level", b"3")])
def test_no_delay_counts_from_a_timestamp_in_seconds(timestamp_ms: int, header: tuple[str, bytes]) -> None:
    delayed = accept_one(header, timestamp_ms=timestamp_ms)
    assert delayed["error_code"] == "bad-timestamp"
    assert "is it in milliseconds" in delayed["error_text"]
    # A record without a delay does not need a timestamp in milliseconds.
    assert accept_one(timestamp_ms=timestamp_ms)["deliver_at_ms"] == timestamp_ms


def test_deliver_to_chooses_topic_and_partition_and_combines_with_a_delay() -> None:
    message = accept_one(("deliver-to", b"orders"), ("deliver-after", b"1s"), key=b"foobar")
    assert (message["output_topic"], message["deliver_at_ms"]) == ("orders", WRITTEN_MS + 1000)
    assert message["output_partition"] == (-790332482 & 0x7FFFFFFF) % PARTITIONS["orders"]


@pytest.mark.parametrize(("partition", "output_partition"), [(0, 0), (3, 3), (4, 0), (11, 3)])
def test_without_a_key_the_partition_follows_the_input(partition: int, output_partition: int) -> None:
    assert accept_one(partition=partition)["output_partition"] == output_partition
    assert accept_one(partition=partition, key=b"")["output_partition"] == accept_one(key=b"")["output_partition"]


@pytest.mark.parametrize("content", [None, b"", b"\x00", bytes(range(256))])
def test_bytes_and_headers_are_unchanged(content: bytes | None) -> None:
    pairs = [("a", content), ("", None), ("a", b""), ("ö", b"\xff"), ("deliver-after", b"1s")]
    message = accept_one(*pairs, key=content, value=content)
    assert (message["key"], message["value"], message["headers"]) == (content, content, headers(*pairs))


@pytest.mark.parametrize(
    ("record", "bytes_"),
    [
        ({"key": bytes(400), "value": bytes(600)}, 1_000),
        ({"key": None, "value": bytes(1_001)}, 1_001),
        ({"key": bytes(1_001), "value": None}, 1_001),
        ({"value": bytes(900), "headers": headers(("ö", bytes(41)), ("ö", bytes(39)))}, 1_000),
        ({"value": bytes(900), "headers": headers(("ö", bytes(41)), ("öx", bytes(39)))}, 1_001),
        ({"value": bytes(0), "headers": headers(*[("", None)] * 126)}, 1_008),
    ],
)
def test_key_value_and_headers_count_together_against_the_size_limit(record: dict[str, Any], bytes_: int) -> None:
    message = accept_one(**record)
    assert message["error_code"] == (None if bytes_ <= 1_000 else "message-too-large")
    assert bytes_ <= 1_000 or f" have {bytes_} bytes, each header counting 8 more;" in message["error_text"]
    assert bytes_ <= 1_000 or " limits.max_message_bytes is 1000:" in message["error_text"]


def test_null_and_empty_headers_stay_distinct() -> None:
    assert [accept_one(headers=given)["headers"] for given in (None, list[Any]())] == [None, []]


def test_the_header_names_come_from_the_settings() -> None:
    batch_settings = some_batch_settings(headers=HeaderSettings(deliver_after="x-delay"))
    row = {"headers": headers(("deliver-after", b"1s"), ("x-delay", b"2s")), "timestamp_ms": WRITTEN_MS}
    assert accept(records([row]), batch_settings, CLOCK_MS).messages.column("deliver_at_ms").to_pylist() == [
        WRITTEN_MS + 2000
    ]


def test_no_records_give_no_messages() -> None:
    assert accept(records([]), BATCH_SETTINGS, CLOCK_MS).messages == MESSAGE_SCHEMA.empty_table()
