from __future__ import annotations

import pytest

from benchmarks.sustained import buckets_of, most_buckets
from state.buckets.parts import MergeName, chunks_of, metadata_of, sealed_part

MERGE = MergeName(1, 16, 3)


def paths(*partitions: str) -> list[str]:
    return [f"part={partition}/part-{number}.parquet" for number, partition in enumerate(partitions)]


def test_a_merged_bucket_counts_once_and_only_with_its_marker() -> None:
    slices = [of(MERGE.part(number)) for number in (0, 1) for of in (chunks_of, metadata_of)]
    sealed = [of(sealed_part(number)) for number in (17, 18) for of in (chunks_of, metadata_of)]
    assert buckets_of(paths(*sealed)) == {sealed_part(17), sealed_part(18)}
    assert buckets_of(paths(*sealed, *slices)) == {sealed_part(17), sealed_part(18)}
    assert buckets_of(paths(*sealed, *slices, MERGE.live)) == {sealed_part(17), sealed_part(18), MERGE.live}


def test_the_buckets_that_the_design_allows() -> None:
    assert most_buckets(16, 16 * 16 * 30_000, 30_000) == pytest.approx(15 * 3 + 1)
    # The most buckets that may wait unmerged, however few messages there are.
    assert most_buckets(16, 10, 30_000) == pytest.approx(15 * 2 + 1)
