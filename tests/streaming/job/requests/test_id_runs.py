"""Cancelled ids in runs on the local disk, against a dictionary."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from state.message_ids import ids_of
from streaming.job.requests import id_runs
from streaming.job.requests.id_runs import IdRuns

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("max_deliver_at_ms", pa.int64()),
        ("bucket", pa.int64()),
    ]
)
Id = tuple[str, int, int]
# Few, so that they meet.
IDS = st.tuples(st.sampled_from(["in", "a/b"]), st.integers(0, 1), st.integers(0, 30))
EVERY = [(topic, partition, offset) for topic in ("in", "a/b") for partition in (0, 1) for offset in range(31)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("pyspark.SparkFiles.getRootDirectory", lambda: str(tmp_path))
    # Each piece of a merge has a few ids.
    monkeypatch.setattr(id_runs, "_AT_ONCE", 3)
    return tmp_path


def table(ids: Iterator[Id] | list[Id], due_ms: int, bucket: int) -> pa.Table:
    """Return ids that the batch of a bucket cancels."""
    rows = [dict(zip(SCHEMA.names, (*each, due_ms, bucket), strict=True)) for each in ids]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def known(runs: IdRuns) -> dict[Id, int]:
    """Return all ids that are there, with their buckets."""
    found = runs.buckets_of(ids_of([*EVERY, ("none", 0, 1)]))
    return {
        (*source, offset): bucket
        for source, (offsets, buckets) in found.items()
        for offset, bucket in zip(offsets.tolist(), buckets.tolist(), strict=True)
    }


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(st.tuples(st.lists(IDS, max_size=20), st.integers(0, 3)), max_size=12),
    st.integers(0, 4),
    st.dictionaries(st.tuples(st.sampled_from(["in", "a/b"]), st.integers(0, 1)), st.integers(0, 31)),
)
def test_they_have_what_was_added_and_not_forgotten(
    folder: Path, batches: list[tuple[list[Id], int]], before_ms: int, old_below: dict[tuple[str, int], int]
) -> None:
    runs = IdRuns()
    model: dict[Id, tuple[int, int]] = {}
    for bucket, (ids, due_ms) in enumerate(batches):
        runs.add(table(ids, due_ms, bucket))
        model |= dict.fromkeys(ids, (bucket, due_ms))
        assert known(runs) == {each: bucket for each, (bucket, _) in model.items()}
    old = {
        (*source, offset): bucket
        for source, offsets, buckets in runs.old(before_ms, old_below)
        for offset, bucket in zip(offsets.tolist(), buckets.tolist(), strict=True)
    }
    runs.forget(before_ms, old_below)
    left = {
        each: bucket
        for each, (bucket, due_ms) in model.items()
        if due_ms >= before_ms or each[2] >= old_below.get(each[:2], 0)
    }
    # What an earlier run has of an id is forgotten for itself.
    assert {each: bucket for each, bucket in known(runs).items() if each in left} == left
    assert all(model[each][0] > bucket for each, bucket in known(runs).items() if each not in left)
    assert old.keys() >= model.keys() - left.keys()
    assert all(each[2] < old_below.get(each[:2], 0) for each in old)
    runs.add(table([("in", 0, 5)], 9, 99))
    assert known(runs)["in", 0, 5] == 99


def test_there_are_few_runs_and_no_file_has_a_name(folder: Path) -> None:
    runs = IdRuns()
    for number in range(200):
        runs.add(table([("in", 0, number)], 1, number))
    assert len(runs._runs) <= 8
    assert list(folder.iterdir()) == []
    assert runs.buckets_of(ids_of([("in", 0, 7), ("in", 0, 200)]))["in", 0][1].tolist() == [7]


def test_of_an_id_that_is_there_twice_the_last_bucket_counts(folder: Path) -> None:
    runs = IdRuns()
    runs.add(pa.concat_tables([table([("in", 0, 1)], 1, 7), table([("in", 0, 1)], 1, 3)]))
    assert known(runs) == {("in", 0, 1): 7}
