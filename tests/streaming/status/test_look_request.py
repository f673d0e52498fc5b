"""A look as JSON: it is read back as the same look, and anything else is refused with a sentence."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from streaming.status.look import Look
from streaming.status.look_request import MOST_ROWS, decoded_request, decoded_rows, encoded_request, encoded_rows
from streaming.status.waiting_rows import ROW_SCHEMA, WAITING_SCHEMA


@pytest.mark.parametrize(
    "wanted",
    [
        Look(),
        Look(from_ms=-1, until_ms=2**62, newest=True, limit=MOST_ROWS, shown_bytes=0),
        Look(ids=(("in", 0, 3), ("in.put", 2**31 - 1, 2**63 - 1)), key=b"\xff\x00", topic="out"),
        Look(ids=(), key=b""),
    ],
)
def test_a_look_comes_through(wanted: Look) -> None:
    request = decoded_request(encoded_request(wanted, "mine", "/data"))
    assert (request.wanted(), request.application_id, request.storage) == (wanted, "mine", "/data")


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        (Look(limit=MOST_ROWS + 1), "limit"),
        (Look(ids=(("in", 0, 1),) * (MOST_ROWS + 1)), "ids"),
        (Look(topic="x" * 250), "topic"),
        (Look(until_ms=2**64), "until_ms"),
    ],
)
def test_a_look_that_is_too_large_is_not_sent(wanted: Look, field: str) -> None:
    with pytest.raises(ValueError, match=f"^{field}: "):
        encoded_request(wanted, "mine", "/data")


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": "5"}, "limit"),
        ({"limit": True}, "limit"),
        ({"limit": MOST_ROWS + 1}, "limit"),
        ({"limit": None}, "limit"),
        ({"key": "*"}, "key"),
        ({"key": 5}, "key"),
        ({"ids": "in/0/1"}, "ids"),
        ({"ids": [["in", 0]]}, r"ids\.0\.2"),
        ({"ids": [["in", -1, 0]]}, r"ids\.0\.1"),
        ({"ids": [["in", 0, 2**63]]}, r"ids\.0\.2"),
        ({"ids": [["", 0, 0]]}, r"ids\.0\.0"),
        ({"from_ms": 1.5}, "from_ms"),
        ({"from_ms": 2**63}, "from_ms"),
        ({"newest": 1}, "newest"),
        ({"topic": ""}, "topic"),
        ({"shown_bytes": -1}, "shown_bytes"),
        ({"application_id": None}, "application_id"),
        ({"columns": ["*"]}, "columns"),
    ],
)
def test_a_wrong_field_is_named(changed: dict[str, Any], field: str) -> None:
    fields = {"application_id": "mine", "storage": "/data", "limit": 5} | changed
    with pytest.raises(ValueError, match=f"^{field}: "):
        decoded_request(json.dumps(fields).encode())


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"limit":5', b'{"topic":"\\ud800"}'])
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        decoded_request(body)


def test_rows_come_through_and_those_of_another_version_do_not() -> None:
    rows = ROW_SCHEMA.empty_table()
    assert decoded_rows(encoded_rows(rows)) == rows
    with pytest.raises(ValueError, match="the job has another version than this command"):
        decoded_rows(encoded_rows(WAITING_SCHEMA.empty_table()))
    for stream in (b"", b"not Arrow"):
        with pytest.raises(pa.ArrowInvalid):
            decoded_rows(stream)
