"""The contents of a lost checkpoint's table: the index of its messages, messages below the new cutoff, and names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyroaring import BitMap64
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from sinks.buckets.bucket_table import BucketTable
from sinks.buckets.packed_rows import packed, unpacked
from sinks.buckets.segment_figures import index_entries, precisions
from state.buckets.parts import IdRows
from state.buckets.reseal import LEFT_SCHEMA, left_rows
from state.buckets.retimed import RETIMED_SCHEMA
from state.buckets.table_rows import STORED_SCHEMA, described_segment
from state.cancel import without_named
from state.checkpoint.origin import CheckpointOrigin
from state.index.message_index import MessageIndex, offsets_by_source
from state.index.offset_bitmaps import OffsetBitmaps, bitmaps_of, in_bitmaps
from state.message import decode_chunk
from state.message_ids import ID, ID_SCHEMA, ids_in
from state.name_holders import NamesLeft
from streaming.operations.moved import Moved
from streaming.operations.schedules import Superseded


def index_of(store: BucketTable, version: int) -> MessageIndex:
    """Return the index of all messages in the table at `version`.

    It includes staged messages until their part is deleted. Its time slots are as long as the longest in
    the metadata, or 1 ms without metadata. Raises BucketUnreadable if the metadata is damaged.
    """
    index = MessageIndex(max(precisions(store, version), default=0))
    for row in index_entries(store, version):
        index.add_entries(row["index_entries"], row["precision_bits"])
    return index


def only_in(store: BucketTable, bucket: int) -> OffsetBitmaps:
    """Return the ids of the messages that are in `bucket`, and in no other. Raises BucketUnreadable."""
    own: dict[tuple[str, int], BitMap64] = {}
    others: dict[tuple[str, int], BitMap64] = {}
    for row in store.segment_rows().select("bucket", "precision_bits", "index_entries").toLocalIterator():
        known = own if row["bucket"] == bucket else others
        for source, offsets in offsets_by_source(row["index_entries"], row["precision_bits"], 0).items():
            known[source] = known.get(source, BitMap64()) | offsets
    return {source: offsets - others.get(source, BitMap64()) for source, offsets in own.items()}


def buckets_of_ids(store: BucketTable) -> Iterator[int]:
    for kind in IdRows:
        yield from store.id_partitions(kind)


def overdue_in_table(
    store: BucketTable, cancelled: OffsetBitmaps, moved: Moved, superseded: Superseded, origin: CheckpointOrigin
) -> DataFrame:
    """Return the messages that wait in the table below the new cutoff (`state.buckets.reseal.LEFT_SCHEMA`)."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for bucket, chunk in zip(batch.column("bucket").to_pylist(), batch.column("chunk"), strict=True):
                messages = decode_chunk(chunk.as_py())
                waiting = ~moved.staged.of_bucket(messages, bucket)
                waiting &= messages.column("deliver_at_ms").to_numpy() < origin.cutoff_ms
                if superseded:
                    waiting &= ~superseded.contains_mask(messages)
                left = messages.filter(pa.array(waiting))
                left = without_named(left, in_bitmaps(left, cancelled) | moved.are_gone(left, bucket))
                yield from left_rows(left, origin.shards)

    parts = {described_segment(row.asDict()).part for row in store.metadata()}
    return store.chunks(0, origin.cutoff_ms, parts).mapInArrow(run, from_arrow_schema(LEFT_SCHEMA))


def left_of_moved(store: BucketTable, moved: Moved, origin: CheckpointOrigin) -> DataFrame | None:
    """Return moved messages that wait in the table and are not staged (`LEFT_SCHEMA`); None if nothing was found."""
    version = store.version()
    places = store.locate(ids_in(moved.perhaps_left), origin.overdue_bucket, 0, version)
    if not places.num_rows:
        return None
    chunks = store.chunks_at(places, version).select("bucket", "chunk")
    return chunks.mapInArrow(moved.left_in_table(origin.shards), from_arrow_schema(LEFT_SCHEMA))


def ids_left(left: DataFrame) -> OffsetBitmaps:
    """Return the ids of messages that are left (`LEFT_SCHEMA`)."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for chunk in batch.column("chunk"):
                yield from decode_chunk(chunk.as_py()).select(ID).cast(ID_SCHEMA).to_batches()

    return bitmaps_of(unpacked(packed(left, run).toLocalIterator()))


def names_of(store: BucketTable, named: DataFrame, names_left: NamesLeft) -> DataFrame:
    """Return the rows of `STORED_SCHEMA` for the names of what is accepted again, and for what they are taken from.

    `named` are the messages that got names, of the records that are read again (`HOLDER_SCHEMA`).
    """
    return _by_name(store, named).mapInArrow(names_left.settled(), from_arrow_schema(STORED_SCHEMA))


def taken_over_in(store: BucketTable, named: DataFrame, names_left: NamesLeft) -> pa.Table:
    """Return the due times that records have taken over, and the table does not show (`RETIMED_SCHEMA`).

    `named` is as of `names_of`.
    """
    found = _by_name(store, named).mapInArrow(names_left.taken_over(), from_arrow_schema(RETIMED_SCHEMA))
    return found.toArrow().cast(RETIMED_SCHEMA)


def _by_name(store: BucketTable, named: DataFrame) -> DataFrame:
    stored = store.ids(IdRows.NAMED)
    if stored is not None:
        columns = ("name", *ID, "deliver_at_ms", "max_deliver_at_ms", "keeps", "bucket", "false AS is_left")
        named = named.union(stored.selectExpr(*columns))
    return named.repartition("name").sortWithinPartitions("name", "partition", "offset")
