"""The records that a subscriber gets for messages."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinks.release import records as module
from sinks.release.records import OVERDUE_MS, Record, records
from sinks.release.wall_clock import now_ms
from state.message import decode_chunk, encode_chunk
from tests.messages import headers, messages
from tests.thorough import examples

PAIRS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "ö", ""]), st.sampled_from([None, b"", b"\x00", b"\xff1"])),
    max_size=4,
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.one_of(st.none(), st.binary(max_size=3)),
            "value": st.one_of(st.none(), st.binary(max_size=3)),
            "headers": st.one_of(st.none(), PAIRS.map(lambda pairs: headers(*pairs))),
        }
    ),
    max_size=12,
)


def records_of(table: pa.Table) -> list[Record]:
    return [record for batch in table.to_batches() for record in records(batch)]


def expected(row: dict[str, Any]) -> Record:
    given_headers = [(each["key"], each["value"]) for each in row["headers"] or []]
    added_headers = [
        ("delayline-id", f"{row['topic']}/{row['partition']}/{row['offset']}".encode()),
        ("delayline-deliver-at", b"%d" % row["deliver_at_ms"]),
    ]
    to = (row["deliver_at_ms"], row["output_topic"], row["output_partition"])
    return Record(*to, row["key"], row["value"], given_headers + added_headers)


@given(ROWS, st.data())
@settings(max_examples=examples(150))
def test_any_slice_of_messages_gives_exactly_its_records_in_order(
    rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    start, length, middle = (data.draw(st.integers(0, len(rows))) for _ in range(3))
    first_ms = now_ms()
    table = messages({**row, "offset": at, "deliver_at_ms": first_ms + at * 10} for at, row in enumerate(rows))
    wanted = [expected(row) for row in table.to_pylist()]
    assert records_of(table.slice(start, length)) == wanted[start : start + length]
    chunked = pa.concat_tables([table.slice(0, middle), table.slice(middle)])
    assert records_of(chunked) == wanted
    assert records_of(decode_chunk(encode_chunk(table.slice(middle)))) == wanted[middle:]


def test_the_records_of_a_slice_read_no_headers_of_other_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    table = messages({"offset": at, "headers": headers(("h", b"%d" % at), ("i", b""))} for at in range(1_000))
    (whole,) = table.combine_chunks().to_batches()
    lengths: list[int] = []
    listed = module._list

    def noting(column: pa.Array) -> list[Any]:
        lengths.append(len(column))
        return listed(column)

    monkeypatch.setattr(module, "_list", noting)
    made = list(records(whole.slice(500, 20)))
    assert [record.headers[0] for record in made] == [("h", b"%d" % at) for at in range(500, 520)]
    assert max(lengths) == 40
    assert module.bytes_at_most(whole.slice(500, 20)).tolist() == module.bytes_at_most(whole).tolist()[500:520]


def test_a_record_has_its_due_time_as_timestamp_unless_it_is_overdue_by_more_than_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written_ms = 1_800_000_000_000
    monkeypatch.setattr(module, "now_ms", lambda: written_ms)
    dues = [0, written_ms - OVERDUE_MS - 1, written_ms - OVERDUE_MS, written_ms, written_ms + 100]
    made = records_of(messages({"deliver_at_ms": due} for due in dues))
    assert [record.timestamp_ms for record in made] == [written_ms, written_ms, *dues[2:]]
    assert [record.headers[-1] for record in made] == [("delayline-deliver-at", b"%d" % due) for due in dues]


def test_a_dead_letter_has_id_code_and_text_after_its_original_headers() -> None:
    dead = messages(
        [
            {
                "topic": "in", "partition": 2, "offset": 9, "deliver_at_ms": 5, "output_topic": "dead",
                "headers": headers(("deliver-at", b"soon")), "timestamp_ms": 4,
                "error_code": "bad-deliver-at", "error_text": "why ö",
            }
        ]
    )  # fmt: skip
    before_ms = now_ms()
    (record,) = records_of(dead)
    # Not the time of publication: the topic might delete the record at once.
    assert before_ms <= record[0] <= now_ms()
    assert record[1:3] == ("dead", 0)
    assert record[-1] == [
        ("deliver-at", b"soon"),
        ("delayline-id", b"in/2/9"),
        ("delayline-error", b"bad-deliver-at"),
        ("delayline-error-text", "why ö".encode()),
        ("delayline-timestamp", b"4"),
    ]
