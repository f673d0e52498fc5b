"""`delayline rebuild`: a new checkpoint in place of a lost one, from markers, table and input.

| message | known by |
| --- | --- |
| delivered | the markers in the progress topic |
| sealed, or cancelled | the message ids in the table |
| accepted, and neither | was only in the mutable buckets of the lost checkpoint: it is read from the input again |
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from conf.errors import CheckpointMismatch, UsageError
from conf.kafka.options import java_options
from conf.settings import Settings
from sinks.bucket_table import BucketTable
from sinks.internal_topics.lease import HeldLease
from sinks.ready_log.writer import fence_writers
from sinks.topics.limits import dead_letter_bytes
from sinks.topics.topics import check_topics, input_bounds, partition_counts
from sources.intake.accept import accept
from sources.intake.kafka_reader import read_range
from sources.intake.names import gives_names
from state.buckets.parts import IdRows
from state.buckets.reseal import LEFT_SCHEMA, left_rows
from state.buckets.table_rows import STORED_SCHEMA, described_segment
from state.cancel import WAITING, MessageId, answer, answered, answers_of, asks_in, asks_of, is_ask, without_cancelled
from state.checkpoint.batch_settings import BatchSettings, batch_settings_from
from state.checkpoint.delivered import Delivered, newest_checkpoint
from state.checkpoint.origin import CheckpointOrigin, Offsets
from state.index.message_index import MessageIndex, bitmap_of
from state.message import decode_chunk
from state.message_ids import ID, Ids, among, ids_in, ids_of
from state.names import NAMED_SCHEMA, name_rows
from streaming.checkpoint.checkpoint import Checkpoint
from streaming.checkpoint.current import current_checkpoint
from streaming.checkpoint.handover import rest_bucket, seal_rest, switch_over, writer_of_input, writer_of_state
from streaming.checkpoint.recovery import read_markers
from streaming.release.drain import drain
from streaming.spark.exclusive_session import exclusive_session
from streaming.storage.checks import check_storage
from streaming.storage.failures import translate_storage_errors
from streaming.storage.paths import buckets_path

ArrowFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
# For each input topic and partition: its first offset and the offset after its last; the offsets that are in buckets.
Bounds = Mapping[tuple[str, int], tuple[int, int]]
Sources = Mapping[tuple[str, int], BitMap64]


@dataclass(frozen=True)
class Rebuilt:
    """What a rebuild did.

    `resealed` counts the messages that were accepted again from the input, or were overdue in the table. `offsets` is
    where the new checkpoint begins to read. `replaced` is where the old checkpoint is, or None if there was none.
    """

    resealed: int
    offsets: Offsets
    replaced: str | None


def rebuild(settings: Settings, discard: bool, now_ms: int) -> Rebuilt:
    """Make a new checkpoint for a job that lost its own. `discard` replaces one that still exists.

    `now_ms` (epoch ms) is taken as the time at which the records were accepted. Raises UsageError if there is a
    checkpoint and not `discard`, CheckpointMismatch if the progress topic does not show what is delivered,
    BucketUnreadable if the table is damaged, ApplicationHeld while the job runs.
    """
    check_storage(settings)
    check_topics(settings)
    with exclusive_session(settings, "rebuild") as (spark, lease):
        current = current_checkpoint(spark, settings)
        if current.exists() and not discard:
            raise UsageError(
                f"there is a checkpoint at {current.path}: `delayline run` goes on from it. If it cannot be used, or "
                "if a rebuild that was to replace it was cut off, --discard-checkpoint replaces it"
            )
        store = BucketTable(spark, buckets_path(settings), lease.check, lease.check_now)
        with translate_storage_errors(settings):
            return _rebuild(store, settings, current, now_ms, lease)


def _rebuild(store: BucketTable, settings: Settings, current: Checkpoint, now_ms: int, lease: HeldLease) -> Rebuilt:
    """Rebuild the checkpoint. After a crash, a second try recognises the steps that are done.

    1. Fence the writers of the old job, release all that it has handed over, and read from the markers what that is.
    2. Fence what the old job may still write to the table, and read from the table's metadata what is sealed. From here
       on nothing goes on from the old checkpoint.
    3. Choose the origin of the new checkpoint.
    4. Accept the rest of the input again, and seal it in one bucket, with the overdue messages of the table.
    5. Switch over to the new checkpoint.
    """
    # 1. Read the markers.
    fence_writers(settings, partition_counts(settings, [settings.progress_topic])[settings.progress_topic])
    drain(settings)
    delivered = newest_checkpoint(read_markers(settings))
    if delivered is None:
        raise CheckpointMismatch(
            f"the progress topic {settings.progress_topic} does not have a marker of every shard: nothing records what "
            "is delivered. `delayline run --fresh` delivers again all that is still in the input topics"
        )
    # 2. Read the table.
    store.create(from_arrow_schema(STORED_SCHEMA))
    store.check_log()
    store.fence_merges(store.merge_token(lease.fencing_token))
    # A batch of the old job, or a rescale, may be paused between its check of the lease and its commit.
    for writer_id in (delivered.origin.checkpoint, writer_of_state(delivered.origin.checkpoint)):
        store.fence(writer_id)
    bounds = input_bounds(settings)
    index = index_of(store, store.version())
    cancelled = store.cancelled_ids()
    in_table = {source: index.offsets_of(*source) | _bitmap(cancelled, source) for source in bounds}
    starts, ends = _range(bounds, delivered, in_table)
    # 3. Choose the origin. The rest gets the next free bucket number, unless an earlier try has sealed it already.
    numbers = [*(row["bucket"] for row in store.metadata()), *_buckets_of_ids(store)]
    sealed_in = rest_bucket(store, delivered.origin.checkpoint)
    next_bucket = 1 + max([delivered.origin.first_bucket + delivered.last_batch, *numbers])
    bucket = next_bucket if sealed_in is None else sealed_in
    origin = CheckpointOrigin(
        checkpoint=str(uuid.uuid4()),
        generation=delivered.origin.generation + 1,
        shards=settings.bucket.shards,
        first_bucket=bucket + 1,
        cutoff_ms=delivered.cutoff_ms,
        offsets=ends,
    )
    # 4. Seal the rest.
    resealed = 0
    if sealed_in is None:
        counts, most_bytes = partition_counts(settings), dead_letter_bytes(settings)
        batch_settings = batch_settings_from(settings, counts, range(origin.shards), origin, most_bytes)
        records = read_range(store.spark, java_options(settings.kafka), settings.topics.input, starts, ends)
        accepted = _Rest(delivered, in_table, cancelled, batch_settings, now_ms)
        names = None
        if gives_names(batch_settings):
            names = records.mapInArrow(accepted.names(origin.overdue_bucket), from_arrow_schema(STORED_SCHEMA))
        rest = records.mapInArrow(accepted.messages(), from_arrow_schema(LEFT_SCHEMA))
        rest = rest.union(_overdue(store, delivered, cancelled, origin, settings.results_topic))
        resealed = seal_rest(store, rest, origin, writer_of_input(delivered.origin.checkpoint), batch_settings, names)
    # 5. Switch over.
    switch_over(settings, origin, store.spark, lease)
    return Rebuilt(resealed, ends, current.path if current.exists() else None)


def _buckets_of_ids(store: BucketTable) -> Iterator[int]:
    for kind in IdRows:
        yield from store.id_partitions(kind)


def _bitmap(ids: Ids, source: tuple[str, int]) -> BitMap64:
    return bitmap_of(ids[source]) if source in ids else BitMap64()


def _range(bounds: Bounds, delivered: Delivered, in_table: Sources) -> tuple[Offsets, Offsets]:
    """Return the offsets from which, and up to which, records are read again: they may be in no bucket.

    The end is the highest offset that a marker or a bucket has. The new checkpoint reads what follows as new records.
    """
    accepted = delivered.ends
    for (topic, partition), offsets in in_table.items():
        if offsets:
            known = accepted.setdefault(topic, {})
            known[str(partition)] = max(known.get(str(partition), 0), offsets.max() + 1)
    starts: Offsets = {}
    ends: Offsets = {}
    for (topic, partition), (first, last) in bounds.items():
        number = str(partition)
        start = max(first, delivered.origin.offsets.get(topic, {}).get(number, 0))
        end = accepted.get(topic, {}).get(number, 0)
        if end > last:
            raise CheckpointMismatch(
                f"{topic}/{partition} ends at offset {last}, and records up to {end} were accepted: it is not "
                "the topic that the lost checkpoint read"
            )
        starts.setdefault(topic, {})[number] = start
        ends.setdefault(topic, {})[number] = max(start, end)
    return starts, ends


@dataclass(frozen=True)
class _Rest:
    """Accepts the records that are neither delivered nor in the table, in tasks of Spark.

    Asks for a cancel that have no answer yet get it here: nothing is cancelled that the lost job did not cancel.
    """

    delivered: Delivered
    in_table: Sources
    cancelled: Ids
    batch_settings: BatchSettings
    now_ms: int

    def messages(self) -> ArrowFunction:
        """Return the function for `mapInArrow` that gives the messages, as rows of `LEFT_SCHEMA`."""

        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for rest, asks, refused in self._accepted(batches):
                answers = _answers(asks, self.cancelled, refused)
                answered_rest = answered(rest, self.batch_settings.results, answers)
                yield from left_rows(answered_rest, self.batch_settings.shards)

        return run

    def names(self, bucket: int) -> ArrowFunction:
        """Return the function that gives the rows of `STORED_SCHEMA` for their names, in `bucket`."""

        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for rest, asks, _ in self._accepted(batches):
                is_message = pc.and_(pc.is_valid(asks.column("name")), pc.is_valid(asks.column("condition")))
                own = asks.filter(is_message)
                ids = own.select([f"ask_{name}" for name in ID]).rename_columns(ID)
                left = ids_in(rest.filter(pc.invert(is_ask(rest, self.batch_settings.results))))
                due = own.column("deliver_at_ms")
                table = pa.table([own.column("name"), *ids.columns, due, due], names=NAMED_SCHEMA.names)
                kept = table.filter(pa.array(among(ids, left))).cast(NAMED_SCHEMA)
                yield from name_rows(kept, bucket).to_batches()

        return run

    def _accepted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.Table, pa.Table, set[MessageId]]]:
        """Yield messages that are left, with the asks among them, and which replacements are refused."""
        for batch in batches:
            if batch.num_rows:
                messages = accept(pa.Table.from_batches([batch]), self.batch_settings, self.now_ms)
                results = self.batch_settings.results
                # An ask is in no bucket. If it has the id of one that is, that is the replacement that it came with.
                stored = _is_in(messages, self.in_table) & ~np.asarray(is_ask(messages, results))
                rest = messages.filter(pa.array(~(self.delivered.of_input(messages, results) | stored)))
                asks = asks_in(rest, results)
                refused = _refused(asks, self.cancelled)
                yield without_cancelled(rest, ids_of(refused), results), asks, refused


def _refused(asks: pa.Table, cancelled: Ids) -> set[MessageId]:
    """Return which replacements among `asks`, which have no answer yet, the new checkpoint does not accept.

    The lost job stored what it refused, and what it cancelled for those that it accepted. Others are not decided.
    """
    was_refused = among(asks.select([f"ask_{name}" for name in ID]).rename_columns(ID), cancelled).tolist()
    has_cancelled = among(asks, cancelled).tolist()
    return {
        ask.id
        for ask, refused, done in zip(asks_of(asks), was_refused, has_cancelled, strict=True)
        if refused or (ask.condition == WAITING and not done)
    }


def _answers(asks: pa.Table, cancelled: Ids, refused: Collection[MessageId]) -> pa.Table:
    """Return the answer to each of `asks` (`state.cancel.ANSWER_SCHEMA`)."""
    why = "the job's checkpoint was lost before this was decided: ask again"
    answers: dict[MessageId, bytes | None] = {}
    for ask, is_cancelled in zip(asks_of(asks), among(asks, cancelled).tolist(), strict=True):
        if ask.name is not None and ask.condition is not None:
            # Nobody waits for an answer to a name that is given.
            answers[ask.id] = None
            continue
        accepted = None if ask.condition is None else ask.id not in refused
        if is_cancelled:
            answers[ask.id] = answer(ask, "cancelled", accepted=accepted)
        else:
            answers[ask.id] = answer(ask, "unknown", why, accepted)
    return answers_of(answers)


def _is_in(messages: pa.Table, in_table: Sources) -> np.ndarray:
    """Return for each message whether its id is among those `in_table`."""
    ids = zip(*(messages.column(name).to_pylist() for name in ("topic", "partition", "offset")), strict=True)
    none = BitMap64()
    return np.array([offset in in_table.get((topic, partition), none) for topic, partition, offset in ids], dtype=bool)


def _overdue(
    store: BucketTable, delivered: Delivered, cancelled: Ids, origin: CheckpointOrigin, results: str
) -> DataFrame:
    """Return the messages that wait in the table below the new cutoff (`state.buckets.reseal.LEFT_SCHEMA`)."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for bucket, chunk in zip(batch.column("bucket").to_pylist(), batch.column("chunk"), strict=True):
                messages = decode_chunk(chunk.as_py())
                waiting = ~delivered.of_bucket(messages, bucket)
                waiting &= messages.column("deliver_at_ms").to_numpy() < origin.cutoff_ms
                left = without_cancelled(messages.filter(pa.array(waiting)), cancelled, results)
                yield from left_rows(left, origin.shards)

    parts = {described_segment(row.asDict()).part for row in store.metadata()}
    return store.chunks(0, origin.cutoff_ms, parts).mapInArrow(run, from_arrow_schema(LEFT_SCHEMA))


def index_of(store: BucketTable, version: int) -> MessageIndex:
    """Return the index of all messages in the table at `version`.

    It includes delivered messages until their part is deleted; `MessageIndex.forget_before` drops them. Its
    time slots are as long as the longest in the metadata, or 1 ms without metadata. Raises BucketUnreadable if the
    metadata is damaged.
    """
    index = MessageIndex(max(store.precisions(version), default=0))
    for row in store.index_entries(version):
        index.add_entries(row["index_entries"], row["precision_bits"])
    return index
