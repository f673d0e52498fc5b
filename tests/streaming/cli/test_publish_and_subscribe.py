"""Commands that publish and receive messages, in process and against a real broker."""

from __future__ import annotations

import re
import time

import pytest
from confluent_kafka import Producer

from conf.settings import Settings
from streaming.local.broker import EmbeddedBroker
from tests.streaming.cli.command_runs import json_lines, run
from tests.unreadable_headers import write_unreadable


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["hello", "--if", "always"], "--replaces"),
        (["--replaces", "delayline-in/0/1"], "one message"),
        (["hello", "--replaces", "delayline-in/0"], "topic/partition/offset"),
        (["hello", "--replaces", "elsewhere/0/1"], "not in topics.input"),
        (["hello", "--replaces", "delayline-in/0/1", "--timeout", "soon"], "--timeout"),
    ],
)
def test_a_replacement_that_makes_no_sense_is_refused_before_anything_is_sent(
    settings: Settings, arguments: list[str], problem: str
) -> None:
    result = run(settings, "publish", *arguments)
    assert result.exit_code == 2
    assert problem in result.stderr


def test_a_published_message_reaches_a_subscriber(prepared: Settings) -> None:
    schedule = ["--after", "10s", "--to", "orders", "--key", "k", "--header", "a=1", "--header", "a=x=y"]
    published = run(prepared, "publish", "hello", *schedule)
    source = prepared.topics.input[0]
    assert (published.exit_code, published.stdout) == (0, f"{source}/0/0\n")
    (record,) = json_lines(
        run(
            prepared,
            "subscribe",
            "--from",
            "beginning",
            "--count",
            "1",
            "--topic",
            source,
            "--format",
            "json",
        )
    )
    received_ms = record.pop("received_ms")
    assert abs(received_ms - time.time() * 1000) < 60_000
    assert record == {
        "id": None,
        "topic": source,
        "partition": 0,
        "offset": 0,
        "key": "k",
        "value": "hello",
        "headers": [["deliver-after", "10s"], ["deliver-to", "orders"], ["a", "1"], ["a", "x=y"]],
        "deliver_at_ms": None,
        "lateness_ms": None,
    }


def test_each_line_of_standard_input_is_a_message(prepared: Settings) -> None:
    published = run(prepared, "publish", "--at", "0", stdin="one\n\nthree")
    source = prepared.topics.input[0]
    assert published.stdout.splitlines() == [f"{source}/0/{offset}" for offset in range(3)]
    args = ["subscribe", "--from", "beginning", "--count", "3", "--topic", source, "--format", "json"]
    assert [record["value"] for record in json_lines(run(prepared, *args))] == ["one", "", "three"]


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["--after", "soon"], "bad-deliver-after"),
        (["--at", "tomorrow"], "bad-deliver-at"),
        (["--level", "high"], "bad-delay-level"),
        (["--to", ""], "bad-deliver-to"),
        (["--after", "1s", "--level", "1"], "two-delays"),
        (["--repeat", "often"], "bad-repeat"),
        (["--repeat", "every 10m", "--repeat-zone", "Europe/Berlin"], "bad-repeat"),
        (["--repeat", "every 10m", "--repeat-until", "later"], "bad-repeat"),
        (["--repeat", "every 10m", "--repeat-until", "2020-01-01T00:00:00Z"], "bad-repeat"),
        (["--repeat", "every 10m", "--at", "2031-01-01T00:00Z", "--repeat-until", "2030-12-31T00:00Z"], "bad-repeat"),
        (["--repeat", "every 10m", "--after", "1h", "--repeat-until", "2026-01-01T00:00Z"], "bad-repeat"),
        (["--repeat-count", "3"], "bad-repeat"),
        (["--after", "\udcff"], "bad-deliver-after"),
        (["--to", "\udcff"], "bad-deliver-to"),
        (["--header", "novalue"], "bad-usage"),
        (["--header", "\udcff=1"], "bad-usage"),
        (["--topic", "\udcff"], "bad-usage"),
        (["--topic", ""], "bad-usage"),
        (["--name", ""], "bad-usage"),
        (["--name", "n" * 1_025], "bad-usage"),
        (["--partition", "9"], "bad-usage"),
        (["--set", "bucket.shards=0"], "bad-setting"),
    ],
)
def test_an_invalid_message_is_refused_before_anything_is_sent(prepared: Settings, args: list[str], code: str) -> None:
    refused = run(prepared, "publish", "x", *args)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"error: {code}: ")
    assert run(prepared, "publish", "first").stdout.endswith("/0/0\n")


