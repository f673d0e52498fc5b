"""Messages that are cancelled in the table: they are found, left out of merges, and forgotten once they are old."""

from __future__ import annotations

from typing import Any

import pytest

from conf.settings import Settings
from sinks.buckets.bucket_table import ALL_BUCKETS
from sinks.buckets.join_commits import join_ids
from state.buckets.cancelled import NEVER_MS, NOTHING_FORGETTABLE, Forgettable
from state.buckets.parts import IdRows, MergeName
from state.buckets.table_rows import described_segment
from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.progress import BatchSpan, Progress
from state.message_ids import ids_of
from streaming.job.requests.desk import RequestDesk
from streaming.job.requests.stored_ids import StoredIds
from streaming.maintenance.merge import Merge, finish_merge, merge_slice
from tests.streaming.job.requests.desk_bench import BATCH, BATCH_SETTINGS, TOPIC, CancelledId, seal, span
from tests.streaming.job.requests.desk_requests import cancel, decide
from tests.streaming.job.requests.spark_table import SparkTable
from tests.streaming.sealed import cancelled_in

pytestmark = pytest.mark.usefixtures("known_from", "markers", "recalled")


@pytest.mark.thorough
def test_a_merge_keeps_what_waits_findable_and_drops_what_is_cancelled(spark_table: SparkTable) -> None:
    seal(spark_table, 1, _1=5_000, _2=6_000)
    seal(spark_table, 2, _3=5_500, _4=6_500)
    cancel(spark_table, 3, CancelledId((TOPIC, 0, 3), 5_488, 5_503))
    buckets: dict[int, Any] = {}
    for row in spark_table.metadata():
        segment = described_segment(row.asDict())
        buckets.setdefault(segment.bucket, []).append(segment)
    merge = Merge(MergeName(1, 2, 1), buckets)
    while within := merge.next_slice(0):
        merge.add(merge_slice(spark_table, merge, within, BATCH_SETTINGS, 3), within)
    assert merge.cancelled == 1
    merge.check(0)
    finish_merge(spark_table, merge, 1)
    assert sum(segment.count for segment in merge.merged) == 3
    results, cancelled = decide(spark_table, 1, 3, 4)
    assert set(results.values()) == {"cancelled"}
    assert {each.id[2] for each in cancelled} == {1, 4}


def test_nothing_is_forgotten_that_the_markers_do_not_show_to_be_over(
    known_from: dict[tuple[str, int], int], markers: list[Progress | None]
) -> None:
    no_store: Any = None
    assert not any(RequestDesk(no_store, Settings()).forgettable(900).old_below.values()), "no record is old"
    known_from[TOPIC, 0] = 5
    desk = RequestDesk(no_store, Settings())
    # The batch of the newest marker may not be over.
    assert desk.forgettable(900) == Forgettable(700, BATCH, {(TOPIC, 0): 5})
    assert desk.forgettable(650) == Forgettable(650, BATCH, {(TOPIC, 0): 5})
    # A checkpoint that has staged nothing.
    markers[:] = [Progress(BatchSpan(CheckpointOrigin("d", 2, 1)))]
    assert RequestDesk(no_store, Settings()).forgettable(900).due_before_ms == 0
    markers[:] = [None, None]
    assert RequestDesk(no_store, Settings()).forgettable(900) == NOTHING_FORGETTABLE


@pytest.mark.thorough
def test_of_a_cancelled_message_whose_record_is_deleted_nothing_is_kept(
    spark_table: SparkTable, known_from: dict[tuple[str, int], int]
) -> None:
    far = CancelledId((TOPIC, 0, 3), 90_000, 90_001)
    cancel(spark_table, 2, CancelledId((TOPIC, 0, 1), 500, 510), CancelledId((TOPIC, 0, 2), NEVER_MS, 510), far)
    cancel(spark_table, 3, CancelledId((TOPIC, 0, 9), 500, 510))
    assert spark_table.id_partitions(IdRows.CANCELLED).keys() == {2, 3}
    known_from[TOPIC, 0] = 5
    join_ids(spark_table, IdRows.CANCELLED, [2, 3], RequestDesk(spark_table, Settings()).forgettable(1_000))
    assert spark_table.id_partitions(IdRows.CANCELLED).keys() == {3}
    assert cancelled_in(spark_table)[TOPIC, 0] == [3, 9]
    results, _ = decide(spark_table, 1, 2, 3, 9, 8)
    assert results == {1: "undecided", 2: "undecided", 3: "cancelled", 9: "cancelled", 8: "undecided"}


def test_cancelled_messages_are_found_by_due_time_and_by_id(spark_table: SparkTable) -> None:
    cancel(spark_table, 2, CancelledId((TOPIC, 0, 1), 500, 510), CancelledId((TOPIC, 1, 1), NEVER_MS, 900))
    cancel(spark_table, 3, CancelledId((TOPIC, 0, 2), 505, 520))
    version = spark_table.version()

    def chunks(start_ms: int, end_ms: int, from_bucket: int, until_bucket: int) -> list[int]:
        found = spark_table.cancelled_chunks(start_ms, end_ms, from_bucket, until_bucket, version)
        return [] if found is None else sorted(row["offset"] for row in found.collect())

    assert chunks(0, 2**62, 0, ALL_BUCKETS) == [1, 2], "not what is in no bucket"
    assert [chunks(511, 600, 0, bucket) for bucket in (2, 3)] == [[], [2]]
    assert [chunks(0, 505, 0, 3), chunks(0, 506, 0, 3)] == [[1], [1, 2]]
    assert [chunks(0, 2**62, bucket, 3) for bucket in (2, 3, 4)] == [[1, 2], [2], []]
    stored = StoredIds(spark_table)
    stored.open(3, span().origin)
    asked = [(TOPIC, 0, 1), (TOPIC, 0, 2), (TOPIC, 1, 1), (TOPIC, 1, 2), ("other", 0, 1)]
    known = stored.cancelled_among(ids_of(asked))
    assert {source: own.tolist() for source, own in known.ids.items()} == {(TOPIC, 0): [1], (TOPIC, 1): [1]}
    assert cancelled_in(spark_table).keys() == {(TOPIC, 0), (TOPIC, 1)}
    assert spark_table.metadata() == [], "they are no segments"
