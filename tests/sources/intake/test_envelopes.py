"""Schedulers with messages in envelopes: records as the publishers of etf1's scheduler and of Karafka write them.

Their headers come from github.com/etf1/kafka-message-scheduler (schedule/kafka/schedule.go, runner/kafka/handler.go at
v0.0.9) and karafka.io/docs/Pro-Scheduled-Messages, in the order in which Karafka 2.6.1 writes them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sources.intake.accept import accept
from sources.intake.partitioner import partitions_for
from state.cancel import ALWAYS, Request, requests_of
from state.names import named
from tests.messages import PARTITIONS, headers, records, some_batch_settings

CLOCK_MS = 1_798_000_000_000
WRITTEN_MS = CLOCK_MS - 1_500
DUE_S = 1_798_135_200
TOPIC, RESULTS = "delayline-in", "delayline-results"
ETF1 = [
    ("scheduler-epoch", b"%d" % DUE_S),
    ("scheduler-target-topic", b"orders"),
    ("scheduler-target-key", b"video 7"),
]  # fmt: skip
KARAFKA = [
    ("schedule_schema_version", b"1.0.0"),
    ("schedule_target_epoch", b"%d" % DUE_S),
    ("schedule_source_type", b"schedule"),
    ("schedule_target_topic", b"orders"),
    ("schedule_target_key", b"video 7"),
]
# Karafka writes these headers after it has dispatched a schedule.
KARAFKA_TOMBSTONE = [
    *KARAFKA[:2],
    ("schedule_source_type", b"tombstone"),
    *KARAFKA[3:],
    ("schedule_source_offset", b"7"),
]


def accepted(preset: str, *rows: dict[str, Any], **changes: Any) -> tuple[list[dict[str, Any]], list[Request]]:
    table = records({"timestamp_ms": WRITTEN_MS, "offset": at, **row} for at, row in enumerate(rows))
    settings = some_batch_settings(
        presets={TOPIC: tuple(preset.split(","))},
        allowed_outputs=("orders",),
        partitions=PARTITIONS | {RESULTS: 3},
        **changes,
    )
    found = accept(table, settings, CLOCK_MS)
    return found.messages.to_pylist(), requests_of(found.requests)


def test_a_schedule_of_etf1_is_delivered_as_etf1_does_it() -> None:
    row = {"headers": headers(("trace", b"7"), *ETF1), "key": b"schedule 1", "value": b"v"}
    (plain, message, _), (request,) = accepted("etf1", {"value": b"plain"}, row)
    assert plain["headers"] is None
    assert (message["output_topic"], message["deliver_at_ms"]) == ("orders", DUE_S * 1_000)
    assert (message["key"], message["value"]) == (b"video 7", b"v")
    added = [
        ("scheduler-timestamp", b"%d" % (WRITTEN_MS // 1_000)),
        ("scheduler-key", b"schedule 1"),
        ("scheduler-topic", TOPIC.encode()),
    ]
    assert message["headers"] == headers(("trace", b"7"), *ETF1, *added)
    name = named(TOPIC, b"schedule 1")
    assert request == Request((TOPIC, 0, 1), ("", -1, -1), ALWAYS, DUE_S * 1_000, name, WRITTEN_MS, wants_answer=False)


@pytest.mark.parametrize(
    ("stamp_ms", "stamp_s"),
    [
        (-1, -1),
        (-1_000, -1),
        (CLOCK_MS - 1, CLOCK_MS // 1_000 - 1),
        (-9_100_000_000_000_000, -9_100_000_000_000),
        (9_100_000_000_000_000, 9_100_000_000_000),
        (9_100_000_000_000_999, 9_100_000_000_000),
        (-9_100_000_000_000_001, -9_100_000_000_001),
    ],
)
def test_whatever_its_timestamp_a_schedule_of_etf1_is_delivered(stamp_ms: int, stamp_s: int) -> None:
    (message,), _ = accepted("etf1", {"headers": headers(*ETF1), "timestamp_ms": stamp_ms})
    assert message["headers"][3] == {"key": "scheduler-timestamp", "value": b"%d" % stamp_s}


def test_a_schedule_of_karafka_is_delivered_as_karafka_does_it() -> None:
    row = {"headers": headers(*KARAFKA), "key": b"orders-1", "value": b"v", "partition": 2, "offset": 9}
    (message, _), (request,) = accepted("karafka", row)
    assert (message["output_topic"], message["deliver_at_ms"]) == ("orders", DUE_S * 1_000)
    added = [
        ("schedule_source_topic", TOPIC.encode()),
        ("schedule_source_partition", b"2"),
        ("schedule_source_offset", b"9"),
        ("schedule_source_key", b"orders-1"),
    ]
    assert (message["key"], message["headers"]) == (b"video 7", headers(*KARAFKA, *added))
    assert request.name == named(TOPIC, b"orders-1")


def test_headers_of_an_earlier_delivery_are_replaced_by_karafka_and_kept_by_etf1() -> None:
    before = [("schedule_source_topic", b"old"), ("scheduler-topic", b"old")]
    rows: list[dict[str, Any]] = [
        {"headers": headers(before[1], *ETF1, before[0]), "key": b"e"},
        {"value": b"plain", "headers": headers(*before)},
        {"headers": headers(before[0], *KARAFKA, before[1]), "key": b"k"},
        {"value": b"none"},
    ]
    (etf1, plain, karafka, none, *_), _ = accepted("etf1,karafka", *rows)
    topics = [header["value"] for header in etf1["headers"] if header["key"] == "scheduler-topic"]
    assert topics == [b"old", TOPIC.encode()]
    assert karafka["headers"][: len(KARAFKA) + 1] == headers(*KARAFKA, before[1])
    assert [header["key"] for header in karafka["headers"]].count("schedule_source_topic") == 1
    assert (plain["headers"], none["headers"]) == (headers(*before), None)


def test_without_a_key_in_the_envelope_there_is_none() -> None:
    rows = [{"headers": headers(*pairs[:-1]), "key": b"schedule 1"} for pairs in (ETF1, KARAFKA)]
    for preset, row in zip(("etf1", "karafka"), rows, strict=True):
        assert accepted(preset, row)[0][0]["key"] is None


def test_a_schedule_without_a_key_has_no_name_and_no_header_for_it() -> None:
    (message,), requests = accepted("etf1", {"headers": headers(*ETF1)})
    assert requests == []
    assert [header["key"] for header in message["headers"][3:]] == ["scheduler-timestamp", "scheduler-topic"]


def test_karafka_names_the_partition_or_the_key_that_chooses_it() -> None:
    pairs = [
        [*KARAFKA, ("schedule_target_partition", b"2")],
        [*KARAFKA, ("schedule_target_partition_key", b"a")],
        [*KARAFKA, ("schedule_target_partition_key", b"b")],
        [*KARAFKA, ("schedule_target_partition", b"3")],
        [*KARAFKA, ("schedule_target_partition", b"two")],
        KARAFKA,
    ]
    messages, _ = accepted("karafka", *({"headers": headers(*each), "key": b"k"} for each in pairs))
    by_key = partitions_for(pa.array([b"a", b"b", b"video 7"], pa.binary()), np.zeros(3, np.int64), np.full(3, 3))
    places = [message["output_partition"] for message in messages[:6]]
    assert [places[0], places[1], places[2], places[5]] == [2, *by_key.tolist()]
    assert [message["error_code"] for message in messages[3:5]] == ["bad-deliver-to"] * 2
    assert messages[3]["headers"] == headers(*pairs[3]), "a dead letter is the record as it was published"
    assert messages[3]["key"] == b"k"


@pytest.mark.parametrize(
    ("preset", "row"),
    [
        ("etf1", {"value": None}),
        ("etf1", {"value": None, "headers": headers(*ETF1)}),
        ("karafka", {"value": None, "headers": headers(KARAFKA[0], ("schedule_source_type", b"cancel"))}),
        ("karafka", {"value": None, "headers": headers(*KARAFKA_TOMBSTONE)}),
    ],
)
def test_cancels_are_asks_for_the_key(preset: str, row: dict[str, Any]) -> None:
    (message,), (request,) = accepted(preset, {"key": b"schedule 1", **row})
    assert (message["output_topic"], message["key"]) == (RESULTS, b"schedule 1")
    assert request == Request((TOPIC, 0, 0), ("", -1, -1), None, None, named(TOPIC, b"schedule 1"))
    (message,), requests = accepted(preset, row)
    assert (message["error_code"], requests) == ("bad-cancel", [])


def test_a_cancel_by_the_header_works_where_keys_are_names() -> None:
    _, (request,) = accepted("etf1", {"headers": headers(("delayline-cancel-name", b"schedule 1"))})
    assert (request.condition, request.name) == (None, named(TOPIC, b"schedule 1"))


def test_an_envelope_that_makes_the_message_too_large_is_a_dead_letter_as_it_was() -> None:
    large = [*ETF1[:2], ("scheduler-target-key", bytes(400_000))]
    row = {"headers": headers(*large), "key": bytes(400_000)}
    (message,), requests = accepted("etf1", row)
    assert (message["error_code"], message["headers"], requests) == ("message-too-large", headers(*large), [])
    assert message["key"] == row["key"]


def test_a_null_value_of_another_publisher_is_a_message() -> None:
    (message,), requests = accepted("karafka", {"value": None, "key": b"k"})
    assert (message["error_code"], message["output_topic"], requests) == (None, "delayline-out", [])


def test_another_version_of_karafkas_headers_is_refused() -> None:
    (message,), _ = accepted("karafka", {"headers": headers(("schedule_schema_version", b"2.0.0"), *KARAFKA[1:])})
    assert message["error_code"] == "bad-schedule"


@pytest.mark.parametrize("kind", [b"cancel", b"tombstone"])
@pytest.mark.parametrize("value", [b"v", None])
@pytest.mark.parametrize("presets", ["karafka", "etf1,karafka"])
def test_a_cancel_in_another_version_of_karafkas_headers_is_refused(
    presets: str, value: bytes | None, kind: bytes
) -> None:
    given = headers(("schedule_schema_version", b"2.0.0"), ("schedule_source_type", kind))
    row = {"key": b"k", "value": value, "headers": given}
    known = {**row, "headers": headers(("schedule_schema_version", b"1.1.0"), ("schedule_source_type", kind))}
    (message, _), (request,) = accepted(presets, row, known)
    assert (message["error_code"], message["output_topic"]) == ("bad-schedule", "delayline-dead-letter")
    assert (message["key"], message["value"], message["headers"]) == (b"k", value, given)
    assert "schedule_schema_version begins with 1." in message["error_text"]
    assert request.id[2] == 1


def test_a_cancel_by_delaylines_own_header_has_no_version() -> None:
    given = headers(("delayline-cancel-name", b"k"), ("schedule_schema_version", b"2.0.0"), KARAFKA_TOMBSTONE[2])
    _, (request,) = accepted("karafka", {"headers": given})
    assert request.name == named(TOPIC, b"k")


def test_our_own_headers_say_when_and_where_in_any_case() -> None:
    own = [("deliver-at", b"%d" % (DUE_S * 1_000 + 1)), ("deliver-to", b"delayline-out")]
    (message, _), _ = accepted("etf1", {"headers": headers(*ETF1, *own), "key": b"k"})
    assert (message["output_topic"], message["deliver_at_ms"]) == ("delayline-out", DUE_S * 1_000 + 1)


def test_a_null_value_with_a_header_of_ours_is_a_message() -> None:
    row = {"headers": headers(("deliver-after", b"5s")), "key": b"k", "value": None}
    (message,), requests = accepted("etf1", row)
    assert (message["deliver_at_ms"], message["output_topic"], requests) == (WRITTEN_MS + 5_000, "delayline-out", [])


@pytest.mark.parametrize(
    ("presets", "own", "due_ms", "output"),
    [
        ("etf1,rabbitmq", [("x-delay", b"60000")], WRITTEN_MS + 60_000, "delayline-out"),
        ("etf1,karafka", KARAFKA, DUE_S * 1_000, "orders"),
        ("etf1,rocketmq", [("REAL_TOPIC", b"orders")], WRITTEN_MS, "orders"),
        ("etf1", [("deliver-to", b"orders")], WRITTEN_MS, "orders"),
        ("etf1", [("deliver-at", b"%d" % (DUE_S * 1_000))], DUE_S * 1_000, "delayline-out"),
    ],
)
def test_a_null_value_that_others_schedule_is_a_message_beside_etf1(
    presets: str, own: list[tuple[str, bytes]], due_ms: int, output: str
) -> None:
    row = {"headers": headers(*own), "key": b"k", "value": None}
    for order in (presets, ",".join(reversed(presets.split(",")))):
        (message, *_), requests = accepted(order, row)
        assert (message["error_code"], message["deliver_at_ms"], message["output_topic"]) == (None, due_ms, output)
        assert all(request.condition == ALWAYS for request in requests), "nobody asks for a cancel"


def test_a_cancel_of_karafka_and_a_tombstone_of_etf1_cancel_beside_the_other() -> None:
    rows: list[dict[str, Any]] = [
        {"headers": headers(*KARAFKA_TOMBSTONE), "key": b"k", "value": None},
        {"headers": headers(*ETF1), "key": b"e", "value": None},
        {"key": b"e", "value": None},
    ]
    _, requests = accepted("etf1,karafka", *rows)
    assert [(request.condition, request.name) for request in requests] == [
        (None, named(TOPIC, key)) for key in (b"k", b"e", b"e")
    ]


def test_a_null_value_whose_schedule_repeats_is_a_dead_letter_beside_etf1() -> None:
    row = {"headers": headers(("AMQ_SCHEDULED_CRON", b"0 * * * *")), "key": b"k", "value": None}
    (message,), requests = accepted("etf1,activemq", row)
    assert (message["error_code"], requests) == ("bad-schedule", [])


def test_of_two_presets_each_record_has_the_envelope_of_its_own() -> None:
    rows: list[dict[str, Any]] = [
        {"headers": headers(*ETF1), "key": b"e"},
        {"headers": headers(*KARAFKA), "key": b"k"},
        {"key": b"p"},
    ]
    (etf1, karafka, plain, *_), requests = accepted("etf1,karafka", *rows)
    assert [etf1["key"], karafka["key"], plain["key"]] == [b"video 7", b"video 7", b"p"]
    assert [len(each["headers"] or ()) for each in (etf1, karafka, plain)] == [6, 9, 0]
    assert [request.name for request in requests] == [named(TOPIC, b"e"), named(TOPIC, b"k")]
    (both,), _ = accepted("etf1,karafka", {"headers": headers(*ETF1, *KARAFKA)})
    assert both["error_code"] == "two-delays"
