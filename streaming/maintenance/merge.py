"""One merge of sealed buckets: slice by slice into the parts of a new bucket, which then replaces them."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from pyspark.sql.pandas.types import from_arrow_schema

from conf.errors import BucketUnreadable
from conf.failpoints import failpoint
from sinks.buckets.bucket_table import BucketTable
from sinks.buckets.chunk_plans import in_one_task
from sinks.buckets.merge_commits import append_part, commit_merge
from state.buckets.cancelled_filter import CancelledFilter
from state.buckets.merge import MergeSlice, merged_rows, slice_end
from state.buckets.parts import MergeName, chunks_of, metadata_of
from state.buckets.segments import Segment
from state.buckets.table_rows import STORED_SCHEMA, described_segment
from state.checkpoint.batch_settings import BatchSettings
from state.order import ORDER

log = logging.getLogger(__name__)


class MergedSlice(NamedTuple):
    """The segments that a slice has become, and how many messages were left out since they are cancelled."""

    segments: Collection[Segment]
    cancelled: int = 0


@dataclass
class Merge:
    """A merge that is under way.

    - `buckets`: the live segments of each bucket that it replaces, by the bucket's number
    - `merged`: the segments of the slices that are done
    - `next_ms`: where the next slice begins, epoch ms
    - `cancelled`: how many messages were left out, since they are cancelled
    - `begun_s`: when it began, by the monotonic clock
    """

    name: MergeName
    buckets: dict[int, list[Segment]]
    merged: list[Segment] = field(default_factory=list)
    next_ms: int = 0
    cancelled: int = 0
    begun_s: float = field(default_factory=time.monotonic)
    _slices: int = 0

    @property
    def replaced(self) -> list[Segment]:
        """The segments that it replaces."""
        return [segment for segments in self.buckets.values() for segment in segments]

    @property
    def parts(self) -> set[str]:
        """The parts that it replaces."""
        return {segment.part for segment in self.replaced}

    @property
    def partitions(self) -> set[str]:
        """The Delta partitions of its slices, and of the one that may be under way."""
        parts = [self.name.part(number) for number in range(self._slices + 1)]
        return {chunks_of(part) for part in parts} | {metadata_of(part) for part in parts}

    @property
    def left(self) -> int:
        """About how many messages are still to merge."""
        return sum(segment.count for segment in self.replaced if segment.max_deliver_at_ms >= self.next_ms)

    def next_slice(self, staged_before_ms: int) -> MergeSlice | None:
        """Return the next slice, or None if all are done. Messages due before `staged_before_ms` are left out."""
        start_ms = max(self.next_ms, staged_before_ms)
        end_ms = slice_end(self.replaced, start_ms)
        if end_ms is None:
            return None
        return MergeSlice(self.name.part(self._slices), start_ms, end_ms, first_segment=len(self.merged))

    def add(self, merged: MergedSlice, within: MergeSlice) -> None:
        """Record that the slice `within` is done."""
        self.merged += merged.segments
        self.cancelled += merged.cancelled
        self.next_ms = within.end_ms
        self._slices += 1

    def check(self, staged_before_ms: int) -> None:
        """Raise BucketUnreadable if messages were lost or doubled (invariant 1).

        For a segment that is staged in part, the metadata does not have the number of messages that still wait. So
        the check has a lower and an upper bound.
        """
        most = sum(segment.count for segment in self.replaced)
        least = sum(segment.count for segment in self.replaced if segment.min_deliver_at_ms >= staged_before_ms)
        merged = sum(segment.count for segment in self.merged)
        if not least - self.cancelled <= merged <= most:
            raise BucketUnreadable(
                f"buckets {sorted(self.buckets)} hold {merged} waiting messages, but their metadata says "
                f"{least} to {most}. The buckets are left unchanged"
            )


def merge_slice(
    store: BucketTable,
    merge: Merge,
    within: MergeSlice,
    batch_settings: BatchSettings,
    until_bucket: int,
) -> MergedSlice:
    """Merge one slice into its part of the new bucket, in one task and one commit.

    Drops messages that were cancelled by batches up to the batch of `until_bucket`.
    """
    parts = {
        segment.part
        for segment in merge.replaced
        if segment.min_deliver_at_ms < within.end_ms and segment.max_deliver_at_ms >= within.start_ms
    }
    chunks = store.chunks(within.start_ms, within.end_ms, parts, merge.buckets)
    # Read at a fixed version: otherwise the commit of the slice would fail if these ids were joined meanwhile.
    cancelled = store.cancelled_chunks(
        within.start_ms, within.end_ms, min(merge.buckets), until_bucket, store.version()
    )
    left_out = store.step_count()
    leave_out = None if cancelled is None else CancelledFilter(until_bucket, left_out)
    as_merged = merged_rows(merge.name.last, within, batch_settings, leave_out)
    merged = in_one_task(chunks, cancelled).mapInArrow(as_merged, from_arrow_schema(STORED_SCHEMA))
    failpoint("merging")
    append_part(store, merged.sortWithinPartitions("part", *ORDER))
    failpoint("slice-merged")
    segments = [described_segment(row.asDict()) for row in store.metadata_of_part(within.part)]
    return MergedSlice(segments, left_out.take())


def finish_merge(store: BucketTable, merge: Merge, number: int) -> None:
    """Replace the merged buckets by the new one, in one commit. `number` counts the finished merges from 1."""
    commit_merge(store, merge.name, merge.parts, number)
    failpoint("merged")
    log.info("merged buckets %s: %d segments into %d", sorted(merge.buckets), len(merge.replaced), len(merge.merged))
