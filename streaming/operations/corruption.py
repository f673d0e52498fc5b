"""Corruption in the files of sealed buckets: which messages of each segment can be read, and which are lost."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyroaring import BitMap64
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from conf.errors import StorageFailed
from sinks.buckets.bucket_table import BucketTable
from state.buckets.parts import IS_METADATA, IdRows, chunks_of, has_ids, is_metadata, metadata_of, part_of
from state.buckets.salvage import COUNTED_SCHEMA, IDENTITY, counted, intact, salvaged
from state.buckets.segments import Segment
from state.buckets.table_rows import STORED_SCHEMA, described_segment
from state.index.message_index import offsets_by_source
from state.order import ORDER

Identity = tuple[int, int, int]
# Offsets of messages, by input topic and partition.
Ids = dict[tuple[str, int], BitMap64]

# Options of a Spark session that looks for corruption: it skips files that are damaged or missing.
SKIP_CORRUPT_FILES = {"spark.sql.files.ignoreCorruptFiles": "true", "spark.sql.files.ignoreMissingFiles": "true"}


@dataclass(frozen=True)
class CorruptFile:
    """A damaged file of the table. `path` is below the table's path, `readable` of its `rows` can be read.

    `part` is its Delta partition.
    """

    path: str
    part: str
    rows: int
    readable: int


@dataclass(frozen=True)
class CorruptSegment:
    """A segment of which only `readable` messages are left. `described` is its metadata, or None if that is lost."""

    identity: Identity
    part: str
    described: Segment | None
    readable: int

    def waits(self, staged_before_ms: int) -> bool:
        """Return whether any of its messages may still wait. None that is due before `staged_before_ms` does."""
        return self.described is None or self.described.max_deliver_at_ms >= staged_before_ms


@dataclass(frozen=True)
class Corruption:
    """The damaged files of a table, and the segments that have lost messages or metadata with them.

    `read` has how many rows and messages were read of each segment, by Delta partition.
    """

    files: list[CorruptFile]
    segments: list[CorruptSegment]
    read: Mapping[tuple[str, Identity], tuple[int, int]] = field(default_factory=dict, compare=False)

    @property
    def may_lose_schedules(self) -> bool:
        """Whether messages that repeat may be lost.

        Metadata says if its messages repeat. Lost metadata counts only if messages of the same part are lost too.
        """
        damaged = {file.part for file in self.files}
        lost_both = any(is_metadata(each) and chunks_of(part_of(each)) in damaged for each in damaged)
        return lost_both or any(each.described.repeats for each in self.segments if each.described)

    def lost_rows(self, kind: IdRows) -> int:
        """Return how many rows with ids of a `kind` are lost. Each may have thousands of ids."""
        return sum(file.rows - file.readable for file in self.files if kind.bucket_of(file.part) is not None)


def find_corruption(store: BucketTable, staged_before_ms: int) -> Corruption:
    """Read the whole table, and compare it with the table's log and the metadata.

    Leaves out segments that are staged as a whole: their Delta partition may be deleted already. The session must have
    the options `SKIP_CORRUPT_FILES`.
    """
    # The hash makes Spark read all columns, since a repair needs all of them.
    others = f"xxhash64({', '.join(f'`{name}`' for name in STORED_SCHEMA.names if name != 'chunk')}) AS others"
    rows = store.rows().selectExpr("file", "part", *IDENTITY, "count", "chunk", others)
    read: dict[tuple[str, Identity], tuple[int, int]] = {}
    readable_rows: dict[str, int] = {}
    left: dict[Identity, tuple[str, int]] = {}
    known: set[Identity] = set()
    for row in _counts(rows):
        readable_rows[row["file"]] = readable_rows.get(row["file"], 0) + row["sum(rows)"]
        identity = row["bucket"], row["shard"], row["segment"]
        _count(read, row)
        if is_metadata(row["part"]):
            known.add(identity)
        elif not has_ids(row["part"]):
            before = left.get(identity, ("", 0))[1]
            left[identity] = part_of(row["part"]), before + row["sum(messages)"]
    # `metadata` reads only some columns. From a damaged file it may return rows that cannot be read whole.
    described = [segment for row in store.metadata() if _identity(segment := described_segment(row.asDict())) in known]
    corrupt = _corrupt_segments(described, left)
    files = _corrupt_files(store, readable_rows)
    return Corruption(files, [segment for segment in corrupt if segment.waits(staged_before_ms)], read)


def _counts(rows: DataFrame) -> list[Row]:
    counts = rows.mapInArrow(counted, from_arrow_schema(COUNTED_SCHEMA))
    return counts.groupBy("file", "part", *IDENTITY).sum("rows", "messages").collect()


def _count(read: dict[tuple[str, Identity], tuple[int, int]], row: Row) -> None:
    """Add one of `_counts` to the counts of its Delta partition and segment."""
    key = row["part"], (row["bucket"], row["shard"], row["segment"])
    rows, messages = read.get(key, (0, 0))
    read[key] = rows + row["sum(rows)"], messages + row["sum(messages)"]


def _corrupt_files(store: BucketTable, readable_rows: Mapping[str, int]) -> list[CorruptFile]:
    corrupt = []
    for file in store.files():
        rows, readable = json.loads(file["stats"])["numRecords"], readable_rows.get(file["path"].rpartition("/")[2], 0)
        if readable != rows:
            corrupt.append(CorruptFile(file["path"], file["part"], rows, readable))
    return corrupt


def _corrupt_segments(described: list[Segment], left: Mapping[Identity, tuple[str, int]]) -> list[CorruptSegment]:
    corrupt, known = [], set()
    for segment in described:
        identity = _identity(segment)
        known.add(identity)
        _, readable = left.get(identity, ("", 0))
        if readable != segment.count:
            corrupt.append(CorruptSegment(identity, segment.part, segment, readable))
    for identity, (part, readable) in left.items():
        if identity not in known:
            corrupt.append(CorruptSegment(identity, part, None, readable))
    return corrupt


def _identity(segment: Segment) -> Identity:
    return segment.bucket, segment.shard, segment.segment


@contextmanager
def repaired(store: BucketTable, corruption: Corruption, precision_bits: int) -> Iterator[tuple[set[str], DataFrame]]:
    """Give the Delta partitions that `corruption` touches, and the rows that replace them, which stay cached meanwhile.

    These rows are all that can be read. The metadata of a damaged segment is rebuilt from the messages that are left.
    Raises StorageFailed if more or less can be read than when `corruption` was found.
    """
    partitions = {file.part for file in corruption.files}
    for segment in corruption.segments:
        partitions |= {chunks_of(segment.part), metadata_of(segment.part)}
    rows = store.rows().where(F.col("part").isin(sorted(partitions)))
    others = rows.join(_identities(store, corruption.segments), [*IDENTITY], "left_anti").select(*STORED_SCHEMA.names)
    # Without damaged chunks of ids, or of staged messages.
    kept = others.mapInArrow(intact, from_arrow_schema(STORED_SCHEMA))
    # Cached: a file that fails to be read now and then would silently be left out when it is read again.
    replacing = kept.union(_salvaged(store, corruption.segments, precision_bits)).persist()
    try:
        _check_read_again(store, replacing, partitions, corruption)
        yield partitions, replacing
    finally:
        replacing.unpersist()


def _check_read_again(store: BucketTable, replacing: DataFrame, partitions: set[str], corruption: Corruption) -> None:
    """Raise StorageFailed if the rows `replacing` differ from the rows that were read when `corruption` was found."""
    found: dict[tuple[str, Identity], tuple[int, int]] = {}
    for row in _counts(replacing.selectExpr("'' AS file", "part", *IDENTITY, "count", "chunk")):
        _count(found, row)
    damaged = {segment.identity for segment in corruption.segments}
    expected = {
        (part, identity): (rows, messages)
        for (part, identity), (rows, messages) in corruption.read.items()
        if part in partitions and identity not in damaged and rows
    }
    for segment in corruption.segments:
        chunks, metadata = ((name(segment.part), segment.identity) for name in (chunks_of, metadata_of))
        if segment.readable:
            # The messages are cut into chunks again.
            expected[chunks] = found.get(chunks, (0, 0))[0], segment.readable
            expected[metadata] = 1, 0
    differing = [key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key)]
    if differing:
        _refuse_difference(store, ", ".join(sorted({part for part, _ in differing})))


def _refuse_difference(store: BucketTable, what: str) -> None:
    raise StorageFailed(
        f"{store.path}: {what} had other content when it was read again, so the storage fails now and then. Nothing "
        "was removed. Repair the storage, and run the same command again"
    )


def lost_ids(store: BucketTable, corruption: Corruption, precision_bits: int, from_ms: int) -> Ids:
    """Return the ids of the lost messages. The metadata of damaged segments has them, but they can no longer be read.

    Leaves out ids with a time slot in the index that ends before `from_ms`, because their messages are staged. Raises
    StorageFailed if more or less can be read than when `corruption` was found.
    """
    metadata = store.rows().where(IS_METADATA)
    lost, were = _ids(metadata.join(_identities(store, corruption.segments), [*IDENTITY], "left_semi"), from_ms)
    left, are_left = _ids(_salvaged(store, corruption.segments, precision_bits), from_ms)
    # In a damaged file, a row may be readable in the columns used here, but not in all columns.
    if were < sum(segment.described.count for segment in corruption.segments if segment.described):
        _refuse_difference(store, "the metadata of a damaged segment")
    if are_left != sum(segment.readable for segment in corruption.segments):
        _refuse_difference(store, "a damaged segment")
    for source, offsets in left.items():
        if source in lost:
            lost[source] -= offsets
    return {source: offsets for source, offsets in sorted(lost.items()) if offsets}


def _ids(rows: DataFrame, from_ms: int) -> tuple[Ids, int]:
    """Return the ids in the metadata among `rows`, and how many messages it is of."""
    ids: Ids = {}
    messages = 0
    for row in rows.where(IS_METADATA).select("count", "precision_bits", "index_entries").toLocalIterator():
        messages += row["count"]
        for source, offsets in offsets_by_source(row["index_entries"], row["precision_bits"], from_ms).items():
            ids[source] = ids.get(source, BitMap64()) | offsets
    return ids, messages


def _identities(store: BucketTable, segments: list[CorruptSegment]) -> DataFrame:
    identities = store.spark.createDataFrame(
        [segment.identity for segment in segments], "bucket long, shard int, segment int"
    )
    return identities.hint("broadcast")


def _salvaged(store: BucketTable, segments: list[CorruptSegment], precision_bits: int) -> DataFrame:
    chunks = store.rows().where(F.col("part").isin(sorted({chunks_of(segment.part) for segment in segments})))
    chunks = chunks.join(_identities(store, segments), [*IDENTITY], "left_semi")
    ordered = chunks.select("part", *IDENTITY, *ORDER, "count", "chunk").repartition("bucket", "shard")
    ordered = ordered.sortWithinPartitions(*IDENTITY, "part", *ORDER)
    return ordered.mapInArrow(salvaged(precision_bits), from_arrow_schema(STORED_SCHEMA))
