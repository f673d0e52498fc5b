"""The files and the memory that the driver's copy of the index takes."""

from __future__ import annotations

import os
import random
import resource
import tracemalloc
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pytest

from conf.errors import StorageFailed
from sinks.buckets.bucket_table import ALL_BUCKETS, BucketTable
from state.index.locate import ENTRY_SCHEMA, located
from state.message_ids import Ids, ids_of
from streaming.job.requests.sealed_ids import SealedIds
from tests.conftest import MakeDisk

DUE_MS = 1_900_000_000_000


class Index:
    """The metadata of a table: entries by Delta partition, which tests add and remove."""

    def __init__(self) -> None:
        self.parts: dict[str, pa.Table] = {}
        self.changes = 0

    def seal(self, part: str, sources: int, offsets: Iterable[int], bucket: int = 1) -> None:
        """Add a Delta partition with an entry for each of so many input partitions. All have the same offsets."""
        own = np.array(sorted(offsets))
        number = np.arange(sources)
        columns = {
            "topic": pa.array([f"in-{each % 3}" for each in number.tolist()]),
            "partition": number,
            "part": pa.array([part] * sources),
            "bucket": np.full(sources, bucket),
            "from_ms": DUE_MS + number,
            "until_ms": DUE_MS + number + 1,
            "repeats": number % 2 == 0,
            "max_deliver_at_ms": DUE_MS + number + 2,
            "first_offset": np.full(sources, own[0]),
            "last_offset": np.full(sources, own[-1]),
            "offsets": pa.array([(own - own[0]).astype(np.uint32).tobytes()] * sources),
        }
        self.parts[part] = pa.table(columns).cast(ENTRY_SCHEMA)
        self.changes += 1

    def remove(self, part: str) -> None:
        """Remove a Delta partition."""
        del self.parts[part]
        self.changes += 1

    def find(self, ids: Ids) -> pa.Table:
        """Return the expected places of `ids`."""
        return located(pa.concat_tables([ENTRY_SCHEMA.empty_table(), *self.parts.values()]), ids)

    def version(self) -> int:
        """As of `BucketTable`."""
        return self.changes

    def metadata_partitions(self, version: int) -> set[str]:
        """As of `BucketTable`."""
        return {*self.parts}

    def index_entries_of(self, partitions: set[str], version: int) -> Iterator[pa.Table]:
        """As of `BucketTable`: some entries of several Delta partitions at a time."""
        entries = pa.concat_tables([self.parts[part] for part in sorted(partitions)])
        for first in range(0, entries.num_rows, 1_000):
            yield entries.slice(first, 1_000)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    monkeypatch.setattr("pyspark.SparkFiles.getRootDirectory", lambda: str(tmp_path))
    return Index()


def copy_of(index: Index, **limits: int) -> SealedIds:
    return SealedIds(cast("BucketTable", index), **limits)


def check(sealed: SealedIds, index: Index, ids: Ids) -> int:
    """Check that the copy finds what is in the table, and return how many rows that is."""
    copied, expected = (
        sorted(tuple(row.items()) for row in table.to_pylist())
        for table in (sealed.locate(ids, ALL_BUCKETS, 0, index.changes), index.find(ids))
    )
    assert copied == expected
    return len(copied)


@contextmanager
def few_more_files(count: int) -> Iterator[None]:
    """Let this process open only `count` more files than are open now."""
    _, most = before = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The limit is for numbers of descriptors, and the lowest free one comes next.
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + count, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_many_delta_partitions_take_few_open_files(index: Index) -> None:
    with closing(copy_of(index)) as sealed, few_more_files(50):
        for number in range(200):
            index.seal(f"part-{number}", 2, range(10 * number, 10 * number + 10))
        assert check(sealed, index, ids_of([("in-0", 0, 5), ("in-1", 1, 1995), ("in-1", 1, 2000)])) == 2
        for number in range(200, 400):
            # One by one, as they are sealed.
            index.seal(f"part-{number}", 2, range(10 * number, 10 * number + 10))
            sealed.look_ahead()
        assert check(sealed, index, ids_of(("in-0", 0, at) for at in range(0, 4000, 7))) == 572


def test_full_local_folder_is_named_and_the_copy_is_made_once_it_has_room(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_disk: MakeDisk
) -> None:
    disk = make_disk(tmp_path / "local")
    monkeypatch.setattr("pyspark.SparkFiles.getRootDirectory", lambda: str(disk.path))
    index.seal("part", 2, range(10))
    disk.fill()
    ids = ids_of([("in-0", 0, 5)])
    with closing(copy_of(index)) as sealed:
        with pytest.raises(StorageFailed, match=rf"{disk.path}, where 0 of .* bytes are free .*spark.local.dir"):
            check(sealed, index, ids)
        disk.free()
        assert check(sealed, index, ids) == 1


def test_entries_of_many_input_partitions_take_no_memory(index: Index) -> None:
    for part in range(40):
        index.seal(f"part-{part}", 1_000, range(2 * part, 2 * part + 2))
    with closing(copy_of(index)) as sealed:
        arrow = pa.total_allocated_bytes()
        tracemalloc.start()
        try:
            check(sealed, index, ids_of([("in-0", 999, 5)]))
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        # If entries were kept in memory, Python would take 8 MB for these 40,000.
        assert taken < 1_000_000
        assert pa.total_allocated_bytes() - arrow < 100_000


def test_the_files_of_removed_delta_partitions_vanish(index: Index) -> None:
    most = 1 << 12
    chance = random.Random(1)
    with closing(copy_of(index, file_bytes=most)) as sealed:
        for number in range(300):
            first = chance.randrange(1000)
            count = 1_000 if number % 50 == 49 else chance.randrange(1, 40)
            index.seal(f"part-{number}", chance.randrange(1, 5), range(first, first + count), number)
            while len(index.parts) > 30 or (index.parts and chance.random() < 0.3):
                index.remove(chance.choice([*index.parts]))
            check(sealed, index, ids_of((f"in-{at % 3}", at % 4, at) for at in range(0, 1050, 3)))
            files = {piece.file: 0 for own in sealed._pieces.values() for piece in own}
            for own in sealed._pieces.values():
                for piece in own:
                    files[piece.file] += piece.nbytes
            assert all(2 * left >= file.end or file is sealed._file for file, left in files.items())
        for part in [*index.parts]:
            index.remove(part)
        assert check(sealed, index, ids_of([("in-0", 0, 5)])) == 0
    assert sealed._file is None
