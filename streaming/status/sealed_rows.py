"""The sealed messages of a look: the segments that may have them, by metadata, and the rows of their chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from sinks.buckets.bucket_table import METADATA_COLUMNS, BucketTable
from sinks.buckets.chunk_plans import in_slices
from state.buckets.cancelled_filter import CancelledFilter
from state.buckets.merge import slices
from state.buckets.segments import Segment
from state.buckets.table_rows import ArrowFunction, described_segment
from streaming.status.waiting_rows import ROW_SCHEMA, Selection, chunk_rows, waiting_rows

# A reader of a segment reads one chunk at least, in a row group of about this size.
_CHUNK_BYTES = 1024 * 1024
# The least cost of a segment, in bytes that are read in the same time.
_LEAST_READ_BYTES = 16 * 1024


class TooMuchToRead(Exception):
    """A selection would read more of the table than its reader allows."""


@dataclass(frozen=True)
class ReadLimits:
    """Limits of the data that a look through the job may read.

    - `sealed_bytes`: the bytes of sealed messages, by estimate
    - `forwarded_before_ms`: all messages that forwarders have taken so far are due before this (epoch ms). A look that
      begins there or later, and behind the cutoff, does not read the logs
    """

    sealed_bytes: int
    forwarded_before_ms: Callable[[], int]


@dataclass(frozen=True)
class SealedRows:
    """Waiting messages in the buckets of a table at `version`, up to `last_bucket`, that fulfil `condition` (SQL).

    Messages due before `from_ms` (epoch ms) do not wait there.
    """

    store: BucketTable
    version: int
    last_bucket: int
    from_ms: int
    limits: ReadLimits | None = None
    condition: str = "true"

    def first(self, selection: Selection, count: int) -> Selection:
        """Return `selection` up to an instant before which it has `count` messages, by metadata alone."""
        first_ms = max(selection.from_ms, self.from_ms)
        segments = self._metadata(first_ms, selection.until_ms).where(f"deliver_at_ms >= {first_ms}")
        left = count
        # Each segment has at least one message, so `count` segments suffice.
        for row in segments.orderBy("max_deliver_at_ms").limit(count).select("max_deliver_at_ms", "count").collect():
            left -= row["count"]
            if left <= 0:
                return replace(selection, until_ms=min(selection.until_ms, row["max_deliver_at_ms"] + 1))
        return selection

    def messages(self, selection: Selection) -> DataFrame:
        """Return the selected messages as a DataFrame of `ROW_SCHEMA`. Raises TooMuchToRead."""
        selection = self._narrowed(selection)
        start_ms, end_ms = selection.from_ms, selection.until_ms
        segments = self._segments(start_ms, end_ms)
        parts, schema = {segment.part for segment in segments}, from_arrow_schema(ROW_SCHEMA)
        chunks = self.store.chunks(start_ms, end_ms, parts, None, self.version)
        chunks = chunks.where(f"bucket <= {self.last_bucket} AND {self.condition}")
        first_bucket = min((segment.bucket for segment in segments), default=0)
        cancelled = self.store.cancelled_chunks(start_ms, end_ms, first_bucket, self.last_bucket, self.version)
        ranges = list(slices(segments, start_ms, end_ms))
        if cancelled is None or not ranges:
            return chunks.select("chunk").mapInArrow(chunk_rows("sealed", selection), schema)
        leave_out = CancelledFilter(self.last_bucket)

        def left(from_ms: int, until_ms: int) -> ArrowFunction:
            return _rows_left((from_ms, until_ms), leave_out, selection)

        return in_slices(chunks, cancelled, ranges, left, schema)

    def _metadata(self, start_ms: int, end_ms: int) -> DataFrame:
        """Return the metadata rows of the segments that may have messages due in [start_ms, end_ms)."""
        rows = self.store.segment_rows(self.version).where(f"bucket <= {self.last_bucket} AND {self.condition}")
        return rows.where(f"deliver_at_ms < {end_ms} AND max_deliver_at_ms >= {start_ms}")

    def _segments(self, start_ms: int, end_ms: int) -> list[Segment]:
        """Return the segments that may have messages due in [start_ms, end_ms). Raises TooMuchToRead."""
        metadata = self._metadata(start_ms, end_ms).select(*METADATA_COLUMNS)
        if self.limits is None:
            return [described_segment(row.asDict()) for row in metadata.collect()]
        # The driver need not have more rows to know that they are too many.
        most = self.limits.sealed_bytes // _LEAST_READ_BYTES + 1
        segments = [described_segment(row.asDict()) for row in metadata.limit(most).collect()]
        if sum(_read_bytes(each, start_ms, end_ms) for each in segments) > self.limits.sealed_bytes:
            raise TooMuchToRead
        return segments

    def _narrowed(self, selection: Selection) -> Selection:
        """Return `selection` from `from_ms` on, and only where its ids may be."""
        start_ms, end_ms = max(selection.from_ms, self.from_ms), selection.until_ms
        if selection.ids is not None:
            located = self.store.locate(selection.ids, self.last_bucket + 1, self.from_ms, self.version)
            first_ms, last_ms = pc.min(located.column("from_ms")).as_py(), pc.max(located.column("until_ms")).as_py()
            start_ms, end_ms = (
                (start_ms, start_ms) if first_ms is None else (max(start_ms, first_ms), min(end_ms, last_ms + 1))
            )
        return replace(selection, from_ms=start_ms, until_ms=end_ms)


def _read_bytes(segment: Segment, start_ms: int, end_ms: int) -> int:
    """Return how many bytes of a segment are read for [start_ms, end_ms), as if its messages were evenly spread."""
    span_ms = segment.max_deliver_at_ms - segment.min_deliver_at_ms + 1
    own_ms = min(end_ms, segment.max_deliver_at_ms + 1) - max(start_ms, segment.min_deliver_at_ms)
    return max(_LEAST_READ_BYTES, min(segment.bytes, segment.bytes * own_ms // span_ms + _CHUNK_BYTES))


def _rows_left(within: tuple[int, int], cancelled: CancelledFilter, selection: Selection) -> ArrowFunction:
    """Return the same for chunks of sealed messages due `within` a range, among chunks of cancelled ids."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for messages in cancelled.left(batches, *within):
            yield from waiting_rows(messages, "sealed", selection)

    return run
