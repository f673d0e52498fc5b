"""Recovery: read checkpoint, table and progress topic, and refuse to start if they contradict each other."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace

from confluent_kafka import KafkaException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from conf.errors import CheckpointMismatch, UsageError
from conf.instants import instant_and_ms
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.buckets.bucket_table import BucketTable
from sinks.buckets.merge_commits import merge_token
from sinks.internal_topics.lease import HeldLease
from sinks.internal_topics.progress import announce_origin, read_progress, restore_markers
from sinks.internal_topics.recalled_writer import RecalledWriter
from sinks.lanes.terms import failure_of, read_terms
from sinks.topics.limits import dead_letter_bytes
from sinks.topics.partitions import offered_topics, partition_counts
from sinks.topics.topic_ids import input_ids
from state.buckets.catalog import SegmentCatalog
from state.buckets.parts import IdRows, abandoned
from state.buckets.segments import Segment
from state.buckets.table_rows import STORED_SCHEMA, described_segment
from state.checkpoint.batch_settings import SettingsHistory, batch_settings_from
from state.checkpoint.handed_over import restored_marker
from state.checkpoint.input_ids import recreated, unread_topics, with_offsets, with_present
from state.checkpoint.origin import CheckpointOrigin, Offsets
from state.checkpoint.planned_batch import PlannedBatch
from state.checkpoint.progress import Progress, refuse_older
from state.group_keys import shard_keys
from state.recalled import KnownFrom
from streaming.checkpoint.checkpoint import Checkpoint
from streaming.checkpoint.current import current_checkpoint, newest_generation
from streaming.checkpoint.handover import (
    newest_sealed,
    rest_bucket,
    writer_of_following,
    writer_of_input,
    writer_of_state,
)
from streaming.checkpoint.recreated_inputs import recreated_inputs
from streaming.storage.failures import CHECKPOINT_REMEDY
from streaming.storage.guarded_log import GuardedLog, guarded_log
from streaming.storage.paths import buckets_path

log = logging.getLogger(__name__)

# Spark's Kafka source reads this offset as "from the first record on".
_EARLIEST = -2
_MARKERS_AT_A_TIME = 16


@dataclass(frozen=True)
class Recovered:
    """What a start of the job goes on from.

    - `planned`: the newest batch in the offset log, or None before the first.
    - `unread`: the known input topics that no message was accepted from.
    - `guard`: of the table's log, against a process that was cut off.
    - `parts`: the parts that the table has, and the last due time in each (epoch ms).
    - `abandoned`: the Delta partitions that merges have left, and nothing needs.
    - `id_rows`: the bytes of each Delta partition of rows of a kind, by the bucket in its name.
    - `merge_token`: for the merges of this process.
    - `handed_over_before_ms`: the last committed cutoff, epoch ms.
    - `overdue`: the segments with messages below that cutoff that the checkpoint's first batch must deliver.
    """

    checkpoint: Checkpoint
    planned: PlannedBatch | None
    settings_history: SettingsHistory
    unread: set[str]
    store: BucketTable
    guard: GuardedLog
    catalog: SegmentCatalog
    parts: dict[str, int]
    abandoned: set[str]
    id_rows: dict[IdRows, dict[int, int]]
    merge_token: int
    handed_over_before_ms: int
    overdue: list[Segment]


def recover(spark: SparkSession, settings: Settings, fresh: bool, lease: HeldLease) -> Recovered:
    """Read everything that a start needs. Reads only metadata of the buckets, and no message.

    1. Read Spark's logs.
    2. Read the markers in the progress topic. Forget a batch that never ran, since its clock was far ahead. If no batch
       was ever planned, begin the checkpoint.
    3. Record the present settings for the batches to come, and new input topics.
    4. Create the table if there is none, and check its log. After a crash, fence the merges of the process before.
    5. Refuse a checkpoint that is older than the table or the markers. Write a marker for each shard that lost its own.
    6. Read the metadata of the live segments.

    `fresh` allows a new checkpoint although an earlier one has handed messages over. Raises UsageError if that is still
    there, CheckpointMismatch if going on could lose or double a message, CheckpointUnreadable, CheckpointVersion or
    BucketUnreadable if files cannot be read, ApplicationHeld, BrokerUnreachable.
    """
    lease.check()
    checkpoint = current_checkpoint(spark, settings)
    store = BucketTable(spark, buckets_path(settings), lease.check, lease.check_now)
    guard = guarded_log(spark, settings)
    guard.restore(store)
    # 1. Read the logs.
    checkpoint.check_logs()
    planned = checkpoint.last_planned()
    # A start that was cut off may have begun the checkpoint.
    if fresh and checkpoint.is_initialized() and (planned is not None or checkpoint.origin.cutoff_ms):
        raise UsageError(
            f"--fresh: there is a checkpoint at {checkpoint.path}, from which `delayline run` continues. To deliver "
            "all messages again that are still in the input topics, use --fresh with another storage.path"
        )
    # 2. Read the markers.
    markers = read_markers(settings)
    if planned is not None and _never_ran(settings, checkpoint, store, markers, planned, lease):
        checkpoint.forget_planned(planned)
        planned = checkpoint.last_planned()
    if planned is None:
        _begin(spark, settings, checkpoint, store, markers, fresh, lease)
    if checkpoint.is_retired():
        raise CheckpointMismatch(
            f"`delayline rescale` was replacing {checkpoint.path} and was interrupted. Run it again"
        )
    # 3. Record the settings.
    history = _amended_history(settings, checkpoint, planned, input_ids(settings))
    # By the markers too: a start that was cut off may have moved the offsets back, and not recorded the new topic.
    accepted = [checkpoint.read_offsets(), *(marker.batch.ends for marker in markers if marker is not None)]
    if planned is not None and _has_left_something(checkpoint, store, markers, planned):
        accepted.append(checkpoint.planned(planned).offsets)
    unread = unread_topics(history.newest.input_ids, *accepted)
    # 4. Create the table.
    store.create(from_arrow_schema(STORED_SCHEMA))
    store.check_log()
    token = merge_token(store, lease.fencing_token)
    if lease.after_a_crash:
        guard.take_over(store, token)
    origin, committed = checkpoint.origin, checkpoint.last_committed()
    # 5. Refuse an older checkpoint, and restore markers.
    refuse_lost_plan(checkpoint, store, planned)
    _refuse_older(checkpoint, store, markers, planned)
    last = None if committed is None else checkpoint.planned(committed)
    if planned is not None and (lost := [shard for shard in range(origin.shards) if markers[shard] is None]):
        log.warning("shards %s have no marker: writing one for the last committed batch, %s", lost, committed)
        marker = restored_marker(origin, last, history.newest.input_ids)
        restore_markers(settings, lost, marker, lease.check_now)
    # 6. Read the metadata.
    cutoff_ms = origin.cutoff_ms if last is None else last.cutoff_ms
    segments = [described_segment(row.asDict()) for row in store.metadata()]
    catalog = SegmentCatalog(segment for segment in segments if segment.max_deliver_at_ms >= cutoff_ms)
    overdue = [
        segment
        for segment in segments
        if committed is None and segment.bucket == origin.overdue_bucket and segment.min_deliver_at_ms < cutoff_ms
    ]
    log.info(
        "recovered %d live segments in %d buckets: %d messages, %d bytes of metadata; messages due before "
        "%s are staged",
        len(catalog), len(catalog.buckets), catalog.messages, catalog.nbytes, instant_and_ms(cutoff_ms),
    )  # fmt: skip
    parts: dict[str, int] = {}
    for segment in segments:
        parts[segment.part] = max(parts.get(segment.part, 0), segment.max_deliver_at_ms)
    newest = None if planned is None else checkpoint.planned(planned)
    left, id_rows = abandoned(store.delta_partitions()), {kind: store.id_partitions(kind) for kind in IdRows}
    return Recovered(
        checkpoint, newest, history, unread, store, guard, catalog, parts, left, id_rows, token, cutoff_ms,
        overdue,
    )  # fmt: skip


def _never_ran(
    settings: Settings,
    checkpoint: Checkpoint,
    store: BucketTable,
    markers: Iterable[Progress | None],
    planned: int,
    lease: HeldLease,
) -> bool:
    """Return whether batch `planned` was refused for its clock, which is far ahead of the broker's, or would have been.

    Its clock is checked before anything of it runs (`streaming.job.batch`). If it was run by a greater
    `clock.skew_limit`, table or markers may show it.
    """
    if planned == checkpoint.last_committed() or lease.broker_ms is None:
        return False
    shown_ms = checkpoint.planned(planned).clock_ms
    if shown_ms - lease.broker_ms <= settings.clock.skew_limit:
        return False
    if _has_left_something(checkpoint, store, markers, planned):
        return False
    log.warning(
        "batch %d was planned when this host's clock showed %s, and did not run. Planning it again",
        planned, instant_and_ms(shown_ms),
    )  # fmt: skip
    return True


def _has_left_something(
    checkpoint: Checkpoint, store: BucketTable, markers: Iterable[Progress | None], planned: int
) -> bool:
    """Return whether batch `planned`, before it was cut off, has handed over or sealed anything."""
    own = checkpoint.origin.checkpoint
    handed_over = any((each.batch.origin.checkpoint, each.batch.batch_id) == (own, planned) for each in markers if each)
    return handed_over or (store.exists() and newest_sealed(store, own) == planned)


def _begin(
    spark: SparkSession,
    settings: Settings,
    checkpoint: Checkpoint,
    store: BucketTable,
    markers: list[Progress | None],
    fresh: bool,
    lease: HeldLease,
) -> None:
    """Write and announce the origin of a checkpoint without a batch, or complete that if it was cut off.

    Raises CheckpointMismatch if a second beginning is refused.
    """
    if not checkpoint.is_initialized():
        # Before the fence too: behind it, neither the earlier checkpoint nor a rebuild of it can go on.
        _refuse_second_beginning(checkpoint, store, markers, fresh)
        if fresh:
            _fence_earlier(store, markers)
            _refuse_second_beginning(checkpoint, store, markers, fresh)
        if fresh and store.exists():
            # The new checkpoint reads the asks for them again, and those that have names, as all other records.
            store.delete({kind.partition(bucket) for kind in IdRows for bucket in store.id_partitions(kind)})
        # Above the pointers too: the progress topic may be lost, and a handover writes a pointer of its generation.
        generation = 1 + max(_generation(markers), newest_generation(spark, settings))
        ids = with_present({}, input_ids(settings))
        terms = read_terms(settings, librdkafka_options(settings.kafka))
        # What forwarders of a new application have taken by now is delivered, unless all is delivered again.
        known_from = _known_from(settings)
        known = [marker.batch.origin.epoch for marker in markers if marker is not None]
        known += [each.epoch for each in (terms, known_from) if each is not None]
        epoch = max(1, max(known, default=0) + fresh)
        origin = CheckpointOrigin(str(uuid.uuid4()), generation, settings.bucket.shards, input_ids=ids, epoch=epoch)
    else:
        origin = checkpoint.origin
    checkpoint.initialize(origin)
    if _generation(markers) < origin.generation:
        announce_origin(settings, origin, lease.check_now)
    _begin_with_present_inputs(settings, checkpoint, markers, lease)


def _known_from(settings: Settings) -> KnownFrom | None:
    """Return what the recalled topic says. Raises BrokerUnreachable, DeliveryFailed, RightMissing."""
    try:
        with closing(RecalledWriter(settings)) as writer:
            return writer.known_from
    except KafkaException as problem:
        raise failure_of(problem, f"cannot read {settings.recalled_topic}") from problem


def _begin_with_present_inputs(
    settings: Settings, checkpoint: Checkpoint, markers: Iterable[Progress | None], lease: HeldLease
) -> None:
    """Let a checkpoint without a batch begin with the present input topics.

    Raises CheckpointMismatch if the checkpoint before has read one that was created again, without
    `topics.skip_expired`; and if the checkpoint has a marker of a batch.
    """
    origin, present = checkpoint.origin, input_ids(settings)
    unread = unread_topics(origin.input_ids, origin.offsets)
    recreated_inputs(settings, origin.input_ids, unread)
    topics = recreated(origin.input_ids, present)
    offsets, ids = with_offsets(origin.offsets, topics, {}), with_present(origin.input_ids, present, unread)
    begun = replace(origin, offsets=offsets, input_ids=ids)
    if begun != origin:
        # Without its log, a checkpoint that has run looks like one without a batch. Its markers must stay.
        for marker in filter(None, markers):
            refuse_older(marker, origin, batch_id=-1)
        # Announced first: if this is cut off, the next start finds the origin before, and repeats it.
        announce_origin(settings, begun, lease.check_now)
        checkpoint.write_read_offsets(with_offsets(checkpoint.first_offsets(), topics, {}))
        checkpoint.initialize(begun)


def _generation(markers: Iterable[Progress | None]) -> int:
    """Return the newest generation of a checkpoint among `markers`; 0 if there are no markers."""
    return max((marker.batch.origin.generation for marker in markers if marker is not None), default=0)


def _fence_earlier(store: BucketTable, markers: Iterable[Progress | None]) -> None:
    """Let nothing that an earlier checkpoint may still seal reach the table.

    A process of it may be paused between its check of the lease and its commit. It would add a bucket to those of the
    new checkpoint, which accepts the same messages again.
    """
    for earlier in sorted({marker.batch.origin.checkpoint for marker in markers if marker is not None}):
        store.create(from_arrow_schema(STORED_SCHEMA))
        for writer_id in (earlier, writer_of_following(earlier), writer_of_state(earlier), writer_of_input(earlier)):
            store.fence(writer_id)


def _refuse_second_beginning(
    checkpoint: Checkpoint, store: BucketTable, markers: Iterable[Progress | None], fresh: bool
) -> None:
    """Raise CheckpointMismatch if an earlier checkpoint has sealed or handed over messages.

    A new checkpoint delivers everything again that is still in the input topics; `fresh` allows that. Beside buckets of
    another checkpoint it is never allowed: their delivered messages would be delivered again.
    """
    if store.exists() and store.metadata():
        raise CheckpointMismatch(
            f"no checkpoint at {checkpoint.path}, but {store.path} holds sealed messages of an earlier one. "
            "Put the checkpoint back, or make a new one with `delayline rebuild` from the table, the input "
            "topics and the progress topic. Or keep this folder, and run `delayline run --fresh` with "
            "another storage.path"
        )
    if not fresh and any(marker is not None for marker in markers):
        raise CheckpointMismatch(
            f"no checkpoint at {checkpoint.path}, but the progress topic has markers of an earlier one. Is "
            "the storage mounted? Put the checkpoint back, make a new one with `delayline rebuild`, or use "
            "another application_id. `delayline run --fresh` starts over: it delivers all messages again "
            "that are still in the input topics"
        )


def refuse_lost_plan(checkpoint: Checkpoint, store: BucketTable, planned: int | None) -> None:
    """Raise CheckpointMismatch if a batch has sealed that is not in the offset log.

    Spark would plan the batch anew, with other records. The table would then take what the batch seals for sealed
    already, and drop it.
    """
    sealed = newest_sealed(store, checkpoint.origin.checkpoint)
    if sealed is not None and (planned is None or sealed > planned):
        raise CheckpointMismatch(
            f"{store.path} holds messages that batch {sealed} sealed, but the offset log of "
            f"{checkpoint.path} ends with batch {planned}. Its newest entries are lost, or it is an older "
            f"checkpoint. {CHECKPOINT_REMEDY}"
        )


def _refuse_older(
    checkpoint: Checkpoint, store: BucketTable, markers: Iterable[Progress | None], planned: int | None
) -> None:
    """Raise CheckpointMismatch if a marker is newer than the checkpoint, or if a handover from it has begun.

    Each shard's writer checks its own marker too. But a shard that had handed over less would already begin to deliver.
    """
    for marker in markers:
        if marker is not None:
            refuse_older(marker, checkpoint.origin, -1 if planned is None else planned)
    if rest_bucket(store, checkpoint.origin.checkpoint) is not None:
        raise CheckpointMismatch(_cut_off_rebuild(checkpoint))
    refuse_rebuilt(checkpoint, store)


def refuse_rebuilt(checkpoint: Checkpoint, store: BucketTable) -> None:
    """Raise CheckpointMismatch if a rebuild has begun to replace `checkpoint`."""
    own = checkpoint.origin.checkpoint
    if store.is_fenced(own) or store.newest_of(writer_of_input(own)) is not None:
        raise CheckpointMismatch(_cut_off_rebuild(checkpoint))


def _cut_off_rebuild(checkpoint: Checkpoint) -> str:
    return (
        f"`delayline rebuild` was replacing the checkpoint {checkpoint.path} and was interrupted. Continuing "
        "from it would lose or duplicate messages. Run `delayline rebuild --discard-checkpoint`"
    )


def read_markers(settings: Settings) -> list[Progress | None]:
    """Return the last marker in each partition of the progress topic; None for a partition without one.

    The topic has at least one partition for each shard.
    """
    options, topic = librdkafka_options(settings.kafka), settings.progress_topic
    partitions = partition_counts(settings, [topic]).get(topic, 0)
    with ThreadPoolExecutor(max_workers=_MARKERS_AT_A_TIME) as threads:
        return list(threads.map(lambda partition: read_progress(options, topic, partition), range(partitions)))


def _amended_history(
    settings: Settings, checkpoint: Checkpoint, planned: int | None, present: Mapping[str, str]
) -> SettingsHistory:
    """Record the present settings for the first batch that was never planned and those after it.

    A batch that is replayed keeps its own settings. An input topic that was read keeps its id, which may not be the
    `present` one any more (`streaming.checkpoint.recreated_inputs`). Raises CheckpointMismatch if the checkpoint has
    another number of shards, or if messages may wait for what is the results topic now.
    """
    origin = checkpoint.origin
    if origin.shards != settings.bucket.shards:
        raise CheckpointMismatch(
            f"the checkpoint has {origin.shards} shards, but bucket.shards is {settings.bucket.shards}. Set "
            f"bucket.shards to {origin.shards}, or change the checkpoint with `delayline rescale`"
        )
    history = checkpoint.settings_history() if planned is not None else SettingsHistory(())
    keys = history.newest.shard_keys if history.entries else shard_keys(origin.shards)
    counts, most_bytes = offered_topics(settings), dead_letter_bytes(settings)
    known = history.newest.input_ids if history.entries else origin.input_ids
    read = set() if planned is None else {*checkpoint.read_offsets(), *checkpoint.planned(planned).offsets}
    ids = with_present(known, {topic: own for topic, own in present.items() if topic not in read & known.keys()})
    batch_settings = batch_settings_from(settings, counts, keys, origin, most_bytes, ids)
    first_new = 0 if planned is None else planned + 1
    history = history.amended(first_new, batch_settings, keep_from=max(0, first_new - 1))
    if history.had_output(settings.results_topic):
        # Whoever reads the answers would take such a message for one.
        raise CheckpointMismatch(
            f"topics.results is {settings.results_topic}, which was an output topic until now (topics.output "
            "or topics.allowed_outputs). Messages that wait for it would be delivered among the answers. "
            "Set topics.results back, or set it to a new topic and run `delayline topics create`"
        )
    checkpoint.write_settings_history(history)
    return history


def input_starts(settings: Settings, origin: CheckpointOrigin) -> Offsets:
    """Return the offset at which a new checkpoint begins to read each input partition.

    It is empty if the checkpoint reads everything from the first record on. A partition that was added since the origin
    begins with its first record.
    """
    if not origin.offsets:
        return {}
    counts = partition_counts(settings, settings.topics.input)
    return {
        topic: {str(number): origin.offsets.get(topic, {}).get(str(number), _EARLIEST) for number in range(count)}
        for topic, count in counts.items()
    }