def test_a_message_that_repeats_is_published_with_its_rule(prepared: Settings) -> None:
    rule = ["--repeat", "0 9 * * MON-FRI", "--repeat-zone", "Europe/Berlin", "--repeat-until", "2031-01-01T00:00:00Z"]
    published = run(prepared, "publish", "x", *rule, "--repeat-count", "2", "--repeat-missed", "all")
    assert published.exit_code == 0
    assert re.fullmatch(r"next ([-0-9]+T0[78]:00:00.000Z(, |\n)){2}", published.stderr)
    source = prepared.topics.input[0]
    args = ["subscribe", "--from", "beginning", "--count", "1", "--topic", source, "--format", "json"]
    (record,) = json_lines(run(prepared, *args))
    assert record["headers"] == [
        ["delayline-repeat", "0 9 * * MON-FRI"], ["delayline-repeat-zone", "Europe/Berlin"],
        ["delayline-repeat-until", "2031-01-01T00:00:00Z"], ["delayline-repeat-count", "2"],
        ["delayline-repeat-missed", "all"],
    ]  # fmt: skip


def test_a_bad_schedule_can_be_sent_on_purpose(prepared: Settings) -> None:
    # Python reads a byte that is not UTF-8 in an argument as such a surrogate.
    sent = run(prepared, "publish", "x", "--after", "\udcff", "--level", "1", "--unchecked")
    assert (sent.exit_code, sent.stdout.count("\n")) == (0, 1)


def test_delivered_bytes_are_shown_exactly(prepared: Settings, broker: EmbeddedBroker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    headers = [
        ("delayline-id", b"in/0/7"),
        ("delayline-deliver-at", b"1000"),
        ("n", None),
        ("b", b"\xff\x00"),
    ]
    producer.produce(prepared.topics.output, b"\xff", "\N{SNOWMAN}\x00", headers=list(headers))
    producer.flush()
    (record,) = json_lines(run(prepared, "subscribe", "--from", "beginning", "--count", "1", "--format", "json"))
    assert (record["id"], record["deliver_at_ms"]) == ("in/0/7", 1000)
    assert record["lateness_ms"] == record["received_ms"] - 1000
    assert (record["key"], record["value"]) == ("\N{SNOWMAN}\x00", {"base64": "/w=="})
    assert record["headers"][2:] == [["n", None], ["b", {"base64": "/wA="}]]
    table = run(prepared, "subscribe", "--from", "beginning", "--count", "1")
    heading, row = table.stdout.splitlines()
    assert heading.split() == ["received", "lateness", "topic/partition/offset", "id", "key", "value"]
    assert "in/0/7" in row
    # A terminal would execute a control character.
    assert "\x00" not in row


def test_a_record_whose_headers_cannot_be_read_is_shown_and_that_is_said(
    prepared: Settings, broker: EmbeddedBroker
) -> None:
    output = prepared.topics.output
    offset = write_unreadable(broker.bootstrap, output, b"v", headers=[("delayline-id", b"in/0/7")])
    shown = run(prepared, "subscribe", "--from", "beginning", "--count", "1", "--format", "json")
    (record,) = json_lines(shown)
    assert (record["value"], record["headers"], record["id"]) == ("v", None, None)
    said = f"{output}/0/{offset}: the headers cannot be read, because the name of one is not UTF-8"
    assert shown.stderr.splitlines() == ["subscribed", said]


def test_a_count_that_is_not_reached_gives_exit_code_1(prepared: Settings) -> None:
    short = run(prepared, "subscribe", "--count", "1", "--timeout", "100ms")
    assert (short.exit_code, short.stderr.splitlines()) == (1, ["subscribed", "0 of 1 messages after 100ms"])
    assert run(prepared, "subscribe", "--timeout", "100ms").exit_code == 0
    assert run(prepared, "subscribe", "--timeout", "soon").exit_code == 2
    assert run(prepared, "subscribe", "--topic", "\udcff").exit_code == 2
    assert run(prepared, "subscribe", "--topic", "").exit_code == 2
