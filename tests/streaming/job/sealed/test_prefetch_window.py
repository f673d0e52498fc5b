"""The prefetch window over many buckets, and during a merge, on a real Delta table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from conf.errors import BucketUnreadable
from sinks.buckets.bucket_table import ALL_BUCKETS, BucketTable
from state.buckets.cancelled import NEVER_MS, cancelled_rows
from state.buckets.catalog import SegmentCatalog
from state.buckets.parts import MergeName
from state.buckets.reach import Reach
from state.buckets.segments import Segment, cut
from state.buckets.table_rows import STORED_SCHEMA, described_segment, segment_rows
from state.checkpoint.batch_settings import BatchSettings
from state.message import decode_chunk
from streaming.job.sealed.prefetch_window import PrefetchWindow
from streaming.maintenance.merge import Merge, finish_merge, merge_slice
from tests.messages import cancelled, messages, some_batch_settings
from tests.streaming.sealed import sealed_rows

BATCH_SETTINGS = some_batch_settings()
Dues = dict[int, list[int]]
# The size of a message that `seal` stores, by its segment's metadata.
_BYTES = 65


def seal(store: BucketTable, dues: Dues, batch_id: int, batch_settings: BatchSettings = BATCH_SETTINGS) -> None:
    """Store buckets in one commit, each with messages due at its `dues`. Offsets are numbered through all buckets."""
    offsets, rows = iter(range(10**9)), list[pa.RecordBatch]()
    for number, bucket_dues in dues.items():
        sealed = messages([{"deliver_at_ms": due, "offset": next(offsets)} for due in sorted(bucket_dues)])
        for segment, part in cut(sealed, number, 0, batch_settings):
            rows += segment_rows(segment, part, batch_settings.index_precision_bits)
    frame = store.spark.createDataFrame(pa.Table.from_batches(rows), from_arrow_schema(STORED_SCHEMA))
    store.append(frame.coalesce(1), "checkpoint", batch_id)


def window_of(
    store: BucketTable, ahead_ms: int = 1_000, max_bytes: int = 10**9, worth: int = 100_000, **options: Any
) -> tuple[PrefetchWindow, SegmentCatalog]:
    catalog = SegmentCatalog(described_segment(row.asDict()) for row in store.metadata())
    return PrefetchWindow(store, Reach(catalog, ahead_ms, max_bytes, worth), 0, [], shards=2, **options), catalog


def taken(window: PrefetchWindow, start_ms: int, end_ms: int) -> list[tuple[int, int]]:
    """Return (due, offset) of each message that a batch takes."""
    taken_messages: list[tuple[int, int]] = []
    for piece in window.take(start_ms, end_ms):
        for row in piece.collect():
            chunk = decode_chunk(bytes(row["chunk"]))
            pairs = zip(*(chunk.column(name).to_pylist() for name in ("deliver_at_ms", "offset")), strict=True)
            taken_messages += [(due, offset) for due, offset in pairs if start_ms <= due < row["until_ms"]]
    window.advance(end_ms)
    return taken_messages


def in_batches(window: PrefetchWindow, cutoffs: Iterable[int]) -> Iterator[list[tuple[int, int]]]:
    start_ms = 0
    for cutoff_ms in cutoffs:
        yield taken(window, start_ms, cutoff_ms)
        start_ms = cutoff_ms


@pytest.mark.thorough
@pytest.mark.parametrize("count", [2_000, pytest.param(10_000, marks=[pytest.mark.soak, pytest.mark.takes(40)])])
def test_thousands_of_buckets_give_each_message_once(store: BucketTable, count: int) -> None:
    buckets = {number: [number % 997, 1_000 + number % 991] for number in range(count)}
    seal(store, buckets, 1)
    window, catalog = window_of(store)
    assert len(catalog.buckets) == count
    taken_messages = [message for batch in in_batches(window, range(300, 2_101, 300)) for message in batch]
    window.close()
    assert len(taken_messages) == len(set(taken_messages)) == 2 * count
    assert sorted(due for due, _ in taken_messages) == sorted(due for dues in buckets.values() for due in dues)
    assert len(catalog) == 0


@pytest.mark.parametrize(
    "dues",
    [pytest.param(list(range(0, 3_000, 3)), marks=pytest.mark.thorough), [1_500] * 1_000],
    ids=["spread", "one millisecond"],
)
def test_a_segment_larger_than_the_window_gives_each_message_once(store: BucketTable, dues: list[int]) -> None:
    seal(store, {1: dues}, 1)
    window, _ = window_of(store, ahead_ms=100, max_bytes=50 * _BYTES)
    batches = list(in_batches(window, range(400, 3_201, 400)))
    window.close()
    taken_messages = [message for batch in batches for message in batch]
    assert sorted(due for due, _ in taken_messages) == dues
    assert len(set(taken_messages)) == len(dues)


@pytest.mark.thorough
def test_a_merge_of_buckets_in_the_window_does_not_change_its_messages(store: BucketTable) -> None:
    dues: Dues = {1: [100, 500, 900], 2: [150, 500, 950], 3: [120, 520, 980]}
    seal(store, dues, 1)
    window, catalog = window_of(store, ahead_ms=200)
    taken_messages = taken(window, 0, 200)
    merge = Merge(MergeName(1, 2, 1), {number: list(catalog.buckets[number]) for number in (1, 2)})
    while within := merge.next_slice(200):
        merge.add(merge_slice(store, merge, within, BATCH_SETTINGS, ALL_BUCKETS), within)
    catalog.announce(merge.replaced, merge.merged)
    # The next messages are loaded or loading by now. The merge commits between them and those after.
    finish_merge(store, merge, 1)
    taken_messages += taken(window, 200, 510)
    taken_messages += taken(window, 510, 800)
    catalog.replace(merge.buckets, merge.merged)
    taken_messages += taken(window, 800, 1_000)
    window.close()
    assert sorted(due for due, _ in taken_messages) == sorted(
        due for bucket_dues in dues.values() for due in bucket_dues
    )
    assert len(set(taken_messages)) == 9


def test_a_load_between_the_commit_of_a_merge_and_its_adoption_misses_nothing_that_the_merge_dropped(
    store: BucketTable,
) -> None:
    seal(store, {1: [100, 500, 900], 2: [150, 550]}, 1)
    gone = cancelled([("delayline-in", 0, 1, 495, 505)])
    store.append(store.spark.createDataFrame(cancelled_rows(gone, 2)), "cancels", 2)
    window, catalog = window_of(store)
    merge = Merge(MergeName(1, 2, 1), {number: list(catalog.buckets[number]) for number in (1, 2)})
    while within := merge.next_slice(0):
        merge.add(merge_slice(store, merge, within, BATCH_SETTINGS, ALL_BUCKETS), within)
    catalog.announce(merge.replaced, merge.merged)
    finish_merge(store, merge, 1)
    assert merge.cancelled == 1
    assert sorted(due for due, _ in taken(window, 0, 1_000)) == [100, 150, 550, 900]
    window.close()


def test_loaded_messages_are_found_after_their_files_were_removed_and_spark_lost_its_cache(
    store: BucketTable,
) -> None:
    seal(store, {1: [50, 500, 50_000], 2: [600, 60_000]}, 1)
    before = {row["path"] for row in store.files()}
    now_s = 0.0
    window, catalog = window_of(store, now=lambda: now_s)
    taken_messages = taken(window, 0, 100)
    assert window._horizon_ms > 60_000, "it is loaded far ahead"
    merge = Merge(MergeName(1, 2, 1), {number: list(catalog.buckets[number]) for number in (1, 2)})
    while within := merge.next_slice(100):
        merge.add(merge_slice(store, merge, within, BATCH_SETTINGS, ALL_BUCKETS), within)
    catalog.announce(merge.replaced, merge.merged)
    finish_merge(store, merge, 1)
    catalog.replace(merge.buckets, merge.merged)
    now_s += 1_801
    taken_messages += taken(window, 100, 200)
    taken_messages += taken(window, 200, 1_300)
    # As the vacuum does it.
    for path in before - {row["path"] for row in store.files()}:
        Path(store.path, path).unlink()
    lose_cached(store)
    taken_messages += taken(window, 1_300, 55_000)
    taken_messages += taken(window, 55_000, 70_000)
    window.close()
    assert [due for due, _ in taken_messages] == [50, 500, 600, 50_000, 60_000]


def lose_cached(store: BucketTable) -> None:
    """Let Spark lose the cached rows of every DataFrame, as if their executors were lost, but not the plans."""
    context: Any = store.spark.sparkContext
    blocks = context._jsc.sc().env().blockManager().master()
    for number in list(context._jsc.getPersistentRDDs().keySet()):
        blocks.removeRdd(number, True)


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


def test_overdue_segments_are_loaded_from_their_bucket_alone(store: BucketTable) -> None:
    dues: Dues = {1: [100, 900], 2: [120, 950]}
    seal(store, dues, 1)
    segments = [described_segment(row.asDict()) for row in store.metadata()]
    overdue = [segment for segment in segments if segment.bucket == 2]
    window = PrefetchWindow(store, Reach(SegmentCatalog(segments), 100, 10**6), 500, overdue, shards=2)
    assert [due for due, _ in taken(window, 0, 500)] == [120]
    assert sorted(due for due, _ in taken(window, 500, 1_000)) == [900, 950]
    window.close()


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


def test_a_batch_takes_nothing_from_a_window_that_has_nothing_due(store: BucketTable) -> None:
    minute = 60_000
    seal(store, {1: [5 * minute, 100 * minute]}, 1)
    window, _ = window_of(store, ahead_ms=minute)
    empty = [window.take(start_ms, start_ms + minute) for start_ms in (0, minute)]
    window.advance(2 * minute)
    assert empty == [[], []]
    assert window.take(2 * minute, 4 * minute) == []
    assert len(window.take(4 * minute, 6 * minute)) == 1
    window.close()


def test_a_table_with_fewer_messages_than_its_metadata_says_is_an_error(store: BucketTable) -> None:
    seal(store, {1: [100, 200, 300]}, 1)
    segments = [replace(described_segment(row.asDict()), count=4) for row in store.metadata()]
    window = PrefetchWindow(store, Reach(SegmentCatalog(segments), 1_000, 10**6), 0, [], shards=2)
    with pytest.raises(BucketUnreadable, match=r"has 3 messages due in .*, but its metadata says at least 4"):
        taken(window, 0, 1_000)
    window.close()


def count_loads(store: BucketTable, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return a list that gets the range of due time of each load from now on."""
    loads: list[tuple[int, int]] = []
    read = store.chunks

    def counted(start_ms: int, end_ms: int, *others: Any) -> DataFrame:
        loads.append((start_ms, end_ms))
        return read(start_ms, end_ms, *others)

    monkeypatch.setattr(store, "chunks", counted)
    return loads


