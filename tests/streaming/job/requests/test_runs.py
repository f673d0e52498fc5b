"""Rows in runs on the local disk, against a dictionary."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conf.errors import StorageFailed
from state.kinds import Mask
from state.message_ids import ID_SCHEMA, ids_of, table_from
from streaming.job.requests.runs import Numbers, Runs, Source, divided

Id = tuple[str, int, int]
# Few, so that they meet.
IDS = st.tuples(st.sampled_from(["in", "a/b"]), st.integers(0, 1), st.integers(0, 30))
EVERY = [(topic, partition, offset) for topic in ("in", "a/b") for partition in (0, 1) for offset in range(31)]
SOURCE = ("in", 0)
HASHES = [b"\0\0", b"a\0", b"aa"]


class Row(NamedTuple):
    """By offset, the bucket of the batch that has added it, and when it is due."""

    offsets: Numbers
    buckets: Numbers
    dues: Numbers


class Pair(NamedTuple):
    """By a hash and a number, another number."""

    hashes: npt.NDArray[Any]
    numbers: Numbers
    values: Numbers


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("pyspark.SparkFiles.getRootDirectory", lambda: str(tmp_path))
    return tmp_path


def empty() -> Runs[Row]:
    # Each piece of a merge has a few rows.
    return Runs(Row, [np.int64] * 3, piece_rows=3)


def add(to: Runs[Row], ids: Iterable[Id], bucket: int, due_ms: int) -> None:
    """Add the ids that the batch of a bucket adds."""
    table = table_from(list(ids), ID_SCHEMA)
    others = (np.full(table.num_rows, value) for value in (bucket, due_ms))
    to.add(divided(table, Row(table.column("offset").to_numpy(), *others)))


def buckets_in(several: Iterable[tuple[Source, Row]]) -> Iterator[tuple[Id, int]]:
    for source, rows in several:
        for offset, bucket in zip(rows.offsets.tolist(), rows.buckets.tolist(), strict=True):
            yield (*source, offset), bucket


def known(own: Runs[Row]) -> dict[Id, int]:
    """Return all ids that are there, with their buckets."""
    found = [*buckets_in(own.find(ids_of([*EVERY, ("none", 0, 1)])).items())]
    assert len(dict(found)) == len(found)
    return dict(found)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(st.tuples(st.lists(IDS, max_size=20), st.integers(0, 3)), max_size=12),
    st.integers(0, 4),
    st.sampled_from([0.0, 0.5]),
)
def test_they_have_what_was_added_and_not_forgotten(
    folder: Path, batches: list[tuple[list[Id], int]], before_ms: int, least: float
) -> None:
    own = empty()
    model: dict[Id, tuple[int, int]] = {}
    for bucket, (ids, due_ms) in enumerate(batches):
        add(own, ids, bucket, due_ms)
        model |= dict.fromkeys(ids, (bucket, due_ms))
        assert known(own) == {each: bucket for each, (bucket, _) in model.items()}

    def is_old(source: Source, rows: Row) -> Mask:
        return (rows.dues < before_ms) & (source != SOURCE)

    own.forget(is_old, least)
    left = {each: bucket for each, (bucket, due_ms) in model.items() if due_ms >= before_ms or each[:2] == SOURCE}
    # An earlier run forgets an id by what it has of it itself.
    assert {each: bucket for each, bucket in known(own).items() if each in left} == left
    others = {each: bucket for each, bucket in known(own).items() if each not in left}
    assert all(model[each][0] > bucket or least for each, bucket in others.items())
    assert {each for each, _ in buckets_in(own.pieces())} == known(own).keys()
    add(own, [("in", 0, 5)], 99, 9)
    assert known(own)["in", 0, 5] == 99


def test_a_run_with_few_old_rows_keeps_them_for_now(folder: Path) -> None:
    own = empty()
    add(own, [("in", 0, at) for at in range(8)], 1, 5)
    own.forget(lambda _, rows: rows.offsets < 3, least=0.5)
    assert len(known(own)) == 8
    own.forget(lambda _, rows: rows.offsets < 4, least=0.5)
    assert len(known(own)) == 4


def test_there_are_few_runs_and_no_file_has_a_name(folder: Path) -> None:
    own = empty()
    for number in range(200):
        add(own, [("in", 0, number)], number, 1)
    assert len(own._runs) <= 8
    assert list(folder.iterdir()) == []
    assert own.find(ids_of([("in", 0, 7), ("in", 0, 200)]))[SOURCE].buckets.tolist() == [7]


def test_what_the_system_writes_in_parts_is_there_as_a_whole_or_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, room = os.pwrite, 1000

    def write_some(file: int, content: bytes, offset: int) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = write(file, memoryview(content)[: min(7, room)], offset)
        room -= count
        return count

    monkeypatch.setattr(os, "pwrite", write_some)
    own = empty()
    add(own, [("in", 0, at) for at in range(30)], 5, 1)
    assert known(own) == {("in", 0, at): 5 for at in range(30)}
    with pytest.raises(StorageFailed, match="No space left"):
        add(own, [("in", 1, at) for at in range(30)], 6, 1)


def test_rows_that_a_full_disk_does_not_let_merge_stay(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = empty()
    add(own, [("in", 0, 1)], 5, 1)
    write, room = os.pwrite, 24

    def write_some(file: int, content: bytes, offset: int) -> int:
        nonlocal room
        room -= len(content)
        if room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, content, offset)

    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", write_some)
        with pytest.raises(StorageFailed, match="No space left"):
            add(own, [("in", 0, 2)], 6, 1)
    assert known(own) == {("in", 0, 1): 5, ("in", 0, 2): 6}
    add(own, [("in", 0, 3)], 7, 1)
    assert known(own) == {("in", 0, 1): 5, ("in", 0, 2): 6, ("in", 0, 3): 7}


def test_of_an_id_that_is_there_twice_the_last_bucket_counts(folder: Path) -> None:
    own = empty()
    for bucket, ids in ((7, [1, 2]), (3, [1, 1, 3])):
        add(own, [("in", 0, at) for at in ids], bucket, 1)
    assert known(own) == {("in", 0, 1): 7, ("in", 0, 2): 7, ("in", 0, 3): 3}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.dictionaries(st.tuples(st.sampled_from(HASHES), st.integers(0, 5)), st.integers(0, 99))))
def test_a_key_may_have_two_parts_and_the_first_be_a_hash(
    folder: Path, several: list[dict[tuple[bytes, int], int]]
) -> None:
    own = Runs(Pair, ["S2", np.int64, np.int64], keys=2, piece_rows=3)
    model: dict[tuple[bytes, int], int] = {}
    for each in several:
        hashes, numbers = ([key[part] for key in each] for part in (0, 1))
        own.add([(SOURCE, (np.array(hashes, "S2"), np.array(numbers, int), np.array([*each.values()], int)))])
        model |= {key: max(value, model.get(key, value)) for key, value in each.items()}
    for wanted in HASHES:
        rows = own.find({SOURCE: np.array([wanted], "S2")}).get(SOURCE)
        found = {} if rows is None else dict(zip(rows.numbers.tolist(), rows.values.tolist(), strict=True))
        assert found == {number: value for (hash_, number), value in model.items() if hash_ == wanted}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 99), st.integers(0, 9)), max_size=9)))
def test_the_row_that_counts_has_the_greatest_of_a_lasting_column(
    folder: Path, several: list[list[tuple[int, int, int]]]
) -> None:
    own = Runs(Row, [np.int64] * 3, lasting=2, piece_rows=3)
    for rows in several:
        own.add([(SOURCE, [np.array([row[column] for row in rows], int) for column in range(3)])])
    every = [row for rows in several for row in rows]
    expected = []
    for key in sorted({key for key, *_ in every}):
        _, buckets, lasts = zip(*(row for row in every if row[0] == key), strict=True)
        expected.append((key, max(buckets), max(lasts)))
    found = own.find({SOURCE: np.arange(6)}).get(SOURCE)
    assert ([] if found is None else [*zip(*(column.tolist() for column in found), strict=True)]) == expected
