"""Coming up: what the checkpoint, the tables and the progress topic say, and whether they tell one story."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from conf.errors import CheckpointMismatch
from conf.kafka_options import librdkafka_options
from conf.rules import RuleBook, rules_from
from conf.settings import Settings
from sinks.bucket_store import BucketStore
from sinks.progress import Progress, read_progress
from sinks.topics import partition_counts
from state.catalog import SegmentCatalog
from state.stored import STORED_SCHEMA, described_segment
from streaming.checkpoint import Checkpoint
from streaming.query import shard_keys

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recovered:
    """What a start of the job goes on from. `delivered_before_ms` is epoch ms: the last committed cutoff."""

    checkpoint: Checkpoint
    rules: RuleBook
    store: BucketStore
    catalog: SegmentCatalog
    partitions: set[str]
    delivered_before_ms: int


def checkpoint_path(settings: Settings) -> str:
    """Return where the query's checkpoint lies."""
    return f"{_storage(settings)}/checkpoint"


def buckets_path(settings: Settings) -> str:
    """Return where the table of sealed buckets lies."""
    return f"{_storage(settings)}/buckets"


def _storage(settings: Settings) -> str:
    """Return `storage.path`; a local one absolute, since the JVM runs in a folder of its own."""
    path = settings.storage.path
    return path.rstrip("/") if "://" in path or path.startswith("file:") else str(Path(path).absolute())


def recover(spark: SparkSession, settings: Settings, fresh: bool) -> Recovered:
    """Read everything that a start needs; of the buckets only metadata, and no message.

    `fresh` allows a new checkpoint although an earlier one has delivered. Raises CheckpointMismatch if going on
    could lose or double a message.
    """
    checkpoint = Checkpoint(spark, checkpoint_path(settings))
    store = BucketStore(spark, buckets_path(settings))
    planned = checkpoint.last_planned()
    if planned is None:
        _refuse_second_birth(settings, checkpoint, store, fresh)
    rules = _amended_rules(spark, settings, checkpoint, planned)
    store.create(from_arrow_schema(STORED_SCHEMA))
    committed = checkpoint.last_committed()
    cutoff_ms = checkpoint.planned(committed).watermark_ms if committed is not None else 0
    rows = store.metadata()
    segments = [described_segment(row.asDict()) for row in rows]
    catalog = SegmentCatalog(segment for segment in segments if segment.max_deliver_at_ms >= cutoff_ms)
    log.info(
        "recovered %d live segments of %d buckets, %d messages, %d bytes of metadata, delivered before %d",
        len(catalog), len(catalog.buckets), catalog.messages, catalog.nbytes, cutoff_ms,
    )  # fmt: skip
    return Recovered(checkpoint, rules, store, catalog, {segment.time_partition for segment in segments}, cutoff_ms)


def _refuse_second_birth(settings: Settings, checkpoint: Checkpoint, store: BucketStore, fresh: bool) -> None:
    """A checkpoint is born once: with a second one, everything still in the input would be delivered again.

    Never beside buckets of another checkpoint, `fresh` or not: the two would number their buckets alike.
    """
    if store.exists() and store.metadata():
        raise CheckpointMismatch(
            f"there is no checkpoint at {checkpoint.path}, but {store.path} holds sealed messages of an earlier one. "
            "Put the checkpoint back, or keep that folder and take another storage.path with `delayline run --fresh`"
        )
    if not fresh and any(marker is not None for marker in _markers(settings)):
        raise CheckpointMismatch(
            f"there is no checkpoint at {checkpoint.path}, but {settings.application_id!r} has delivered messages "
            "before. Put the checkpoint back, or take another application_id; "
            "`delayline run --fresh` starts anew and delivers again all that is still in the input topics"
        )


def _markers(settings: Settings) -> list[Progress | None]:
    options = librdkafka_options(settings.kafka)
    return [read_progress(options, settings.progress_topic, shard) for shard in range(settings.bucket.shards)]


def _amended_rules(spark: SparkSession, settings: Settings, checkpoint: Checkpoint, planned: int | None) -> RuleBook:
    """Let the current settings hold from the first batch that has never run; batches to replay keep theirs."""
    book = checkpoint.rules() if planned is not None else RuleBook(())
    if book.entries and book.entries[-1][1].shards != settings.bucket.shards:
        raise CheckpointMismatch(
            f"the checkpoint was born with {book.entries[-1][1].shards} shards, and bucket.shards is "
            f"{settings.bucket.shards}: Spark fixes the number at a checkpoint's birth"
        )
    if planned is not None and not book.entries:
        raise CheckpointMismatch(f"{checkpoint.path} has batches but no delayline-rules.json; put it back whole")
    keys = book.entries[-1][1].shard_keys if book.entries else shard_keys(spark, settings.bucket.shards)
    rules = rules_from(settings, partition_counts(settings), keys)
    first_new = 0 if planned is None else planned + 1
    book = book.amended(first_new, rules, keep_from=max(0, first_new - 1))
    checkpoint.write_rules(book)
    return book
