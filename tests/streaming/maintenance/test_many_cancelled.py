"""A merge and a load of a table with many cancelled ids read few of them, and not in the driver."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from sinks.buckets.bucket_table import ALL_BUCKETS, BucketTable
from state.buckets.catalog import SegmentCatalog
from state.buckets.id_rows import ID_ROW_SCHEMA, packed_ids
from state.buckets.parts import IdRows, MergeName
from state.buckets.reach import Reach
from state.buckets.segments import Segment
from state.buckets.table_rows import STORED_SCHEMA
from streaming.job.sealed.prefetch_window import PrefetchWindow
from streaming.maintenance.merge import Merge, merge_slice
from tests.messages import RECORD, some_batch_settings
from tests.streaming.sealed import seal_messages

BATCH_SETTINGS = some_batch_settings()
HOUR_MS = 3_600_000
MONTH_MS = 30 * 24 * HOUR_MS
# How exactly the due times of the cancelled messages are known, in ms.
SLOT_MS = 60_000
# The newest batch that has cancelled something. The buckets of all messages come before.
CANCELLED_IN = 9
_AT_ONCE = 100_000


def cancel_many(store: BucketTable, count: int) -> int:
    """Cancel messages that are due within a month, one in each `MONTH_MS / count`. Returns the bytes of their ids."""

    def rows(_: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for first in range(0, count, _AT_ONCE):
            offsets = np.arange(first, min(count, first + _AT_ONCE))
            dues_ms = offsets * MONTH_MS // count
            columns = {
                "bucket": np.full(len(offsets), CANCELLED_IN), "deliver_at_ms": dues_ms,
                "max_deliver_at_ms": dues_ms + SLOT_MS, "topic": pa.array([RECORD["topic"]] * len(offsets)),
                "partition": np.zeros(len(offsets), np.int32), "offset": offsets,
                "name": pa.nulls(len(offsets), pa.binary()), "keeps": pa.nulls(len(offsets), pa.bool_()),
            }  # fmt: skip
            ids = pa.table(columns).cast(ID_ROW_SCHEMA).combine_chunks()
            yield from packed_ids(IdRows.CANCELLED, CANCELLED_IN)(ids.to_batches())

    frame = store.spark.range(0, 1, 1, 1).mapInArrow(rows, from_arrow_schema(STORED_SCHEMA))
    store.append(frame, "cancels", CANCELLED_IN)
    return store.id_partitions(IdRows.CANCELLED)[CANCELLED_IN]


def seal_some(store: BucketTable, count: int, number: int, first_ms: int, last_ms: int) -> list[Segment]:
    """Seal a hundred messages as bucket `number`. Every second one is cancelled."""
    dues_ms = np.linspace(first_ms, last_ms, 100).astype(np.int64).tolist()
    # Cancelled messages have the ids of messages that are due then.
    rows = [
        {"deliver_at_ms": due_ms, "offset": due_ms * count // MONTH_MS if at % 2 else 10**12 + 1_000 * number + at}
        for at, due_ms in enumerate(dues_ms)
    ]
    return seal_messages(store, number, rows, BATCH_SETTINGS)


@contextmanager
def most_arrow_bytes() -> Iterator[Callable[[], int]]:
    """Yield a function that returns what Arrow tables have taken of this process's memory at the most."""
    before, most, ended = pa.total_allocated_bytes(), [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.002):
            most.append(pa.total_allocated_bytes() - before)
            most[:] = [max(most)]

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield lambda: most[0]
    finally:
        ended.set()
        watching.join()


def bytes_read(store: BucketTable) -> int:
    """Return what tasks have read from files since Spark was started."""
    status = store.spark.sparkContext._jsc.sc().statusStore()
    executors = status.executorList(True)
    return sum(int(executors.apply(at).totalInputBytes()) for at in range(executors.size()))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "count", [1_000_000, pytest.param(50_000_000, marks=[pytest.mark.soak, pytest.mark.takes(400)])]
)
def test_a_merge_and_a_load_read_the_cancelled_ids_of_their_due_times_and_the_driver_none(
    store: BucketTable, count: int
) -> None:
    hour = {number: seal_some(store, count, number, 5 * HOUR_MS, 6 * HOUR_MS) for number in (1, 2)}
    month = {number: seal_some(store, count, number, HOUR_MS, MONTH_MS - HOUR_MS) for number in (3, 4)}
    stored = cancel_many(store, count)

    def merged(buckets: dict[int, list[Segment]]) -> Merge:
        merge = Merge(MergeName(min(buckets), max(buckets), 1), buckets)
        while within := merge.next_slice(0):
            merge.add(merge_slice(store, merge, within, BATCH_SETTINGS, ALL_BUCKETS), within)
        merge.check(0)
        return merge

    with most_arrow_bytes() as driver_bytes:
        before = bytes_read(store)
        one = merged(hour)
        assert (sum(segment.count for segment in one.merged), one.cancelled) == (100, 100)
        assert bytes_read(store) - before < stored / 5
        before = bytes_read(store)
        segments = [segment for several in (*hour.values(), *month.values()) for segment in several]
        window = PrefetchWindow(store, Reach(SegmentCatalog(segments), HOUR_MS, 10**9), 0, [], shards=2)
        (piece,) = window.take(0, 5 * HOUR_MS + HOUR_MS // 2)
        assert sum(row["count"] for row in piece.collect()) == 100 // 2 + 2
        window.close()
        assert bytes_read(store) - before < stored / 5
        other = merged(month)
        assert (sum(segment.count for segment in other.merged), other.cancelled) == (100, 100)
        assert driver_bytes() < 2**20
