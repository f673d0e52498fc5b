"""Which waiting messages a look selects, and how much of each it shows."""

from __future__ import annotations

from typing import Any

import pytest

from state.kinds import ANSWER, DUE_NOW, MESSAGE, OCCURRENCE, REPEATING, REQUEST
from state.message_ids import ids_of
from streaming.status.waiting_rows import ROW_SCHEMA, Selection, waiting_rows
from tests.messages import messages

_WAITING: list[dict[str, Any]] = [
    {"offset": 0, "deliver_at_ms": 1_000, "key": b"a", "output_topic": "x", "value": b"12345"},
    {"offset": 1, "deliver_at_ms": 2_000, "key": None, "output_topic": "y", "value": None},
    {"offset": 2, "deliver_at_ms": 3_000, "key": b"a", "output_topic": "y", "value": b""},
]


def _rows(selection: Selection, *rows: dict[str, Any]) -> list[dict[str, Any]]:
    batches = waiting_rows(messages(rows), "mutable", selection)
    assert all(batch.schema == ROW_SCHEMA for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("selection", "offsets"),
    [
        (Selection(), [0, 1, 2]),
        (Selection(from_ms=2_000), [1, 2]),
        (Selection(until_ms=2_000), [0]),
        (Selection(key=b"a"), [0, 2]),
        (Selection(key=b""), []),
        (Selection(topic="y"), [1, 2]),
        (Selection(key=b"a", topic="y"), [2]),
        (Selection(ids=ids_of([("in", 0, 2), ("in", 0, 9)])), [2]),
    ],
)
def test_all_conditions_of_a_selection_hold(selection: Selection, offsets: list[int]) -> None:
    waiting = [{"topic": "in", "partition": 0} | row for row in _WAITING]
    assert [row["offset"] for row in _rows(selection, *waiting)] == offsets


def test_a_request_is_not_a_message() -> None:
    rows = [{"offset": kind, "kind": kind} for kind in (MESSAGE, REQUEST, ANSWER)]
    assert [row["offset"] for row in _rows(Selection(), *rows)] == [MESSAGE]


def test_kind_of_a_message_says_whether_it_repeats() -> None:
    headers = [{"key": "delayline-schedule", "value": b"{}"}, {"key": "delayline-occurrence", "value": b"1"}]
    rows = [{"kind": kind, "headers": headers} for kind in (MESSAGE, DUE_NOW, REPEATING, OCCURRENCE)]
    assert [row["repeats"] for row in _rows(Selection(), *rows)] == [False, False, True, True]


def test_whole_messages_are_not_cut() -> None:
    headers = [{"key": "h", "value": b"v" * 300}] * 60
    (row,) = _rows(Selection(), {"key": b"k" * 300, "value": b"v" * 300, "headers": headers})
    assert (row["key"], row["value"], row["headers"]) == (b"k" * 300, b"v" * 300, headers)
    assert (row["value_bytes"], row["is_cut"]) == (300, False)


@pytest.mark.parametrize(
    ("message", "shown", "is_cut"),
    [
        ({"key": b"1234", "value": b"1234"}, {"key": b"1234", "value": b"1234"}, False),
        ({"key": b"12345", "value": b""}, {"key": b"1234", "value": b""}, True),
        ({"key": None, "value": b"12345"}, {"key": None, "value": b"1234"}, True),
        ({"value": None, "headers": None}, {"value": None, "headers": None}, False),
        ({"headers": [("a", b"123")]}, {"headers": [("a", b"123")]}, False),
        ({"headers": [("a", None), ("b", b"12")]}, {"headers": [("a", None), ("b", b"12")]}, False),
        ({"headers": [("a", b"1234")]}, {"headers": [("a", b"123")]}, True),
        ({"headers": [("a", b"123"), ("b", b"")]}, {"headers": [("a", b"123")]}, True),
        # A letter of several bytes is shown whole or not at all.
        ({"headers": [("123ä", b"5")]}, {"headers": [("123", b"5")]}, True),
    ],
)
def test_the_beginning_of_a_long_message_is_shown(message: dict[str, Any], shown: dict[str, Any], is_cut: bool) -> None:
    def with_headers(fields: dict[str, Any]) -> dict[str, Any]:
        if not fields.get("headers"):
            return fields
        return fields | {"headers": [{"key": key, "value": value} for key, value in fields["headers"]]}

    small = {"offset": 7, "key": b"", "value": b"", "headers": []}
    first, second = _rows(Selection(shown_bytes=4), with_headers(message), small)
    assert {name: first[name] for name in shown} == with_headers(shown)
    assert first["is_cut"] == is_cut
    value = message.get("value", b"v")
    assert first["value_bytes"] == (None if value is None else len(value))
    assert (second["offset"], second["headers"], second["is_cut"]) == (7, [], False)


def test_fifty_headers_are_shown() -> None:
    headers = [{"key": "h", "value": b""}] * 51
    (row,) = _rows(Selection(shown_bytes=1_000), {"headers": headers})
    assert (row["headers"], row["is_cut"]) == (headers[:50], True)


def test_rule_of_what_repeats_is_shown_however_long_its_headers_are() -> None:
    rule = [{"key": "delayline-schedule", "value": b"{}"}, {"key": "delayline-occurrence", "value": b"1"}]
    row = {"kind": REPEATING, "headers": [{"key": "h", "value": b"1234567"}, *rule]}
    (shown,) = _rows(Selection(shown_bytes=4), row)
    assert (shown["headers"], shown["is_cut"]) == ([{"key": "h", "value": b"123"}, *rule], True)
    (shown,) = _rows(Selection(shown_bytes=4), row | {"headers": rule})
    assert (shown["headers"], shown["is_cut"]) == (rule, False)
    # Anybody may write headers of these names.
    (shown,) = _rows(Selection(shown_bytes=4), row | {"kind": MESSAGE})
    assert shown["headers"] == [{"key": "h", "value": b"123"}]


def test_nothing_of_the_record_is_shown_if_nobody_needs_it() -> None:
    (row,) = _rows(Selection(shown_bytes=0), {"key": b"k", "value": b"v", "headers": [{"key": "h", "value": b"v"}]})
    assert (row["key"], row["value"], row["value_bytes"], row["is_cut"]) == (b"", b"", 1, True)
    assert [header["value"] for header in row["headers"]] == [b""]
