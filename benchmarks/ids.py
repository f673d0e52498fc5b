"""Ids: what the driver's index of ids takes on disk and in memory, to build, and to search, at the largest size.

The rows are made here, as a table of merged buckets would have them. Each bucket's messages are sorted by due time, so
the offsets of an entry are spread over all offsets of its bucket.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from typing import Any, cast

import numpy as np
import psutil
import pyarrow as pa
from pyspark import SparkConf, SparkContext

from benchmarks.aims import Figures, figure
from benchmarks.outcome import Aim, Outcome
from benchmarks.plots import figure_of
from benchmarks.waiting import say
from sinks.buckets.bucket_table import BucketTable
from state.buckets.parts import IdRows
from state.checkpoint.origin import CheckpointOrigin
from state.index.locate import ENTRY_SCHEMA
from state.message_ids import count_of, ids_of
from state.names import NAMED_SCHEMA
from streaming.job.requests.sealed_ids import SealedIds
from streaming.job.requests.stored_ids import StoredIds

SEALED, BUCKET, ENTRY = 100_000_000, 5_000_000, 1_000
NAMES, NAMES_AT_ONCE = 10_000_000, 100_000
ASKED = (1, 1_000, 50_000)
TOPIC, DUE_MS, FAR_MS = "ids-in", 1_900_000_000_000, 2_000_000_000_000
BUILD, SEARCH, BY_NAME = "sealed messages", "search of {:,}", "names"
# An offset and the number of an entry; the columns of a name.
MOST_BYTES, MOST_NAME_BYTES = 13.0, 60.0


def measure(scale: float) -> Outcome:
    """Build both copies and search them, in this process."""
    spark = SparkContext(conf=SparkConf().setMaster("local[1]").set("spark.ui.enabled", "false"))
    try:
        figures = _sealed(max(BUCKET, int(SEALED * scale))) | {BY_NAME: _names(int(NAMES * scale))}
    finally:
        spark.stop()
    about = f"{SEALED:,} sealed messages in merged buckets, {NAMES:,} names"
    series = {"search": [[float(count) for count in ASKED], [figures[SEARCH.format(n)]["s"] for n in ASKED]]}
    return Outcome("ids", about, aims_of(figures), figures, series)


def aims_of(figures: Figures) -> list[Aim]:
    """Return the aims: bytes on disk, and that memory does not grow with the number of messages."""
    return [
        Aim("bytes on disk for a sealed message", figure(figures, BUILD, "bytes_each"), MOST_BYTES),
        Aim("memory that the copy of sealed ids takes", figure(figures, BUILD, "memory_mb"), 200.0, "MB"),
        Aim("bytes on disk for a name", figure(figures, BY_NAME, "bytes_each"), MOST_NAME_BYTES),
        Aim("memory that names take", figure(figures, BY_NAME, "memory_mb"), 200.0, "MB"),
    ]


def draw(outcome: Outcome) -> Any:
    """Draw how long a search takes by the number of ids."""
    figure_, axes = figure_of(outcome)
    axes.plot(*outcome.series["search"], marker=".")
    axes.set(xscale="log", yscale="log", xlabel="ids that a batch asks for", ylabel="s")
    return figure_


class _Sealed:
    """The metadata of a table with `buckets` merged buckets, in the form in which `SealedIds` reads it."""

    def __init__(self, buckets: int) -> None:
        self._parts = {f"part-{number:06}": number for number in range(buckets)}

    def version(self) -> int:
        return 1

    def metadata_partitions(self, version: int) -> set[str]:
        del version
        return {*self._parts}

    def index_entries_of(self, partitions: Iterable[str], version: int) -> Iterator[pa.Table]:
        del version
        for part in sorted(partitions):
            number = self._parts[part]
            offsets = np.random.default_rng(number).permutation(BUCKET).reshape(-1, ENTRY)
            offsets.sort(axis=1)
            offsets += number * BUCKET
            firsts, lasts = offsets[:, 0], offsets[:, -1]
            count = len(offsets)
            dues = np.full(count, DUE_MS + number)
            columns = {
                "topic": pa.array([TOPIC] * count),
                "partition": np.zeros(count, dtype=np.int32),
                "part": pa.array([part] * count),
                "bucket": np.full(count, number),
                "from_ms": dues,
                "until_ms": dues,
                "repeats": np.zeros(count, dtype=bool),
                "max_deliver_at_ms": dues,
                "first_offset": firsts,
                "last_offset": lasts,
                "offsets": [row.astype(np.uint32).tobytes() for row in offsets - firsts[:, None]],
            }
            yield pa.table(columns).cast(ENTRY_SCHEMA)


class _Named:
    """A table with `count` names, in the form in which `StoredIds` reads it."""

    def __init__(self, count: int) -> None:
        self._count = count

    def ids_before(self, kind: IdRows, bucket: int) -> Iterator[pa.Table]:
        del bucket
        if kind is not IdRows.NAMED:
            return
        for first in range(0, self._count, NAMES_AT_ONCE):
            numbers = np.arange(first, min(first + NAMES_AT_ONCE, self._count))
            columns = {
                "name": [_name(number) for number in numbers.tolist()],
                "topic": pa.array([TOPIC] * len(numbers)),
                "partition": np.zeros(len(numbers), dtype=np.int32),
                "offset": numbers,
                "deliver_at_ms": np.full(len(numbers), DUE_MS),
                "max_deliver_at_ms": np.full(len(numbers), DUE_MS),
                "keeps": pa.nulls(len(numbers), pa.bool_()),
                "bucket": numbers // NAMES_AT_ONCE,
            }
            yield pa.table(columns)


def _name(number: int) -> bytes:
    # In no order, as hashes are.
    return int(number * 0x9E3779B97F4A7C15 % (1 << 128)).to_bytes(16, "little")


def _sealed(count: int) -> dict[str, dict[str, Any]]:
    say(f"copying the index of {count:,} messages")
    ids = SealedIds(cast("BucketTable", _Sealed(count // BUCKET)))
    before, disk, begun_s = _memory_mb(), _disk_bytes(), time.monotonic()
    ids.locate(ids_of([(TOPIC, 0, 0)]), count, 0, 1)
    figures = {BUILD: {"messages": count, "s": round(time.monotonic() - begun_s, 2)} | _taken(before, disk, count)}
    for asked in ASKED:
        chosen = np.random.default_rng(asked).choice(count, asked, replace=False)
        begun_s = time.monotonic()
        found = ids.locate({(TOPIC, 0): np.sort(chosen).astype(np.int64)}, count, 0, 1)
        took_s = time.monotonic() - begun_s
        if found.num_rows != asked:
            raise RuntimeError(f"{found.num_rows} of {asked} ids were found")
        figures[SEARCH.format(asked)] = {"s": round(took_s, 3), "memory_mb": round(_memory_mb() - before, 1)}
        say(f"searched {asked:,} ids in {took_s:.2f} s")
    ids.close()
    return figures


def _names(count: int) -> dict[str, Any]:
    say(f"reading {count:,} names")
    ids = StoredIds(cast("BucketTable", _Named(count)))
    before, disk, begun_s = _memory_mb(), _disk_bytes(), time.monotonic()
    ids.open(count, CheckpointOrigin("benchmark", 1, 1))
    built_s = time.monotonic() - begun_s
    taken = _taken(before, disk, count)
    wanted = np.random.default_rng(1).choice(count, 1_000, replace=False).tolist()
    begun_s = time.monotonic()
    found = ids.named_among(map(_name, wanted), 0)
    took_s = time.monotonic() - begun_s
    if found.num_rows != len(wanted) or found.schema != NAMED_SCHEMA:
        raise RuntimeError(f"{found.num_rows} of {len(wanted)} names were found")
    if count_of(ids.cancelled_among(ids_of([(TOPIC, 0, 0)])).ids):
        raise RuntimeError("a message is cancelled that nobody cancelled")
    ids.close()
    return {"names": count, "s": round(built_s, 2), "look_up_of_1000_s": round(took_s, 3), **taken}


def _taken(before_mb: float, before_bytes: int, count: int) -> dict[str, float]:
    return {
        "memory_mb": round(_memory_mb() - before_mb, 1),
        "bytes_each": round((_disk_bytes() - before_bytes) / count, 2),
    }


def _memory_mb() -> float:
    return psutil.Process().memory_full_info().uss / 2**20


def _disk_bytes() -> int:
    """Return what this process's files take that have no name any more. A mapped file stays open too."""
    folder = f"/proc/{os.getpid()}/fd"
    # By the file's number: one may be open twice.
    sizes: dict[int, int] = {}
    for each in os.listdir(folder):
        try:
            if os.readlink(f"{folder}/{each}").endswith("(deleted)"):
                found = os.stat(f"{folder}/{each}")
                sizes[found.st_ino] = 512 * found.st_blocks
        except FileNotFoundError:
            continue
    return sum(sizes.values())
