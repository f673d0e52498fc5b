"""`delayline repair`: find what is lost with damaged files of sealed buckets, and remove it from the table."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from pyroaring import BitMap64
from pyspark.sql import SparkSession

from conf.errors import UsageError
from conf.settings import Settings
from sinks.buckets.bucket_table import BucketTable
from sinks.buckets.merge_commits import merge_token
from sinks.internal_topics.lease import HeldLease
from sinks.internal_topics.progress import read_markers
from sinks.ready_log.writer import fence_writers
from sinks.topics.input_ends import input_bounds
from sinks.topics.partitions import partition_counts
from sinks.topics.topics import check_topics
from state.buckets.parts import IdRows
from state.checkpoint.batch_settings import PRECISION_BITS
from state.checkpoint.origin import Offsets
from state.checkpoint.staged import StagedMessages, newest_checkpoint
from streaming.checkpoint.current import current_checkpoint, newest_generation
from streaming.checkpoint.refusals import refuse_older_copy
from streaming.checkpoint.switch_over import (
    rest_bucket,
    rest_partitions,
    writer_of_repair,
    writer_of_repaired_rest,
    writer_of_state,
)
from streaming.operations.corruption import SKIP_CORRUPT_FILES, Corruption, Ids, find_corruption, lost_ids, repaired
from streaming.spark.exclusive_session import exclusive_session
from streaming.storage.checks import check_storage
from streaming.storage.failures import translate_storage_errors
from streaming.storage.guarded_log import guarded_log
from streaming.storage.paths import buckets_path

_REBUILD = "rebuild --discard-checkpoint"


@dataclass(frozen=True)
class Lost:
    """The offsets in one input partition of messages that are lost with damaged files.

    `delayline rebuild` can accept the records in `accepted_again` once more, as long as the topic keeps them.
    """

    topic: str
    partition: int
    offsets: BitMap64
    accepted_again: BitMap64


@dataclass(frozen=True)
class Repair:
    """The damage that a repair found at `version` of the table, and whether it was removed from there (`taken_out`).

    `interrupted` is the command that was interrupted after the rest of a checkpoint was sealed, and seals it again.
    """

    table: str
    version: int
    corruption: Corruption
    lost: list[Lost]
    taken_out: bool
    interrupted: str | None = None


def repair(settings: Settings, skip: bool, report: Path) -> Repair:
    """Read the whole table, and return what is damaged.

    With `skip`, write the report (a new JSON file), and then remove from the table, in one commit, all that cannot be
    read. Raises UsageError if the table does not exist, or if the report exists already or cannot be written,
    BucketUnreadable if the table's log is damaged, StorageFailed if the table is not the same each time that it is
    read, ApplicationHeld while the job runs. With `skip`, raises CheckpointMismatch if the table is an older copy,
    unless a rebuild has begun with it.
    """
    if skip:
        _check_report(report)
    check_storage(settings)
    check_topics(settings)
    with (
        exclusive_session(settings, "repair", SKIP_CORRUPT_FILES) as (spark, lease),
        translate_storage_errors(settings),
    ):
        return _repair(spark, settings, skip, report, lease)


def _check_report(report: Path) -> None:
    # Not with pathlib: os.path returns False for a path in a folder that may not be read, where pathlib may raise.
    if not os.path.isdir(report.parent) or not os.access(report.parent, os.W_OK | os.X_OK):
        raise UsageError(f"--report {str(report)!r}: the folder {str(report.parent)!r} is missing or not writable")
    if os.path.lexists(report):
        raise UsageError(f"--report {str(report)!r}: the file already exists. Name a new file")


def _repair(spark: SparkSession, settings: Settings, skip: bool, report: Path, lease: HeldLease) -> Repair:
    store = BucketTable(spark, buckets_path(settings), lease.check, lease.check_now)
    guard = guarded_log(spark, settings)
    if guard.has_log():
        guard.restore(store, keep_later=True)
    if not store.exists():
        raise UsageError(f"there is no table of sealed buckets at {store.path}: no job has begun, or the table is lost")
    store.check_log()
    if skip:
        fence_writers(settings, partition_counts(settings, [settings.progress_topic])[settings.progress_topic])
    staged = newest_checkpoint(read_markers(settings))
    if skip:
        if staged:
            refuse_older_copy(store, staged)
        guard.take_over(store, merge_token(store, lease.fencing_token))
        lease.note_fenced()
    staged_before_ms = staged.whole_before_ms if staged else 0
    version = store.version()
    corruption = find_corruption(store, staged_before_ms)
    ids = lost_ids(store, corruption, PRECISION_BITS, staged_before_ms) if corruption.segments else {}
    lost = list(_lost(settings, ids, staged.origin.offsets if staged else {}))
    taken_out = skip and bool(corruption.files or corruption.segments)
    checkpoint = staged.origin.checkpoint if staged else ""
    rest = rest_bucket(store, checkpoint) if staged else None
    interrupted = None if rest is None else _interrupted(store, checkpoint, rest, corruption)
    if rest is None and staged and _is_only_announced(spark, settings, staged):
        rest = staged.origin.overdue_bucket
        interrupted = "rescale" if current_checkpoint(spark, settings).is_retired() else _REBUILD
    result = Repair(store.path, version, corruption, lost, taken_out, interrupted)
    guard.check()
    if result.taken_out:
        if staged and corruption.may_lose_schedules:
            # The present occurrence of a message that repeats may be gone, and the one before be left, or the record.
            store.fence(writer_of_repair(checkpoint))
        if rest is not None:
            store.fence(writer_of_repaired_rest(rest))
        with repaired(store, corruption, PRECISION_BITS) as (partitions, rows):
            # Before the commit, which removes the ids from the table.
            _write(report, result)
            store.replace_partitions(partitions, rows)
    return result


def _interrupted(store: BucketTable, checkpoint: str, rest: int, corruption: Corruption) -> str:
    """Return the command that seals the rest of `checkpoint` again, which is in the bucket `rest`, after a repair."""
    is_of_rescale = store.newest_of(writer_of_state(checkpoint)) == rest and not store.is_fenced(checkpoint)
    # A rescale has the whole state. It accepts no message again that another bucket has lost.
    is_all_damage = {file.part for file in corruption.files} <= rest_partitions(rest)
    return "rescale" if is_of_rescale and is_all_damage else _REBUILD


def _is_only_announced(spark: SparkSession, settings: Settings, staged: StagedMessages) -> bool:
    """Return whether a switch was cut off before the pointer to the new checkpoint, which the markers have."""
    origin = staged.origin
    return staged.last_batch < 0 < origin.first_bucket and newest_generation(spark, settings) < origin.generation


def _lost(settings: Settings, ids: Ids, origin_offsets: Offsets) -> Iterator[Lost]:
    bounds = input_bounds(settings)
    for (topic, partition), offsets in ids.items():
        first, end = bounds.get((topic, partition), (0, 0))
        # A rebuild counts records below the offsets of the checkpoint origin as staged or sealed.
        start = max(first, origin_offsets.get(topic, {}).get(str(partition), 0))
        yield Lost(topic, partition, offsets, BitMap64(offset for offset in offsets if start <= offset < end))


def _write(report: Path, result: Repair) -> None:
    with report.open("x") as file:
        json.dump(as_json(result), file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def as_json(result: Repair) -> dict[str, object]:
    """Return the content of the report. Ids are [first, last] ranges of offsets."""
    return {
        "table": result.table,
        "version": result.version,
        "files": [vars(file) for file in result.corruption.files],
        "segments": [
            {
                "bucket": segment.identity[0],
                "shard": segment.identity[1],
                "segment": segment.identity[2],
                "part": segment.part,
                "min_deliver_at_ms": segment.described and segment.described.min_deliver_at_ms,
                "max_deliver_at_ms": segment.described and segment.described.max_deliver_at_ms,
                "messages": segment.described and segment.described.count,
                "readable": segment.readable,
            }
            for segment in result.corruption.segments
        ],
        "lost": [
            {
                "topic": lost.topic,
                "partition": lost.partition,
                "messages": len(lost.offsets),
                "offsets": ranges(lost.offsets),
                "accepted_again_by_rebuild": ranges(lost.accepted_again),
            }
            for lost in result.lost
        ],
        "lost_rows_of_ids": {kind.name.lower(): result.corruption.lost_rows(kind) for kind in IdRows},
    }


def ranges(offsets: BitMap64) -> list[list[int]]:
    """Return offsets as ascending [first, last] ranges: 1, 3 and 4 are [[1, 1], [3, 4]]."""
    numbers = list(offsets)
    starts = [0, *(at + 1 for at, (one, next_one) in enumerate(pairwise(numbers)) if next_one > one + 1)]
    ends = [*(start - 1 for start in starts[1:]), len(numbers) - 1]
    return [[numbers[start], numbers[end]] for start, end in zip(starts, ends, strict=True)] if numbers else []
