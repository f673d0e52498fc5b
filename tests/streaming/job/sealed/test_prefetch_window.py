"""The prefetch window on a real Delta table: batches take each message once, and no cancelled one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conf.errors import BucketUnreadable
from sinks.buckets.bucket_table import BucketTable
from state.buckets.cancelled import NEVER_MS, cancelled_rows
from state.buckets.catalog import SegmentCatalog
from state.buckets.reach import Reach
from state.buckets.table_rows import described_segment
from streaming.job.sealed.prefetch_window import PrefetchWindow
from tests.messages import cancelled
from tests.streaming.job.sealed.window_batches import Dues, in_batches, seal, taken, window_of

# The size of a message that `seal` stores, by its segment's metadata.
_BYTES = 65


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


def test_overdue_segments_are_loaded_from_their_bucket_alone(store: BucketTable) -> None:
    dues: Dues = {1: [100, 900], 2: [120, 950]}
    seal(store, dues, 1)
    segments = [described_segment(row.asDict()) for row in store.metadata()]
    overdue = [segment for segment in segments if segment.bucket == 2]
    window = PrefetchWindow(store, Reach(SegmentCatalog(segments), 100, 10**6), 500, overdue, shards=2)
    assert [due for due, _ in taken(window, 0, 500)] == [120]
    assert sorted(due for due, _ in taken(window, 500, 1_000)) == [900, 950]
    window.close()


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
    assert [due for due, _ in taken(window, 130, 200)] == [150], "it is for the staging to leave it out"
    assert window.cancelled(200, 300) == {}
    window.close()


@pytest.mark.thorough
def test_messages_that_have_one_id_are_cancelled_in_one_load_and_none_is_missed(store: BucketTable) -> None:
    # The input topic was created again between the two buckets.
    for number, dues in ((1, [100, 200]), (2, [150, 250])):
        seal(store, {number: dues}, number)
        gone = cancelled([("delayline-in", 0, 0, dues[0], dues[0])])
        store.append(store.spark.createDataFrame(cancelled_rows(gone, number)), "cancels", number)
    window, _ = window_of(store)
    assert sorted(taken(window, 0, 1_000)) == [(200, 1), (250, 1)]
    window.close()
