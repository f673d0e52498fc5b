"""The rows of cancelled ids in the table of sealed buckets."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from state.buckets.cancelled import NONE_CANCELLED, NOTHING_FORGETTABLE, CancelledIds, Forgettable, cancelled_rows
from state.message_ids import ID_SCHEMA
from tests.messages import cancelled, ids_of_rows

PLACED_SCHEMA = ID_SCHEMA.append(pa.field("bucket", pa.int64()))
Placed = tuple[str, int, int, int]
# Few ids and buckets, so that rows meet.
PLACED = st.tuples(st.sampled_from(["in", "other"]), st.integers(0, 1), st.integers(0, 5), st.integers(1, 4))


def placed(rows: list[Placed]) -> pa.Table:
    """Return ids, each with a bucket."""
    return pa.Table.from_pylist([dict(zip(PLACED_SCHEMA.names, row, strict=True)) for row in rows], PLACED_SCHEMA)


def cancelled_ids(rows: list[Placed]) -> CancelledIds:
    """Return the ids of `rows`, which batches have cancelled that seal those buckets."""
    last: dict[tuple[str, int], dict[int, int]] = {}
    for topic, partition, offset, bucket in sorted(rows):
        last.setdefault((topic, partition), {})[offset] = bucket
    ids = {source: np.array(list(own)) for source, own in last.items()}
    return CancelledIds(ids, {source: np.array(list(own.values())) for source, own in last.items()})


def test_what_was_replaced_has_the_id_of_its_replacement_beside_it() -> None:
    table = cancelled([("in", 0, 2, 500, 510), ("in", 0, 1, 600, 610), ("other/x", 3, 1, -1, -1)])
    replaced = {("in", 0, 1): ("in", 0, 7), ("other/x", 3, 1): ("other/x", 2, 8)}
    rows = ids_of_rows(cancelled_rows(table, 4, replaced)).to_pylist()
    assert [(row["topic"], row["offset"], row["name"]) for row in rows] == [
        ("other/x", 1, b"other/x/2/8"),
        ("in", 2, None),
        ("in", 1, b"in/0/7"),
    ]
    assert [row["name"] for row in ids_of_rows(cancelled_rows(table, 4)).to_pylist()] == [None] * 3


def test_only_what_is_old_due_and_cancelled_long_ago_can_be_forgotten() -> None:
    forgettable = Forgettable(500, 4, {("in", 0): 10, ("in", 1): 10})
    several = [("in", 0, 9, 1, 499), ("in", 0, 10, 1, 499), ("in", 0, 9, 1, 500), ("in", 2, 9, 1, 499)]
    ids = ids_of_rows(cancelled_rows(cancelled(several), 3)).sort_by("max_deliver_at_ms")
    gone = ids.filter(pa.array(forgettable.contains_mask(ids))).to_pylist()
    assert [(row["partition"], row["offset"]) for row in gone] == [(0, 9)]
    assert gone[0]["max_deliver_at_ms"] == 499
    assert not forgettable.contains_mask(ids_of_rows(cancelled_rows(cancelled(several), 4))).any()
    assert not NOTHING_FORGETTABLE.contains_mask(ids).any()


def test_a_cancelled_id_counts_in_buckets_up_to_that_of_the_last_batch_that_cancelled_it() -> None:
    rows = [("in", 0, 2, 4), ("in", 0, 1, 6), ("in", 0, 2, 7), ("in", 1, 2, 5), ("other", 0, 2, 3)]
    table, ids = placed(rows), cancelled_ids(rows)
    assert ids.contains_mask(table, 6).tolist() == [True, True, True, False, False]
    assert ids.contains_mask(table, 8).tolist() == [False] * 5
    assert ids.contains_mask(table, np.array([7, 7, 7, 6, 3])).tolist() == [True, False, True, False, True]
    assert NONE_CANCELLED.contains_mask(table, 0).tolist() == [False] * 5


@given(st.lists(PLACED), st.lists(PLACED), st.integers(1, 5))
def test_a_message_is_cancelled_if_a_batch_cancelled_its_id_and_sealed_no_earlier_bucket(
    rows: list[Placed], asked: list[Placed], bucket: int
) -> None:
    def is_cancelled(message: Placed, number: int) -> bool:
        return any(each[:3] == message[:3] and each[3] >= number for each in rows)

    ids, messages = cancelled_ids(rows), placed(asked)
    assert ids.contains_mask(messages, bucket).tolist() == [is_cancelled(each, bucket) for each in asked]
    buckets = messages.column("bucket").to_numpy()
    assert ids.contains_mask(messages, buckets).tolist() == [is_cancelled(each, each[3]) for each in asked]
