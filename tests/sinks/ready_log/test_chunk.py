"""The record of a chunk, and the refusal of records that cannot be read as one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings

from conf.errors import FormatMismatch, ReadyLogLost
from sinks.ready_log.chunk import ChunkSummary, RecordHeaders, chunk_record, is_chunk, messages_of, summary_of
from state.message import decode_chunk
from state.order import OrderKey, in_order, keys_of
from tests.message_rows import ROWS
from tests.messages import messages
from tests.thorough import examples

_SUMMARY: dict[str, Any] = {
    "format": 2,
    "batch": 0,
    "first": [1, "in", 0, 0],
    "last": [2, "in", 0, 1],
    "count": 2,
    "nbytes": 100,
    "has_requests": False,
}


@given(ROWS.filter(bool))
@settings(max_examples=examples(60))
def test_a_chunk_is_read_as_it_was_written_and_its_summary_describes_it(rows: list[dict[str, Any]]) -> None:
    table = in_order(messages(rows)).combine_chunks()
    value, headers = chunk_record(table)
    chunk = decode_chunk(value)
    assert chunk.to_pylist() == table.to_pylist()
    (batch,) = table.to_batches()
    keys = keys_of(batch)
    assert summary_of(headers, "here") == ChunkSummary(0, keys[0], keys[-1], len(rows), table.nbytes)


def test_a_summary_is_found_among_other_headers() -> None:
    headers: RecordHeaders = [("trace", b"1"), ("delayline-chunk", json.dumps(_SUMMARY).encode()), ("trace", None)]
    assert summary_of(headers, "here") == ChunkSummary(0, OrderKey(1, "in", 0, 0), OrderKey(2, "in", 0, 1), 2, 100)


@pytest.mark.parametrize("headers", [[], [("trace", b"1")]])
def test_a_record_of_another_writer_is_not_a_chunk(headers: RecordHeaders) -> None:
    for payload in (b"", b"{}", b"x" * 1_000):
        assert not is_chunk(headers, payload)


@pytest.mark.parametrize("headers", [None, [], [("trace", b"1")]])
def test_a_chunk_without_its_header_is_damaged_and_not_of_another_writer(headers: RecordHeaders | None) -> None:
    value, _ = chunk_record(messages([{}]))
    assert is_chunk(headers, value)
    with pytest.raises(ReadyLogLost, match="here is not a chunk of this Delayline version"):
        summary_of(headers, "here")


@pytest.mark.parametrize(
    "value",
    [
        None, b"", b"x", b"\xff", b"7", b"null", b"{}",
        *(json.dumps(_SUMMARY | change).encode() for change in (
            {"more": 1}, {"first": None}, {"last": [1, "in", 0]}, {"count": "2"}, {"nbytes": 1.5},
        )),
    ],
)  # fmt: skip
def test_a_header_that_is_no_summary_is_refused(value: bytes | None) -> None:
    assert is_chunk([("delayline-chunk", value)], b"")
    with pytest.raises(ReadyLogLost, match="here is not a chunk of this Delayline version"):
        summary_of([("delayline-chunk", value)], "here")


@pytest.mark.parametrize("cut", [0, 2, 100, -100])
def test_a_chunk_that_was_cut_is_refused_by_its_place(cut: int) -> None:
    value, _ = chunk_record(messages([{}]))
    with pytest.raises(ReadyLogLost, match=r"here is not a chunk .* Its messages are lost. .*repair --ready-log"):
        messages_of(value[:cut], "here")


def test_a_chunk_of_another_format_names_both() -> None:
    value = json.dumps(_SUMMARY | {"format": 1, "more": 1}).encode()
    with pytest.raises(FormatMismatch, match=r"a chunk in the ready topic has format 1, but .* reads format 2"):
        summary_of([("delayline-chunk", value)], "here")
