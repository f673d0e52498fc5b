"""The driver's copy of the index, against a query of the table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from sinks.buckets.bucket_table import ALL_BUCKETS, BucketTable
from state.buckets.parts import MergeName
from state.message_ids import Ids, ids_of
from streaming.job.requests.sealed_ids import SealedIds
from streaming.maintenance.merge import Merge, finish_merge, merge_slice
from tests.messages import some_batch_settings
from tests.streaming.sealed import seal_messages

SETTINGS = some_batch_settings(segment_max_messages=40, index_precision_bits=12)
SOURCES = [("in-a", 0), ("in-a", 1), ("in-b", 0)]
# Some of each bucket, some of none, and one of a source that the table does not have.
ASKED = ids_of([*((*SOURCES[at % 3], at) for at in range(900, 3300, 7)), ("in-c", 0, 5), ("in-a", 0, 1)])


def seal(store: BucketTable, number: int) -> list[Any]:
    """Seal 200 messages of all sources, due 1 s apart from `number` thousand seconds on."""
    return seal_messages(
        store,
        number,
        [
            {"topic": topic, "partition": partition, "offset": at, "deliver_at_ms": at * 1000}
            for at in range(1000 * number, 1000 * number + 200)
            for topic, partition in [SOURCES[at % 3]]
        ],
        SETTINGS,
    )


@pytest.fixture
def sealed(store: BucketTable) -> Iterator[SealedIds]:
    ids = SealedIds(store)
    yield ids
    ids.close()


def check(sealed: SealedIds, store: BucketTable, ids: Ids = ASKED, before: int = ALL_BUCKETS, from_ms: int = 0) -> int:
    """Check that both find the same, and return how many messages that is."""

    def rows(table: pa.Table) -> list[tuple[Any, ...]]:
        return sorted(tuple(row.values()) for row in table.select(sorted(table.column_names)).to_pylist())

    version = store.version()
    copied, queried = (rows(each.locate(ids, before, from_ms, version)) for each in (sealed, store))
    assert copied == queried
    return len(copied)


def test_the_copy_follows_seals_merges_and_removals(store: BucketTable, sealed: SealedIds) -> None:
    assert check(sealed, store) == 0
    buckets = {number: seal(store, number) for number in (1, 2)}
    found = check(sealed, store)
    assert found > 40
    # Only a batch that comes later.
    assert 0 < check(sealed, store, before=2) < found
    assert 0 < check(sealed, store, from_ms=2_000_000) < found
    merge = Merge(MergeName(1, 2, 1), buckets)
    while within := merge.next_slice(0):
        merge.add(merge_slice(store, merge, within, SETTINGS, ALL_BUCKETS), within)
    assert check(sealed, store) == found, "what is merged counts as soon as the merge is finished, and once"
    before = store.version()
    finish_merge(store, merge, 1)
    assert check(sealed, store) == found
    assert sealed.locate(ASKED, ALL_BUCKETS, 0, before).num_rows == found, "the table as it was"
    seal(store, 3)
    assert check(sealed, store) > found
    store.delete(store.delta_partitions())
    assert check(sealed, store) == 0


@pytest.mark.thorough
def test_what_was_looked_at_ahead_is_not_read_again(
    store: BucketTable, sealed: SealedIds, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[set[str]] = []
    from_table = store.index_entries_of

    def noting(partitions: set[str], version: int) -> Iterator[pa.Table]:
        read.append(set(partitions))
        return from_table(partitions, version)

    monkeypatch.setattr(store, "index_entries_of", noting)
    seal(store, 1)
    sealed.look_ahead()
    assert not read, "nobody has asked"
    check(sealed, store)
    seal(store, 2)
    sealed.look_ahead()
    assert [len(parts) for parts in read] == [1, 1]
    check(sealed, store)
    assert len(read) == 2


def test_sealed_ids_are_copied_before_requests_need_them(
    store: BucketTable, sealed: SealedIds, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal(store, 1)
    sealed.look_ahead(is_expected=True)
    seal(store, 2)
    sealed.look_ahead()
    # Both are there.
    monkeypatch.setattr(store, "index_entries_of", None)
    check(sealed, store)


def test_two_messages_of_one_id_are_both_found(store: BucketTable, sealed: SealedIds) -> None:
    # The input topic was created again in between.
    seal(store, 1)
    seal_messages(
        store,
        2,
        [{"topic": "in-a", "partition": 0, "offset": 1002, "deliver_at_ms": due} for due in (5, 9000)],
        SETTINGS,
    )
    assert check(sealed, store, ids_of([("in-a", 0, 1002)])) == 3
    assert check(sealed, store, ids_of([("in-a", 0, 1002), ("in-a", 0, 999), ("in-b", 0, 1002)])) == 3


@pytest.mark.thorough
def test_offsets_may_be_far_apart(store: BucketTable, sealed: SealedIds) -> None:
    far = [0, 1, 2**32, 2**40, 2**62]
    seal_messages(
        store, 1, [{"topic": "in-a", "partition": 0, "offset": at, "deliver_at_ms": 9000} for at in far], SETTINGS
    )
    assert check(sealed, store, ids_of(("in-a", 0, at) for at in [*far, 2**62 - 1, 3])) == len(far)
