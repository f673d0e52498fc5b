"""How far the prefetch window loads ahead, and how much it keeps."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame

from sinks.buckets.bucket_table import BucketTable
from state.buckets.segments import Segment
from state.buckets.table_rows import described_segment
from state.message import decode_chunk
from streaming.job.sealed.prefetch_window import PrefetchWindow
from tests.messages import some_batch_settings
from tests.streaming.job.sealed.window_batches import in_batches, seal, taken, window_of
from tests.streaming.sealed import sealed_rows


def test_what_fell_due_in_an_outage_is_loaded_and_taken_in_pieces_that_fit(
    store: BucketTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    hour = 3_600_000
    # 4 MB that fell due within an hour, a week ago.
    dues = range(0, hour, hour // 400)
    for number in range(4):
        rows = [{"deliver_at_ms": due, "offset": due, "value": b"x" * 10_000} for due in dues[number::4]]
        seal_rows(store, number, rows)
    window, _ = window_of(store, ahead_ms=60_000, max_bytes=2 * 1024 * 1024)
    loads = count_loads(store, monkeypatch)
    wanted_ms, cutoffs, counts = 7 * 24 * hour, [0], []
    while cutoffs[-1] < wanted_ms:
        next_ms = window.next_cutoff(cutoffs[-1], wanted_ms)
        window.take(cutoffs[-2] if len(cutoffs) > 1 else 0, cutoffs[-1])
        assert loads[-1][1] >= next_ms, "the load has begun"
        counts.append(len(taken(window, cutoffs[-1], next_ms)))
        assert loaded_bytes(window) <= 2.2 * 1024 * 1024
        cutoffs.append(next_ms)
    window.close()
    assert sum(counts) == 400
    # No more than half of the bytes, or all that is left if it fits.
    assert len(counts) == 3
    assert max(counts) <= 210


@pytest.mark.thorough
def test_where_few_messages_are_due_one_load_covers_a_day(store: BucketTable, monkeypatch: pytest.MonkeyPatch) -> None:
    hour = 3_600_000
    year = list(range(hour // 2, 365 * 24 * hour, hour))
    seal(store, {1: year}, 1)
    loads = count_loads(store, monkeypatch)
    window, _ = window_of(store, ahead_ms=60_000)
    batches = list(in_batches(window, range(1_000, 20 * hour, 20 * 60_000)))
    window.close()
    assert [due for batch in batches for due, _ in batch] == year[:20]
    # One for the messages that the first batch needs, and one or two for the day after it.
    assert len(loads) <= 3


@pytest.mark.thorough
@pytest.mark.parametrize(
    "first", [pytest.param([], marks=pytest.mark.thorough), [1, 30, 700]], ids=["nothing waits", "few wait"]
)
def test_many_messages_that_are_sealed_into_a_window_far_ahead_are_not_loaded_at_once(
    store: BucketTable, monkeypatch: pytest.MonkeyPatch, first: list[int]
) -> None:
    minute, flood, later = 60_000, 200, 5
    seal(store, {1: [due * minute for due in first]} if first else {1: [10_000 * minute]}, 1)
    loads = count_loads(store, monkeypatch)
    window, _ = window_of(store, ahead_ms=minute, worth=10)
    taken_messages = taken(window, 0, minute // 2)
    # Far ahead, since few messages are due.
    assert window._horizon_ms > 600 * minute
    del loads[:]
    dues = {
        2: [at * 6 * minute + 7 for at in range(1, flood)],
        3: [at * 200 * minute + 9 for at in range(1, later)],
    }
    for number, batch_dues in dues.items():
        seal(store, {number: batch_dues}, number)
        window.add(each for each in segments_of(store) if each.bucket == number)
    # A worthwhile load is ten messages.
    assert sum(due < window._horizon_ms for due in dues[2]) <= 20
    assert all(end_ms < 150 * minute for _, end_ms in loads)
    taken_messages += taken(window, minute // 2, 100 * minute)
    taken_messages += taken(window, 100 * minute, 101 * minute)
    for cutoff in range(200, 1_600, 100):
        taken_messages += taken(window, window._cutoff_ms, cutoff * minute)
    window.close()
    expected = sorted([due * minute for due in first] + dues[2] + dues[3])
    assert sorted(due for due, _ in taken_messages) == expected


@pytest.mark.thorough
def test_all_that_is_loaded_at_a_time_is_bounded_by_bytes_whatever_the_sizes(
    store: BucketTable,
) -> None:
    second, size = 1_000, 1_000
    # A message every 100 ms. The messages of the second minute are ten times as large.
    dues = range(0, 120 * second, 100)
    rows = [
        {"deliver_at_ms": due, "offset": due, "value": b"x" * (size if due < 60 * second else 10 * size)}
        for due in dues
    ]
    seal_rows(store, 1, rows)
    window, _ = window_of(store, ahead_ms=60 * second, max_bytes=200 * size)
    ahead: list[tuple[int, float]] = []
    taken_messages: list[tuple[int, int]] = []
    for cutoff in range(4 * second, 121 * second, 4 * second):
        taken_messages += taken(window, cutoff - 4 * second, cutoff)
        ahead.append((window._horizon_ms - cutoff, loaded_bytes(window)))
    window.close()
    assert [due for due, _ in sorted(taken_messages)] == list(dues)
    small, large = ahead[:9], ahead[15:28]
    # Half the bound is ten seconds of the small messages. 50 of the large ones, due within five seconds, are loaded in
    # any case. A piece stays whole until all of it is staged.
    assert all(8 * second <= ahead_ms < 21 * second for ahead_ms, _ in small)
    assert all(nbytes < 1.1 * 200 * size for _, nbytes in small)
    assert all(ahead_ms == 5 * second for ahead_ms, _ in large)
    assert all(nbytes < 2 * 50 * 10 * size for _, nbytes in large)


@pytest.mark.thorough
def test_what_is_sealed_into_a_loaded_range_makes_the_window_give_up_its_far_part(store: BucketTable) -> None:
    second = 1_000
    window, _ = window_of(store, ahead_ms=60 * second, max_bytes=100 * 1_000)
    taken(window, 0, second)
    assert window._horizon_ms > 60 * second
    seal_rows(
        store, 1, [{"deliver_at_ms": due, "offset": due, "value": b"x" * 1_000} for due in range(2_000, 60_000, 100)]
    )
    window.add(segments_of(store))
    # 580 messages in 58 s: a hundred of them are due within ten.
    assert window._horizon_ms < 20 * second
    assert sum(len(taken(window, at, at + 10 * second)) for at in range(second, 61 * second, 10 * second)) == 580
    window.close()


def seal_rows(store: BucketTable, number: int, rows: list[dict[str, Any]]) -> None:
    """Store a bucket with the messages `rows`, in segments of ten messages."""
    store.append(
        sealed_rows(store.spark, number, rows, some_batch_settings(segment_max_messages=10)), "checkpoint", number
    )


def loaded_bytes(window: PrefetchWindow) -> int:
    """Return the bytes of all messages in the window's pieces, including those that load."""
    pieces = [*window._pieces, *(load.piece.result() for load in window._loading)]
    chunks = [decode_chunk(bytes(row["chunk"])) for piece in pieces for row in piece.chunks.collect()]
    return sum(chunk.column("value").nbytes for chunk in chunks)


