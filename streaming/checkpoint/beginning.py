"""The beginning of a checkpoint: its origin, announced in the progress topic, and the first input offsets."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace

from confluent_kafka import KafkaException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from conf.errors import ApplicationHeld, CheckpointMismatch
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.buckets.bucket_table import BucketTable
from sinks.buckets.merge_commits import merge_token
from sinks.internal_topics.lease import HeldLease
from sinks.internal_topics.progress import announce_origin
from sinks.internal_topics.recalled_writer import RecalledWriter
from sinks.lanes.terms import failure_of, read_terms
from sinks.topics.topic_ids import input_ids
from state.buckets.parts import IdRows
from state.buckets.table_rows import STORED_SCHEMA
from state.checkpoint.input_ids import unread_topics, with_offsets, with_present
from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.progress import Progress, refuse_older
from state.recalled import KnownFrom
from streaming.checkpoint.checkpoint import Checkpoint
from streaming.checkpoint.current import newest_generation
from streaming.checkpoint.recreated_inputs import recreated_inputs
from streaming.checkpoint.switch_over import writer_of_following, writer_of_input, writer_of_state
from streaming.storage.guarded_log import GuardedLog


def begin(
    spark: SparkSession,
    settings: Settings,
    checkpoint: Checkpoint,
    store: BucketTable,
    guard: GuardedLog,
    markers: list[Progress | None],
    fresh: bool,
    lease: HeldLease,
) -> None:
    """Write and announce the origin of a checkpoint without a batch, or complete that if it was cut off.

    Raises CheckpointMismatch if a second beginning is refused, ApplicationHeld if another process was faster.
    """
    if is_first := not checkpoint.is_initialized():
        # Before the fence too: behind it, neither the earlier checkpoint nor a rebuild of it can go on.
        _refuse_second_beginning(checkpoint, store, markers, fresh)
        if fresh:
            if lease.after_a_crash:
                # If this start is cut off, the next one keeps no entry that was there before it.
                store.create(from_arrow_schema(STORED_SCHEMA))
                guard.take_over(store, merge_token(store, lease.fencing_token))
            _fence_earlier(store, markers)
            _refuse_second_beginning(checkpoint, store, markers, fresh)
        if fresh and store.exists():
            # The new checkpoint reads the requests about them again, and the messages with names, as all other records.
            store.delete({kind.partition(bucket) for kind in IdRows for bucket in store.id_partitions(kind)})
        # Above the pointers too: the progress topic may be lost, and a switch writes a pointer of its generation.
        generation = 1 + max(_generation(markers), newest_generation(spark, settings))
        ids = with_present({}, input_ids(settings))
        terms = read_terms(settings, librdkafka_options(settings.kafka))
        # Messages that forwarders of a new application have taken by now are delivered, unless all are delivered again.
        known_from = _known_from(settings)
        known = [marker.batch.origin.epoch for marker in markers if marker is not None]
        known += [each.epoch for each in (terms, known_from) if each is not None]
        epoch = max(1, max(known, default=0) + fresh)
        origin = CheckpointOrigin(str(uuid.uuid4()), generation, settings.bucket.shards, input_ids=ids, epoch=epoch)
    else:
        origin = checkpoint.origin
    try:
        checkpoint.initialize(origin, replace=not is_first)
    except FileExistsError as problem:
        # This process was paused after its check of the lease, or the other one uses another Kafka cluster.
        raise ApplicationHeld(
            f"another process has begun the checkpoint {checkpoint.path} at the same time. Only one job may use this "
            "storage.path. If no other one runs, start again: the job continues from that checkpoint"
        ) from problem
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
    topics = recreated_inputs(settings, origin.input_ids, unread, present)
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
    """Return the newest generation of a checkpoint among `markers`, or 0 without markers."""
    return max((marker.batch.origin.generation for marker in markers if marker is not None), default=0)


def _fence_earlier(store: BucketTable, markers: Iterable[Progress | None]) -> None:
    """Let nothing that an earlier checkpoint may still seal reach the table.

    A process of it may be paused between its check of the lease and its commit. It would add a bucket next to the
    buckets of the new checkpoint, which accepts the same messages again.
    """
    for earlier in sorted({marker.batch.origin.checkpoint for marker in markers if marker is not None}):
        store.create(from_arrow_schema(STORED_SCHEMA))
        for writer_id in (earlier, writer_of_following(earlier), writer_of_state(earlier), writer_of_input(earlier)):
            store.fence(writer_id)


def _refuse_second_beginning(
    checkpoint: Checkpoint, store: BucketTable, markers: Iterable[Progress | None], fresh: bool
) -> None:
    """Raise CheckpointMismatch if an earlier checkpoint has sealed or staged messages.

    A new checkpoint delivers everything again that is still in the input topics; `fresh` allows that. If the table has
    buckets of another checkpoint, it is never allowed: their delivered messages would be delivered again.
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
