"""Corruption in the files of sealed buckets: which messages of each segment can be read, and which are lost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pyroaring import BitMap64
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from sinks.buckets.bucket_table import BucketTable
from state.buckets.parts import IS_METADATA, chunks_of, has_ids, is_metadata, metadata_of, part_of
from state.buckets.salvage import COUNTED_SCHEMA, IDENTITY, counted, salvaged
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

    def waits(self, handed_over_before_ms: int) -> bool:
        """Return whether any of its messages may still wait. None that is due before `handed_over_before_ms` does."""
        return self.described is None or self.described.max_deliver_at_ms >= handed_over_before_ms


@dataclass(frozen=True)
class Corruption:
    """The damaged files of a table, and the segments that have lost messages or metadata with them."""

    files: list[CorruptFile]
    segments: list[CorruptSegment]


def find_corruption(store: BucketTable, handed_over_before_ms: int) -> Corruption:
    """Read the whole table, and compare it with the table's log and the metadata.

    Leaves out segments that are handed over whole: their Delta partition may be deleted already. The session must have
    the options `SKIP_CORRUPT_FILES`.
    """
    # The hash makes Spark read all columns, since a repair needs all of them.
    others = f"xxhash64({', '.join(f'`{name}`' for name in STORED_SCHEMA.names if name != 'chunk')}) AS others"
    rows = store.rows().selectExpr("file", "part", *IDENTITY, "count", "chunk", others)
    counts = (
        rows.mapInArrow(counted, from_arrow_schema(COUNTED_SCHEMA))
        .groupBy("file", "part", *IDENTITY)
        .sum("rows", "messages")
    )
    readable_rows: dict[str, int] = {}
    left: dict[Identity, tuple[str, int]] = {}
    known: set[Identity] = set()
    for row in counts.collect():
        readable_rows[row["file"]] = readable_rows.get(row["file"], 0) + row["sum(rows)"]
        identity = row["bucket"], row["shard"], row["segment"]
        if is_metadata(row["part"]):
            known.add(identity)
        elif not has_ids(row["part"]):
            before = left.get(identity, ("", 0))[1]
            left[identity] = part_of(row["part"]), before + row["sum(messages)"]
    # `metadata` reads only some columns. From a damaged file it may return rows that cannot be read whole.
    described = [segment for row in store.metadata() if _identity(segment := described_segment(row.asDict())) in known]
    corrupt = _corrupt_segments(described, left)
    files = _corrupt_files(store, readable_rows)
    return Corruption(files, [segment for segment in corrupt if segment.waits(handed_over_before_ms)])


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


def repaired(store: BucketTable, corruption: Corruption, precision_bits: int) -> tuple[set[str], DataFrame]:
    """Return the Delta partitions that `corruption` touches, and the rows that replace them.

    These rows are all that can be read. The metadata of a damaged segment is made anew from the messages that are left.
    """
    partitions = {file.part for file in corruption.files}
    for segment in corruption.segments:
        partitions |= {chunks_of(segment.part), metadata_of(segment.part)}
    rows = store.rows().where(F.col("part").isin(sorted(partitions)))
    kept = rows.join(_identities(store, corruption.segments), [*IDENTITY], "left_anti").select(*STORED_SCHEMA.names)
    return partitions, kept.union(_salvaged(store, corruption.segments, precision_bits))


def lost_ids(store: BucketTable, corruption: Corruption, precision_bits: int, from_ms: int) -> Ids:
    """Return the ids of the lost messages: those in the metadata of damaged segments that can no longer be read.

    Leaves out ids whose time slot in the index ends before `from_ms`: those messages are handed over.
    """
    metadata = store.rows().where(IS_METADATA)
    lost = _ids(metadata.join(_identities(store, corruption.segments), [*IDENTITY], "left_semi"), from_ms)
    for source, offsets in _ids(_salvaged(store, corruption.segments, precision_bits), from_ms).items():
        if source in lost:
            lost[source] -= offsets
    return {source: offsets for source, offsets in sorted(lost.items()) if offsets}


def _ids(rows: DataFrame, from_ms: int) -> Ids:
    ids: Ids = {}
    entries = rows.where(IS_METADATA).select("precision_bits", "index_entries")
    for row in entries.toLocalIterator():
        for source, offsets in offsets_by_source(row["index_entries"], row["precision_bits"], from_ms).items():
            ids[source] = ids.get(source, BitMap64()) | offsets
    return ids


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