def test_a_cancelled_message_is_in_no_later_load_and_is_named_if_it_is_loaded_already(store: BucketTable) -> None:
    far = 30 * 24 * 3_600_000
    seal(store, {1: [100, 150, far, far + 50]}, 1)
    window, _ = window_of(store, ahead_ms=200)
    assert [due for due, _ in taken(window, 0, 120)] == [100]
    gone = [("delayline-in", 0, offset, due - 5, due + 5) for due, offset in ((150, 1), (far + 50, 3))]
    store.append(store.spark.createDataFrame(cancelled_rows(cancelled(gone), 2)), "checkpoint", 2)
    window.take(120, 300)
    window.cancel(cancelled([*gone, ("delayline-in", 0, 77, NEVER_MS, 300)]))
    assert {source: ids.tolist() for source, ids in window.cancelled(120, 300).items()} == {("delayline-in", 0): [1]}
    assert window.cancelled(0, 145) == {}
    window.advance(300)
    assert window.cancelled(120, 300) == {}
    assert taken(window, 300, far - 1_000) == []
    assert taken(window, far - 1_000, far + 100) == [(far, 2)]
    window.close()


@pytest.mark.thorough
def test_what_was_cancelled_is_forgotten_when_nothing_is_loaded_that_is_older(store: BucketTable) -> None:
    day = 24 * 3_600_000
    seal(store, {1: [100, 150, 90 * day]}, 1)
    window, _ = window_of(store, ahead_ms=200)
    assert [due for due, _ in taken(window, 0, 120)] == [100]
    window.take(120, 130)
    # In a bucket of few messages, the index knows due times to days.
    window.cancel(cancelled([("delayline-in", 0, 1, 140, 5 * day)]))
    window.advance(130)
    assert window.cancelled(130, 200) != {}
    assert [due for due, _ in taken(window, 130, 200)] == [150], "it is for the hand-over to leave it out"
    assert window.cancelled(200, 300) == {}
    window.close()


def test_messages_that_have_one_id_are_cancelled_in_one_load_and_none_is_missed(store: BucketTable) -> None:
    # The input topic was created again between the two buckets.
    for number, dues in ((1, [100, 200]), (2, [150, 250])):
        seal(store, {number: dues}, number)
        gone = cancelled([("delayline-in", 0, 0, dues[0], dues[0])])
        store.append(store.spark.createDataFrame(cancelled_rows(gone, number)), "cancels", number)
    window, _ = window_of(store)
    assert sorted(taken(window, 0, 1_000)) == [(200, 1), (250, 1)]
    window.close()


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
