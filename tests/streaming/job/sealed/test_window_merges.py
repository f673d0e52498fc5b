"""Batches take the same messages from the prefetch window while its buckets are merged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sinks.buckets.bucket_table import ALL_BUCKETS, BucketTable
from state.buckets.cancelled import cancelled_rows
from state.buckets.parts import MergeName
from streaming.maintenance.merge import Merge, finish_merge, merge_slice
from tests.messages import cancelled
from tests.streaming.job.sealed.window_batches import BATCH_SETTINGS, Dues, seal, taken, window_of


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


@pytest.mark.thorough
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
