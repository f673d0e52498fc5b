"""Recovery: read checkpoint, table and progress topic, and refuse to start if they contradict each other."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from conf.errors import CheckpointMismatch, UsageError
from conf.instants import instant_and_ms
from conf.settings import Settings
from sinks.buckets.bucket_table import BucketTable
from sinks.buckets.merge_commits import merge_token
from sinks.internal_topics.lease import HeldLease
from sinks.internal_topics.progress import read_markers, restore_markers
from sinks.topics.limits import dead_letter_bytes
from sinks.topics.partitions import offered_topics, partition_counts
from sinks.topics.topic_ids import input_ids
from state.buckets.catalog import SegmentCatalog
from state.buckets.parts import IdRows, abandoned
from state.buckets.segments import Segment
from state.buckets.table_rows import STORED_SCHEMA, described_segment
from state.checkpoint.batch_settings import SettingsHistory, batch_settings_from
from state.checkpoint.input_ids import unread_topics, with_left_out, with_present
from state.checkpoint.origin import CheckpointOrigin, Offsets
from state.checkpoint.planned_batch import PlannedBatch
from state.checkpoint.progress import Progress
from state.checkpoint.staged import restored_marker
from state.group_keys import shard_keys
from streaming.checkpoint.beginning import begin
from streaming.checkpoint.checkpoint import Checkpoint
from streaming.checkpoint.current import current_checkpoint
from streaming.checkpoint.recreated_inputs import recreated_inputs, refuse_returned
from streaming.checkpoint.refusals import (
    refuse_lost_plan,
    refuse_missing_table,
    refuse_older_checkpoint,
    refuse_older_table,
)
from streaming.checkpoint.switch_over import newest_sealed
from streaming.storage.guarded_log import GuardedLog, guarded_log
from streaming.storage.paths import buckets_path

log = logging.getLogger(__name__)

# Spark's Kafka source reads this offset as "from the first record on".
_EARLIEST = -2


@dataclass(frozen=True)
class Recovered:
    """The state from which a start of the job continues.

    - `planned`: the newest batch in the offset log, or None before the first.
    - `has_left`: whether that batch has staged or sealed anything.
    - `unread`: the known input topics that no message was accepted from.
    - `guard`: guards the table's log against a process that was cut off.
    - `parts`: the parts that the table has, and the last due time in each (epoch ms).
    - `abandoned`: the Delta partitions that merges have left, and nothing needs.
    - `id_rows`: the bytes of each Delta partition of rows of a kind, by the bucket in its name.
    - `merge_token`: for the merges of this process.
    - `staged_before_ms`: the last committed cutoff, epoch ms.
    - `overdue`: the segments with messages below that cutoff that the checkpoint's first batch must deliver.
    """

    checkpoint: Checkpoint
    planned: PlannedBatch | None
    has_left: bool
    settings_history: SettingsHistory
    unread: set[str]
    store: BucketTable
    guard: GuardedLog
    catalog: SegmentCatalog
    parts: dict[str, int]
    abandoned: set[str]
    id_rows: dict[IdRows, dict[int, int]]
    merge_token: int
    staged_before_ms: int
    overdue: list[Segment]


def recover(spark: SparkSession, settings: Settings, fresh: bool, lease: HeldLease) -> Recovered:
    """Read everything that a start needs. Reads only metadata of the buckets, and no message.

    1. Read Spark's logs. Refuse to go on without the table.
    2. Read the markers in the progress topic. Forget a batch that never ran, since its clock was far ahead. If no batch
       was ever planned, begin the checkpoint.
    3. Record the present settings for the batches to come, and new input topics.
    4. Create the table if it does not exist, check its log, and refuse a table that is older than the markers. After a
       crash, fence the merges of the process before.
    5. Refuse a checkpoint that is older than the table or the markers. Write a marker for each shard that lost its own.
    6. Read the metadata of the live segments.

    `fresh` allows a new checkpoint although an earlier one has staged messages. Raises UsageError if that still exists,
    CheckpointMismatch if going on could lose or double a message, CheckpointUnreadable, CheckpointVersion or
    BucketUnreadable if files cannot be read, ApplicationHeld, BrokerUnreachable.
    """
    lease.check()
    checkpoint = current_checkpoint(spark, settings, lease.check_now)
    store = BucketTable(spark, buckets_path(settings), lease.check, lease.check_now)
    guard = guarded_log(spark, settings)
    # 1. Read the logs.
    checkpoint.check_logs()
    planned = checkpoint.last_planned()
    refuse_missing_table(checkpoint, guard, planned)
    guard.restore(store)
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
        begin(spark, settings, checkpoint, store, guard, markers, fresh, lease)
    if checkpoint.is_retired():
        raise CheckpointMismatch(
            f"`delayline rescale` was replacing {checkpoint.path} and was interrupted. Run it again"
        )
    # 3. Record the settings.
    history = _amended_history(settings, checkpoint, planned, input_ids(settings))
    # By the markers too: a start that was cut off may have moved the offsets back, and not recorded the new topic.
    accepted = [checkpoint.read_offsets(), *(marker.batch.ends for marker in markers if marker is not None)]
    has_left = planned is not None and _has_left_something(checkpoint, store, markers, planned)
    if planned is not None and has_left:
        accepted.append(checkpoint.planned(planned).offsets)
    unread = unread_topics(history.newest.input_ids, *accepted)
    # 4. Create the table.
    store.create(from_arrow_schema(STORED_SCHEMA))
    store.check_log()
    refuse_older_table(checkpoint, store, markers)
    token = merge_token(store, lease.fencing_token)
    if lease.after_a_crash:
        guard.take_over(store, token)
        lease.note_fenced()
    origin, committed = checkpoint.origin, checkpoint.last_committed()
    # 5. Refuse an older checkpoint, and restore markers.
    refuse_lost_plan(checkpoint, store, planned)
    refuse_older_checkpoint(checkpoint, store, markers, planned)
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
        checkpoint, newest, has_left, history, unread, store, guard, catalog, parts, left, id_rows, token, cutoff_ms,
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
    """Return whether batch `planned`, before it was cut off, has staged or sealed anything."""
    own = checkpoint.origin.checkpoint
    staged = any((each.batch.origin.checkpoint, each.batch.batch_id) == (own, planned) for each in markers if each)
    return staged or (store.exists() and newest_sealed(store, own) == planned)


def _amended_history(
    settings: Settings, checkpoint: Checkpoint, planned: int | None, present: Mapping[str, str]
) -> SettingsHistory:
    """Record the present settings for the first batch that was never planned and those after it.

    A batch that is replayed keeps its own settings. An input topic that was read keeps its id, which may not be the
    `present` one any more (`streaming.checkpoint.recreated_inputs`). Raises CheckpointMismatch if the checkpoint has
    another number of shards, if an input topic was left out before, or was created again since it was read (unless
    `topics.skip_expired`), if messages may wait for what is the results topic now, or if an input topic was the results
    topic until now.
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
    newest = checkpoint.first_offsets() if planned is None else checkpoint.planned(planned).offsets
    known = history.newest.input_ids if history.entries else with_left_out(origin.input_ids, newest, origin.offsets)
    refuse_returned(settings, known, newest)
    committed = checkpoint.read_offsets()
    read = set() if planned is None else {*committed, *newest}
    ids = with_present(known, {topic: own for topic, own in present.items() if topic not in read & known.keys()})
    ids = with_left_out(ids, settings.topics.input, committed, newest)
    batch_settings = batch_settings_from(settings, counts, keys, origin, most_bytes, ids)
    first_new = 0 if planned is None else planned + 1
    history = history.amended(first_new, batch_settings, keep_from=max(0, first_new - 1))
    if history.had_output(settings.results_topic):
        # A reader of the answers would take such a message for an answer.
        raise CheckpointMismatch(
            f"topics.results is {settings.results_topic}, which was an output topic until now (topics.output "
            "or topics.allowed_outputs). Messages that wait for it would be delivered among the answers. "
            "Set topics.results back, or set it to a new topic and run `delayline topics create`"
        )
    # As far as the history goes back.
    if answered := {each.results for _, each in history.entries[:-1]} & {*settings.topics.input}:
        raise CheckpointMismatch(
            f"topics.input names {', '.join(sorted(answered))}, which was topics.results until now. Its answers, and "
            "those on their way, would be read as messages. Leave it out of topics.input, and publish to a topic with "
            "another name"
        )
    # Before anything is written: if Kafka is another cluster, the job of this checkpoint may be running on its own.
    recreated_inputs(settings, ids, unread_topics(ids, committed), present)
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
