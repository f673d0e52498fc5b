"""Spooled records are read back unchanged, also while more are appended."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.chaos.spool import Spool
from streaming.judge.record import Received

_BYTES = st.none() | st.binary(max_size=20)
_RECORDS = st.builds(
    Received,
    topic=st.sampled_from(["out", "other"]),
    partition=st.integers(0, 9),
    offset=st.integers(0, 2**62),
    timestamp_ms=st.integers(-1, 2**62),
    key=_BYTES,
    value=_BYTES,
    headers=st.lists(st.tuples(st.text(max_size=5), _BYTES), max_size=3).map(tuple),
    received_ms=st.integers(0, 2**62),
)


@given(st.lists(_RECORDS, max_size=5))
def test_records_are_read_back_unchanged(tmp_path_factory, records: list[Received]) -> None:  # type: ignore[no-untyped-def]
    file: Path = tmp_path_factory.mktemp("spool") / "records"
    spool = Spool(file)
    for count, record in enumerate(records, 1):
        spool.append(record)
        assert list(spool) == records[:count]
    assert list(spool) == records