def segments_of(store: BucketTable) -> list[Segment]:
    return [described_segment(row.asDict()) for row in store.metadata()]


def count_loads(store: BucketTable, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return a list that gets the range of due time of each load from now on."""
    loads: list[tuple[int, int]] = []
    read = store.chunks

    def counted(start_ms: int, end_ms: int, *others: Any) -> DataFrame:
        loads.append((start_ms, end_ms))
        return read(start_ms, end_ms, *others)

    monkeypatch.setattr(store, "chunks", counted)
    return loads


def cached(store: BucketTable) -> int:
    """Return how many DataFrames and RDDs Spark keeps."""
    return int(store.spark.sparkContext._jsc.getPersistentRDDs().size())


@pytest.mark.thorough
def test_what_is_loaded_for_days_ahead_is_kept_no_longer_than_its_messages(store: BucketTable) -> None:
    seal(store, {1: [10**8]}, 1)
    window, _ = window_of(store)
    assert taken(window, 0, 100) == []
    before = cached(store)
    # The window reaches for days, and each batch seals messages into it that are due in the next one.
    for number in range(2, 8):
        seal(store, {number: [number * 100 + 50]}, number)
        window.add(described_segment(row.asDict()) for row in store.metadata() if row["bucket"] == number)
        assert [due for due, _ in taken(window, number * 100, number * 100 + 100)] == [number * 100 + 50]
        # The piece of the far message is kept as well. The number does not grow from batch to batch.
        assert cached(store) <= before + 2
    window.close()


@pytest.mark.thorough
def test_many_small_seals_for_later_are_loaded_again_together(store: BucketTable) -> None:
    seal(store, {1: [10**8]}, 1)
    window, _ = window_of(store, most_pieces=4)
    before = cached(store)
    for number in range(2, 12):
        seal(store, {number: [50_000 + number]}, number)
        window.add(described_segment(row.asDict()) for row in store.metadata() if row["bucket"] == number)
        assert taken(window, number * 1_000, number * 1_000 + 1_000) == []
    assert cached(store) <= before + 5
    assert sorted(due for due, _ in taken(window, 12_000, 60_000)) == [50_000 + number for number in range(2, 12)]
    window.close()
