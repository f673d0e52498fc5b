"""A look reads the table by metadata, and the driver takes no more metadata than it needs."""

from __future__ import annotations

import random

import pytest

from sinks.buckets.bucket_table import BucketTable
from streaming.status.sealed_rows import ReadLimits, SealedRows, TooMuchToRead
from streaming.status.waiting_rows import END_MS, Selection
from tests.messages import some_batch_settings
from tests.streaming.sealed import seal_messages

_COUNT = 400
_DUES = {number: sorted(random.Random(number).choices(range(60_000), k=_COUNT)) for number in (1, 2, 3)}


@pytest.fixture
def rows(store: BucketTable) -> SealedRows:
    """Waiting messages of two of three buckets with eight segments each. The first segments are before the cutoff."""
    for number, dues in _DUES.items():
        of_bucket = [{"deliver_at_ms": due, "offset": at, "partition": number} for at, due in enumerate(dues)]
        seal_messages(store, number, of_bucket, some_batch_settings(segment_max_messages=_COUNT // 8))
    return SealedRows(store, store.version(), 2, 10_000)


def due_from(from_ms: int, until_ms: int = END_MS) -> list[int]:
    return sorted(due for number in (1, 2) for due in _DUES[number] if from_ms <= due < until_ms)


def test_all_that_waits_up_to_the_last_bucket_is_read(rows: SealedRows) -> None:
    found = rows.messages(Selection(from_ms=5_000, until_ms=40_000)).select("deliver_at_ms").collect()
    assert sorted(row["deliver_at_ms"] for row in found) == due_from(10_000, 40_000)


@pytest.mark.parametrize("count", [1, 49, 50, 51, 300, 5_000])
def test_the_first_messages_by_due_time_are_before_an_instant_that_metadata_gives(rows: SealedRows, count: int) -> None:
    narrowed = rows.first(Selection(from_ms=20_000), count)
    before = due_from(20_000, narrowed.until_ms)
    if count > len(due_from(20_000)) - 200:
        # Segments that begin before may have them.
        assert narrowed.until_ms == END_MS
    else:
        # At most, the messages of four more segments are included.
        assert count <= len(before) <= count + 200
    assert rows.first(Selection(from_ms=20_000, until_ms=20_001), count).until_ms == 20_001


def test_a_look_at_too_many_bytes_or_segments_is_refused(rows: SealedRows) -> None:
    def limited(nbytes: int) -> SealedRows:
        return SealedRows(rows.store, rows.version, 2, 10_000, ReadLimits(nbytes, lambda: 0))

    whole = Selection()
    # Fourteen small segments: they count more than their bytes.
    assert limited(16 * 16 * 1024).messages(whole).count() == len(due_from(10_000))
    with pytest.raises(TooMuchToRead):
        limited(10 * 16 * 1024).messages(whole)
    assert limited(4 * 16 * 1024).messages(Selection(from_ms=30_000, until_ms=30_100)).count() == len(
        due_from(30_000, 30_100)
    )
