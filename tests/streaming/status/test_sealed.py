"""The messages that wait in sealed buckets after a batch, on a real Delta table."""

from __future__ import annotations

import random
from itertools import accumulate

import pytest

from conf.errors import BucketUnreadable
from sinks.buckets.bucket_table import BucketTable
from state.buckets import table_rows as stored
from state.buckets.parts import metadata_of
from streaming.status.due_histogram import DueHistogram
from streaming.status.sealed import SealedBuckets, sealed_buckets
from tests.messages import some_batch_settings
from tests.streaming.sealed import seal_messages

LAST_MS = 60_000
# Sealed by batches 1 and 2, about 70 messages to a segment. Several are due at the same instant.
DUES = {number: sorted(random.Random(number).choices(range(LAST_MS), k=400) + [30_000] * 9) for number in (1, 2)}
EDGES = [0, 7_777, 12_345, 13_000, 30_000, 55_555, 10**7]


@pytest.fixture(autouse=True)
def _several_chunks_a_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "CHUNK_MESSAGES", 7)
    # So many time slots that each segment has the precision of its bucket.
    monkeypatch.setattr(stored, "_SLOTS", 1 << 20)


def seal_all(store: BucketTable, *precisions: int) -> None:
    for (number, dues), bits in zip(DUES.items(), precisions, strict=True):
        batch_settings = some_batch_settings(segment_max_messages=70, index_precision_bits=bits)
        rows = [{"deliver_at_ms": due, "offset": at, "partition": at % 3} for at, due in enumerate(dues)]
        seal_messages(store, number, rows, batch_settings)


def waiting_from(cutoff_ms: int) -> list[int]:
    return [due for dues in DUES.values() for due in dues if due >= cutoff_ms]


def histogram_of(buckets: SealedBuckets) -> DueHistogram:
    histogram = DueHistogram(EDGES)
    buckets.count_into(histogram)
    return histogram


def test_the_waiting_messages_of_partly_delivered_segments_are_counted(store: BucketTable) -> None:
    seal_all(store, 10, 10)
    for cutoff_ms in (0, 12_345, 30_000, LAST_MS):
        segments = sealed_buckets(store, store.version(), 2, cutoff_ms).segments
        waiting = waiting_from(cutoff_ms)
        assert sum(segment.count for segment in segments) == len(waiting)
        assert min((segment.min_deliver_at_ms for segment in segments), default=None) == min(waiting, default=None)
        assert all(segment.bytes == pytest.approx(65 * segment.count, abs=1) for segment in segments)


def test_buckets_that_a_later_batch_sealed_are_left_out(store: BucketTable) -> None:
    seal_all(store, 10, 10)
    buckets = sealed_buckets(store, store.version(), 1, 0)
    assert {segment.bucket for segment in buckets.segments} == {1}
    assert sum(segment.count for segment in buckets.segments) == sum(histogram_of(buckets).counts) == len(DUES[1])


@pytest.mark.parametrize(
    "precisions", [(15, 10), *(pytest.param(bits, marks=pytest.mark.thorough) for bits in ((0, 0), (10, 10), (0, 31)))]
)
def test_the_histogram_counts_all_waiting_messages_as_exactly_as_each_buckets_precision_allows(
    store: BucketTable, precisions: tuple[int, int]
) -> None:
    seal_all(store, *precisions)
    for cutoff_ms in (0, 12_500, 30_000):
        waiting = waiting_from(cutoff_ms)
        histogram = histogram_of(sealed_buckets(store, store.version(), 2, cutoff_ms))
        assert sum(histogram.counts) == len(waiting)
        assert histogram.estimated == any(precisions)
        for edge, below in zip(EDGES, accumulate(histogram.counts), strict=False):
            # The delivered messages of a time slot do not make its other messages overdue.
            assert edge > cutoff_ms or below == 0
            # The messages in the time slots that the edge cuts, of segments with 70 messages.
            most = sum(
                due >> bits == edge >> bits and abs(due - edge) < 15_000
                for dues, bits in zip(DUES.values(), precisions, strict=True)
                for due in dues
                if due >= cutoff_ms and bits
            )
            assert abs(below - sum(due < edge for due in waiting)) <= most


def test_a_histogram_is_that_of_its_version_of_the_table_after_later_maintenance(store: BucketTable) -> None:
    seal_all(store, 10, 10)
    buckets = sealed_buckets(store, store.version(), 2, 0)
    before = histogram_of(buckets).counts
    store.delete({metadata_of(segment.part) for segment in buckets.segments})
    assert store.metadata() == []
    assert histogram_of(buckets).counts == before
    with pytest.raises(BucketUnreadable, match="the metadata is corrupt"):
        histogram_of(SealedBuckets(store, store.version(), buckets.segments))
