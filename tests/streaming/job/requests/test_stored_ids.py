"""The stored ids: read from the table, and added batch by batch, they are the same."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark import SparkFiles
from pyspark.sql import SparkSession

from sinks.buckets.bucket_table import BucketTable
from sinks.buckets.join_commits import join_ids, join_names
from state.buckets.cancelled import NOTHING_FORGETTABLE, cancelled_rows
from state.buckets.parts import IdRows
from state.cancel import REQUEST_SCHEMA, WAITING, Request
from state.checkpoint.origin import CheckpointOrigin
from state.message_ids import ids_of, table_from, table_of
from state.names import NAMED_SCHEMA, name_rows
from streaming.job.requests.stored_ids import StoredIds
from tests.messages import cancelled
from tests.streaming.job.requests.desk_bench import hash_of, name_of
from tests.streaming.sealed import cancelled_in

TOPIC, OTHER = "delayline-in", "other"
# The origin of a checkpoint that began when the first four buckets were sealed.
ORIGIN = CheckpointOrigin("c", 2, 2, first_bucket=4, offsets={TOPIC: {"0": 100, "1": 100}, OTHER: {"0": 100}})
# The ids that each batch stores: cancelled ones, and names with offset and due time of their message.
BATCHES: list[tuple[list[tuple[str, int, int]], dict[str, tuple[int, int]]]] = [
    ([(TOPIC, 0, 1), (TOPIC, 1, 2)], {"a": (10, 5_000), "b": (11, 6_000)}),
    ([], {"a": (12, 4_000)}),
    ([(OTHER, 0, 1), (TOPIC, 0, 1)], {"c": (13, 900)}),
    # These are read again: a lost batch stored them.
    ([(TOPIC, 0, 3)], {"b": (100, 7_000)}),
]
ASKED = [(TOPIC, 0, 1), (TOPIC, 0, 2), (TOPIC, 0, 3), (TOPIC, 1, 2), (OTHER, 0, 1), ("none", 0, 1)]


def tables(number: int) -> tuple[pa.Table, pa.Table]:
    """Return the ids that the batch of bucket `number` cancels, and the names that it gives."""
    ids, names = BATCHES[number]
    rows = [
        {"name": hash_of(name), "topic": TOPIC, "partition": 0, "offset": offset, "deliver_at_ms": due, "until_ms": due}
        | {"keeps": False}
        for name, (offset, due) in names.items()
    ]
    return cancelled((*each, 500, 510) for each in ids), pa.Table.from_pylist(rows, schema=NAMED_SCHEMA)


@pytest.fixture(scope="module")
def full(spark: SparkSession, empty_table: Path, tmp_path_factory: pytest.TempPathFactory) -> BucketTable:
    """A table with all that the batches store. Tests only read it."""
    path = tmp_path_factory.mktemp("full") / "buckets"
    shutil.copytree(empty_table, path)
    store = BucketTable(spark, str(path))
    for number in range(len(BATCHES)):
        ids, names = tables(number)
        rows = pa.concat_tables([cancelled_rows(ids, number), name_rows(names, number)])
        store.append(store.spark.createDataFrame(rows), "checkpoint", number)
    return store


def known(stored: StoredIds, from_ms: int = 0) -> tuple[Any, dict[str, int]]:
    """Return which of `ASKED` are cancelled, and the offset of the message that has each name."""
    named = stored.named_among(map(hash_of, "abcd"), from_ms)
    names = zip(named.column("name").to_pylist(), named.column("offset").to_pylist(), strict=True)
    found = stored.cancelled_among(ids_of(ASKED)).ids
    return {source: own.tolist() for source, own in found.items()}, {name_of(name): offset for name, offset in names}


@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_what_is_read_is_what_earlier_batches_have_stored(full: BucketTable, before: int) -> None:
    read, added = StoredIds(full), StoredIds(full)
    read.open(before, ORIGIN)
    added.open(0, ORIGIN)
    for number in range(before):
        added.add(*tables(number), number)
    first = {(TOPIC, 0): [1], (TOPIC, 1): [2]}
    expected = [
        ({}, {}),
        (first, {"a": 10, "b": 11}),
        (first, {"a": 12, "b": 11}),
        ({**first, (OTHER, 0): [1]}, {"a": 12, "b": 11, "c": 13}),
    ]
    assert known(read) == known(added) == expected[before]
    read.close()
    added.close()


def test_what_a_lost_batch_has_stored_of_records_that_are_read_again_hides_nothing(full: BucketTable) -> None:
    stored = StoredIds(full)
    stored.open(9, ORIGIN)
    assert known(stored)[1] == {"a": 12, "b": 11, "c": 13}
    assert known(stored, from_ms=1_000)[1] == {"a": 12, "b": 11}
    stored.close()


def test_what_this_checkpoint_has_stored_counts_although_it_reads_lower_offsets_of_a_topic_created_again(
    full: BucketTable,
) -> None:
    stored = StoredIds(full)
    stored.open(9, replace(ORIGIN, first_bucket=3))
    assert known(stored)[1] == {"a": 12, "b": 100, "c": 13}
    stored.close()


def test_ids_are_forgotten_as_in_the_table(full: BucketTable) -> None:
    stored = StoredIds(full)
    stored.open(9, ORIGIN)
    firsts = {(TOPIC, 0): 3}
    stored.forget(510, firsts)
    assert known(stored)[0] == {(TOPIC, 0): [1, 3], (TOPIC, 1): [2], (OTHER, 0): [1]}
    left = {(TOPIC, 0): [3], (TOPIC, 1): [2], (OTHER, 0): [1]}
    stored.forget(5_000, firsts)
    # The row of a name stays for as long as the row before it would.
    assert known(stored) == (left, {"a": 12, "b": 11})
    stored.forget(5_001, firsts)
    assert known(stored) == (left, {"b": 11})
    stored.close()


def ask_table_of(requests: Iterable[Request]) -> pa.Table:
    return table_from([(*request.asked, *request.id, *request[2:]) for request in requests], REQUEST_SCHEMA)


class EmptyTable:
    """A table of sealed buckets without any ids."""

    def ids_before(self, *_: object) -> list[pa.Table]:
        return []


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoredIds]:
    """Stored ids of an empty table, to which batches add."""
    monkeypatch.setattr("pyspark.SparkFiles.getRootDirectory", lambda: str(tmp_path))
    found = StoredIds(cast(BucketTable, EmptyTable()))
    found.open(0, ORIGIN)
    yield found
    found.close()


def test_what_was_replaced_is_known_by_its_replacement(stored: StoredIds) -> None:
    # The topic of a requested id may be any text.
    ids = [(TOPIC, 0, 1), (TOPIC, 0, 2), ("a/b", 1, 2)]
    replaced = {(TOPIC, 0, 1): (TOPIC, 0, 7), ("a/b", 1, 2): ("a/b", 0, 8)}
    stored.add(cancelled((*each, 500, 510) for each in ids), NAMED_SCHEMA.empty_table(), 3, replaced)
    requests = [Request(own, asked, WAITING) for asked, own in [*replaced.items(), ((TOPIC, 0, 2), (TOPIC, 0, 9))]]
    # Another replacement of the same message.
    requests.append(Request((TOPIC, 0, 8), (TOPIC, 0, 1), WAITING))
    assert stored.replaced_by(ask_table_of(requests)) == replaced
    assert stored.cancelled_among(ids_of(ids)).ids[TOPIC, 0].tolist() == [1, 2]


def test_what_is_cancelled_again_is_known_by_the_last_batch_that_did(stored: StoredIds) -> None:
    for bucket, offsets in ((3, (1, 2)), (7, (1,))):
        stored.add(cancelled((TOPIC, 0, at, 500, 510) for at in offsets), NAMED_SCHEMA.empty_table(), bucket)
    asked = ids_of((TOPIC, 0, at) for at in (1, 2, 3))
    found = stored.cancelled_among(asked)
    assert [found.contains_mask(table_of(asked), bucket).tolist() for bucket in (3, 4, 8)] == [
        [True, True, False], [True, False, False], [False, False, False],
    ]  # fmt: skip


def test_what_was_replaced_is_read_from_the_table_also_when_its_rows_were_joined(store: BucketTable) -> None:
    replaced = {(TOPIC, 0, 1): (TOPIC, 0, 7)}
    for number, own in enumerate((replaced, {}, {})):
        rows = cancelled_rows(cancelled([(TOPIC, 0, number + 1, 500, 510)]), number, own)
        store.append(store.spark.createDataFrame(rows), "checkpoint", number)
    for _ in range(2):
        stored = StoredIds(store)
        stored.open(9, ORIGIN)
        requests = [Request((TOPIC, 0, 7), (TOPIC, 0, offset), WAITING) for offset in (1, 2, 3)]
        assert stored.replaced_by(ask_table_of(requests)) == replaced
        stored.close()
        join_ids(store, IdRows.CANCELLED, [0, 1, 2], NOTHING_FORGETTABLE)
    assert store.id_partitions(IdRows.CANCELLED).keys() == {2}


def store_names(store: BucketTable, number: int, until_ms: int = 0, **given: tuple[int, int]) -> None:
    """Store names that a batch has given in bucket `number`: offset and due time, by name."""
    rows = [
        (hash_of(name), TOPIC, 0, offset, due_ms, max(due_ms, until_ms), False)
        for name, (offset, due_ms) in given.items()
    ]
    names = name_rows(table_from(rows, NAMED_SCHEMA), number)
    store.append_rows(store.spark.createDataFrame(names))


def names_left(store: BucketTable) -> int:
    """Return how many rows of names the table has."""
    left = store.ids(IdRows.NAMED)
    return 0 if left is None else left.count()


def test_joined_names_are_found_as_before_and_forgotten_with_the_oldest(store: BucketTable) -> None:
    store_names(store, 2, a=(1, 70_000), b=(2, 70_000), c=(3, 100))
    store_names(store, 3, a=(4, 70_001))
    store_names(store, 4, until_ms=70_001, a=(5, 200), d=(6, 70_000))

    def found(before: int = 9) -> dict[str, int]:
        stored = StoredIds(store)
        stored.open(before, ORIGIN)
        named = known(stored, 1_000)[1]
        stored.close()
        return named

    # The message of `a` is staged, and its row hides the row of the message before.
    assert (found(), found(4)) == ({"a": 5, "b": 2, "d": 6}, {"a": 4, "b": 2})
    join_names(store, [3, 4], 1_000)
    assert store.id_partitions(IdRows.NAMED).keys() == {2, 4}
    assert found() == {"a": 5, "b": 2, "d": 6}
    join_names(store, [2, 4], 1_000)
    assert found() == {"a": 5, "b": 2, "d": 6}
    assert names_left(store) == 3
    assert store.id_partitions(IdRows.NAMED).keys() == {4}
    assert store.metadata() == [], "they are no segments"
    assert cancelled_in(store) == {}


def test_of_two_occurrences_that_a_batch_has_stored_a_join_keeps_the_name_of_the_later_one(store: BucketTable) -> None:
    store_names(store, 5, a=(1, 2_000), b=(2, 70_000))
    store_names(store, 5, a=(1, 70_000), b=(2, 2_000))
    join_names(store, [5], 3_000)
    assert names_left(store) == 2


def test_only_messages_that_have_a_name_still_keep_it(stored: StoredIds) -> None:
    def add(bucket: int, *rows: tuple[str, int, bool]) -> None:
        names = [(hash_of(name), TOPIC, 1, offset, 500, 500, keeps) for name, offset, keeps in rows]
        stored.add(cancelled([]), table_from(names, NAMED_SCHEMA), bucket)

    add(1, ("a", 1, True), ("b", 2, True), ("c", 3, False), ("d", 4, True), ("e", 5, True))
    # Another message has taken the name `a`, and a request was for the message of `b`.
    add(2, ("a", 6, True), ("b", 2, False))
    found = stored.keeping_among(ids_of([*((TOPIC, 1, at) for at in range(1, 5)), (TOPIC, 0, 5), ("none", 1, 5)]))
    assert found.to_pylist() == [
        dict(zip(NAMED_SCHEMA.names, (hash_of("d"), TOPIC, 1, 4, 500, 500, True), strict=True))
    ]
    stored.forget(501, {})
    assert not stored.keeping_among(ids_of([(TOPIC, 1, 4)])).num_rows


def test_a_cancelled_holder_does_not_get_its_name_back_after_the_last_occurrence_of_the_next_one(
    stored: StoredIds,
) -> None:
    def add(bucket: int, *rows: tuple[str, int, int, int, bool]) -> None:
        names = [(hash_of(name), TOPIC, 1, *row) for name, *row in rows]
        stored.add(cancelled([]), table_from(names, NAMED_SCHEMA), bucket)

    # Its run is too large to be merged with the later ones.
    add(1, ("a", 1, 9_000, 9_000, True), *((f"other {at}", 10 + at, 9_000, 9_000, False) for at in range(40)))
    add(2, ("a", 1, 9_000, 9_000, False))
    add(3, ("a", 2, 100, 9_000, True))
    for bucket, due_ms in ((4, 150), (5, 200), (6, 300)):
        add(bucket, ("a", 2, due_ms, due_ms, True))

    def found(from_ms: int) -> list[tuple[int, int, int]]:
        """Return offset, due time, and until when the row is of use."""
        columns = (stored.named_among([hash_of("a")], from_ms).column(name) for name in NAMED_SCHEMA.names[3:6])
        return [*zip(*(column.to_pylist() for column in columns), strict=True)]

    stored.forget(500, {})
    assert found(500) == [(2, 300, 9_000)]
    assert not stored.keeping_among(ids_of([(TOPIC, 1, 1)])).num_rows
    stored.forget(9_001, {})
    assert found(0) == []


def test_no_file_has_a_name_while_it_is_open(full: BucketTable) -> None:
    folder = Path(SparkFiles.getRootDirectory())
    before = set(folder.iterdir())
    stored = StoredIds(full)
    stored.open(9, ORIGIN)
    assert set(folder.iterdir()) <= before
    assert known(stored)[0]
    stored.close()


def test_last_occurrence_of_a_message_that_repeats_has_its_name(store: BucketTable) -> None:
    """Its batch stores the name of the message that it accepts, and of the occurrence that waits then."""
    rows = [(hash_of("a"), TOPIC, 0, 7, due, due, False) for due in (5_000, 6_000)]
    names = [table_from([row], NAMED_SCHEMA) for row in rows]
    for several in (names, names[::-1]):
        stored = StoredIds(store)
        stored.open(0, ORIGIN)
        for each in several:
            stored.add(cancelled([]), each, 1)
        assert stored.named_among([hash_of("a")], 0).column("deliver_at_ms").to_pylist() == [6_000]
        stored.close()
