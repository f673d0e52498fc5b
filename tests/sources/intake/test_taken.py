"""Leaving out the records that forwarders have taken."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from sources.intake.taken import left_to_batch
from state.message import HEADERS
from state.taken import NONE_TAKEN, Taken

_SOURCES = [("a", 0), ("a", 1), ("b", 0)]
# Beyond 32 bits, as offsets may be.
_OFFSETS = st.integers(2**33, 2**33 + 8)
_IDS = st.tuples(st.sampled_from(_SOURCES), _OFFSETS)


def _records(ids: list[tuple[tuple[str, int], int]]) -> pa.Table:
    columns = {
        "topic": pa.array([topic for (topic, _), _ in ids], pa.string()),
        "partition": pa.array([number for (_, number), _ in ids], pa.int32()),
        "offset": pa.array([offset for _, offset in ids], pa.int64()),
        "headers": pa.nulls(len(ids), HEADERS),
    }
    return pa.table(columns)


def _ids(records: pa.Table) -> list[tuple[tuple[str, int], int]]:
    return [((row["topic"], row["partition"]), row["offset"]) for row in records.to_pylist()]


@given(read=st.lists(_IDS), taken=st.sets(_IDS))
def test_a_batch_reads_what_nobody_has_taken_in_its_order(
    read: list[tuple[tuple[str, int], int]], taken: set[tuple[tuple[str, int], int]]
) -> None:
    offsets = {source: BitMap64(offset for own, offset in taken if own == source) for source in _SOURCES}
    told = Taken.from_text(Taken({source: own for source, own in offsets.items() if own}).to_text())
    assert _ids(left_to_batch(_records(read), told)) == [each for each in read if each not in taken]


def test_without_forwarders_nothing_is_copied() -> None:
    records = _records([(("a", 0), 1)])
    assert left_to_batch(records, NONE_TAKEN) is records
    assert left_to_batch(records, Taken({("b", 0): BitMap64([1])})) is records


def test_a_record_whose_headers_no_forwarder_has_seen_is_named(caplog: pytest.LogCaptureFixture) -> None:
    headers = pa.array([[("h", b"")] * 100_001, [("h", b"")] * 100_000, [("h", b"")] * 100_001], HEADERS)
    records = _records([(("a", 0), offset) for offset in (5, 6, 7)]).set_column(3, "headers", headers)
    assert _ids(left_to_batch(records, Taken({("a", 0): BitMap64([5, 6])}))) == [(("a", 0), 7)]
    assert [message.split()[0] for message in caplog.messages] == ["a/0/5"]
