"""Accepting a table gives the same messages as accepting each record."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from sources.intake.accept import accept
from state.message import HEADERS
from tests.messages import RECORD_SCHEMA, headers, records, some_batch_settings
from tests.thorough import examples

CLOCK_MS = 1_798_000_000_000
BATCH_SETTINGS = some_batch_settings(allowed_outputs=("orders", "new-*"))
DELAYS = (
    b"10s",
    b"0",
    b"3",
    b"1798000005000",
    b"soon",
    b"",
    None,
    b"9" * 30,
    b"2026-12-24T18:00:00Z",
    b"\xff",
)
HEADER = st.one_of(
    st.tuples(st.sampled_from(["deliver-at", "deliver-after", "delay-level", "x"]), st.sampled_from(DELAYS)),
    st.tuples(st.just("deliver-to"), st.sampled_from([b"orders", b"new-x", b"secret", b"", None])),
)
ROW = st.fixed_dictionaries(
    {
        "key": st.one_of(st.none(), st.binary(max_size=6)),
        "value": st.one_of(st.none(), st.binary(max_size=6)),
        "headers": st.one_of(st.none(), st.lists(HEADER, max_size=3).map(lambda pairs: headers(*pairs))),
        "topic": st.sampled_from(["delayline-in", "other-in"]),
        "partition": st.integers(0, 9),
        "offset": st.integers(0, 2**62),
        "timestamp_ms": st.one_of(
            st.sampled_from([-1, 0, CLOCK_MS, CLOCK_MS + 10**12]), st.integers(CLOCK_MS - 10**9, CLOCK_MS)
        ),
    }
)
ROWS = st.lists(ROW, max_size=20)


@given(ROWS)
@settings(max_examples=examples(100))
def test_a_table_gives_the_same_messages_as_its_records_one_by_one(rows: list[dict[str, Any]]) -> None:
    whole = accept(records(rows), BATCH_SETTINGS, CLOCK_MS).messages
    assert whole.to_pylist() == [
        accept(records([row]), BATCH_SETTINGS, CLOCK_MS).messages.to_pylist()[0] for row in rows
    ]


@given(ROWS)
@settings(max_examples=examples(50))
def test_no_record_is_lost_or_moved_and_a_replay_gives_the_same(rows: list[dict[str, Any]]) -> None:
    accepted = accept(records(rows), BATCH_SETTINGS, CLOCK_MS).messages
    input_columns = ["key", "value", "headers", "topic", "partition", "offset"]
    assert accepted.select(input_columns).to_pylist() == records(rows).select(input_columns).to_pylist()
    assert accepted == accept(records(rows), BATCH_SETTINGS, CLOCK_MS).messages


@given(ROWS, st.data())
@settings(max_examples=examples(100))
def test_slices_and_chunked_tables_give_the_messages_of_their_rows(
    rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    start, length, middle = (data.draw(st.integers(0, len(rows))) for _ in range(3))
    table = records(rows)
    expected = accept(table, BATCH_SETTINGS, CLOCK_MS).messages.to_pylist()
    assert (
        accept(table.slice(start, length), BATCH_SETTINGS, CLOCK_MS).messages.to_pylist()
        == expected[start : start + length]
    )
    chunked = pa.concat_tables([table.slice(0, middle), table.slice(middle)])
    assert accept(chunked, BATCH_SETTINGS, CLOCK_MS).messages.to_pylist() == expected


def test_values_under_a_null_list_of_headers_are_not_read() -> None:
    flat = pa.array([*headers(("deliver-after", b"1s"), ("deliver-after", b"9s"), ("x", b""))], HEADERS.value_type)
    hidden = pa.ListArray.from_arrays(
        pa.array([0, 1, 2, 3], pa.int32()), flat, type=HEADERS, mask=pa.array([False, True, False])
    )
    table = records([{"offset": offset, "timestamp_ms": CLOCK_MS} for offset in range(3)])
    table = table.set_column(RECORD_SCHEMA.get_field_index("headers"), "headers", hidden)
    dues = accept(table, BATCH_SETTINGS, CLOCK_MS).messages.column("deliver_at_ms").to_pylist()
    assert dues == [CLOCK_MS + 1000, CLOCK_MS, CLOCK_MS]
