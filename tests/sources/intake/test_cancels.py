"""Records that request a cancel."""

from __future__ import annotations

import json
from typing import Any

import pytest

from conf.errors import InvariantViolated
from sources.intake.accept import accept
from state.answers import answered, answers_to
from state.cancel import REQUEST_ID, asked_by, requests_of
from state.kinds import ANSWER, DEAD_LETTER, MESSAGE, REQUEST, requests_in
from state.message_ids import ID, parse_id
from state.reasons import Reason
from tests.messages import PARTITIONS, headers, messages, records, some_batch_settings

CLOCK_MS = 1_798_000_000_000
BATCH_SETTINGS = some_batch_settings(partitions=PARTITIONS | {"delayline-results": 3})
RESULTS = BATCH_SETTINGS.results


def accepted(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    table = records({"timestamp_ms": CLOCK_MS - 1_000, "offset": at, **row} for at, row in enumerate(rows))
    found: list[dict[str, Any]] = accept(table, BATCH_SETTINGS, CLOCK_MS).messages.to_pylist()
    return found


def ask(text: bytes | None, *more: tuple[str, bytes | None]) -> dict[str, Any]:
    return {"headers": headers(("delayline-cancel", text), *more)}


def test_an_ask_goes_to_the_results_topic_at_once_with_the_id_as_its_key() -> None:
    trace = ("trace", b"7")
    (message,) = accepted({**ask(b" in/1/0042 ", trace), "key": b"k", "value": b"v"})
    assert (message["kind"], message["output_topic"], message["error_code"]) == (REQUEST, RESULTS, None)
    assert (message["key"], message["value"]) == (b"in/1/42", None)
    assert message["deliver_at_ms"] == CLOCK_MS - 1_000
    assert message["headers"][1] == {"key": "trace", "value": b"7"}


def test_asks_are_accepted_in_place_between_other_records() -> None:
    delay = {"headers": headers(("deliver-after", b"5s"))}
    rows = accepted({}, ask(b"in/0/1"), delay, {"headers": None}, ask(b"in/0/2", ("deliver-after", b"1h")))
    assert [row["offset"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["output_topic"] for row in rows] == [
        "delayline-out",
        RESULTS,
        "delayline-out",
        "delayline-out",
        RESULTS,
    ]
    assert rows[2]["deliver_at_ms"] == CLOCK_MS + 4_000
    assert rows[4]["deliver_at_ms"] == CLOCK_MS - 1_000, "a delay header means nothing on a request"


@pytest.mark.parametrize(
    "bad",
    [ask(b"in/0"), ask(b""), ask(None), ask(b"in/0/x"), ask(b"\xff/0/1"), ask(b"x" * 5_000),
     ask(b"in/0/1", ("delayline-cancel", b"in/0/2")), ask(b"in/0/1", ("delayline-replaces", b"in/0/2"))],
    ids=["short", "empty", "null", "no number", "no text", "long", "two", "replaces as well"],
)  # fmt: skip
def test_an_ask_that_names_no_message_is_a_dead_letter(bad: dict[str, Any]) -> None:
    message, good = accepted({**bad, "key": b"k", "value": b"v"}, ask(b"in/0/1"))
    assert (message["error_code"], message["output_topic"]) == ("bad-cancel", "delayline-dead-letter")
    assert (message["key"], message["value"]) == (b"k", b"v")
    assert [each["kind"] for each in (message, good)] == [DEAD_LETTER, REQUEST]


def deliver(text: bytes | None, *more: tuple[str, bytes | None]) -> dict[str, Any]:
    return {"headers": headers(("delayline-deliver-now", text), *more)}


def test_an_ask_that_a_message_be_due_at_once_is_told_from_a_cancel() -> None:
    trace, after = ("trace", b"7"), ("deliver-after", b"1h")
    table = records(
        {"timestamp_ms": CLOCK_MS, "offset": at, **row}
        for at, row in enumerate([deliver(b" in/1/0042 ", trace, after), ask(b"in/1/42"), {"headers": None}])
    )
    found = accept(table, BATCH_SETTINGS, CLOCK_MS)
    rows = found.messages.to_pylist()
    assert [(row["kind"], row["output_topic"], row["key"], row["deliver_at_ms"]) for row in rows[:2]] == [
        (REQUEST, RESULTS, b"in/1/42", CLOCK_MS)
    ] * 2
    assert rows[0]["headers"][1] == {"key": "trace", "value": b"7"}
    assert sorted((each.id[2], each.asked, each.delivers) for each in requests_of(found.requests)) == [
        (0, ("in", 1, 42), True),
        (1, ("in", 1, 42), False),
    ]


@pytest.mark.parametrize(
    ("bad", "code"),
    [(deliver(b"in/0"), "bad-deliver-now"), (deliver(None), "bad-deliver-now"), (deliver(b"in/0/x"), "bad-deliver-now"),
     (deliver(b"in/0/1", ("delayline-deliver-now", b"in/0/1")), "bad-deliver-now"),
     (deliver(b"in/0/1", ("delayline-replaces", b"in/0/1")), "bad-deliver-now"),
     (deliver(b"in/0/1", ("delayline-name", b"a")), "bad-deliver-now"),
     (deliver(b"in/0/1", ("delayline-cancel-name", b"a")), "bad-deliver-now"),
     (deliver(b"in/0/1", ("delayline-cancel", b"in/0/1")), "bad-cancel"),
     ({"headers": headers(("Delayline-Deliver-Now", b"in/0/1"))}, "header-case")],
    ids=["short", "null", "no number", "two", "replaces", "named", "by name", "cancels", "case"],
)  # fmt: skip
def test_an_ask_that_names_no_message_to_be_due_at_once_is_a_dead_letter(bad: dict[str, Any], code: str) -> None:
    message, good = accepted({**bad, "key": b"k", "value": b"v"}, deliver(b"in/0/1"))
    assert (message["error_code"], message["output_topic"]) == (code, "delayline-dead-letter")
    assert (message["key"], message["value"]) == (b"k", b"v")
    assert [each["kind"] for each in (message, good)] == [DEAD_LETTER, REQUEST]


def test_ids_are_read_in_each_form_and_kept_in_one() -> None:
    given = [
        b"in/1/42",
        b" in/1/042",
        b'"in/1/42"',
        b"a b/\xc3\xa9/1/42",
        b"in/2147483647/9223372036854775807",
        b"in/0/0",
    ]
    wrong = [b"in/2147483648/1", b"in/1/9223372036854775808", b"in/1/-1", b"/1/1", b"in/1/2/"]
    rows = accepted(*map(ask, given + wrong))
    kept = [b"in/1/42", b"in/1/42", b"in/1/42", *given[3:]]
    assert [row["key"] for row in rows[: len(given)]] == kept
    assert {row["error_code"] for row in rows[len(given) :]} == {"bad-cancel"}
    table = messages({"offset": at, "kind": REQUEST, "key": key, "value": None} for at, key in enumerate(kept))
    assert asked_by(table).select(ID).to_pylist() == [
        dict(zip(ID, parse_id(key.decode()), strict=True)) for key in kept
    ]


def test_asks_are_found_among_messages_and_each_gets_its_answer() -> None:
    table = messages(
        [
            {"offset": 1, "value": b"other"},
            {"offset": 2, "kind": REQUEST, "key": b"in/3/4", "value": None},
            {"offset": 3, "key": b"k", "error_code": "bad-cancel"},
        ]
    )
    requests = asked_by(requests_in(table))
    assert requests.to_pylist() == [dict(zip((*ID, *REQUEST_ID), ("in", 3, 4, "delayline-in", 0, 2), strict=True))]
    filled = answered(table, answers_to(requests, [Reason.RELEASED]))
    assert filled.column("kind").to_pylist() == [MESSAGE, ANSWER, DEAD_LETTER]
    values = filled.column("value").to_pylist()
    assert (values[0], values[2]) == (b"other", b"v")
    expected = {"id": "in/3/4", "result": "too-late", "reason": "released", "why": Reason.RELEASED.why}
    assert json.loads(values[1]) == expected
    assert filled.schema == table.schema
    with pytest.raises(InvariantViolated, match="without an answer"):
        answered(table, answers_to(requests.slice(0, 0), []))
