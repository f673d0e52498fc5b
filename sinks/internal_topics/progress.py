"""The progress topic: markers of how far the messages of each shard are staged.

It is an internal, compacted topic with one partition for each shard. A marker is written in the same transaction as
the staged messages that it counts. Consumer group offsets would do as well, but they expire while a job is stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import KafkaException, Producer

from conf.errors import DeliveryFailed
from conf.kafka.client_log import client_log
from conf.kafka.clients import NO_SIZE_LIMIT
from conf.kafka.options import librdkafka_options
from conf.kafka.rights import init_transactions, is_refusal, right_missing
from conf.settings import Settings
from sinks.internal_topics.newest_record import newest_value
from sinks.internal_topics.transactional_ids import transactional_id
from sinks.topics.partitions import partition_counts
from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.progress import BatchSpan, Progress

log = logging.getLogger(__name__)

_WRITE_TIMEOUT_S = 60.0
_MARKERS_AT_A_TIME = 16


def marker_key(shard: int) -> bytes:
    """Return the key of a shard's markers, which are in the partition with the shard's number."""
    return f"shard-{shard}".encode()


def announce_origin(
    settings: Settings, origin: CheckpointOrigin, check_lease: Callable[[], None] = lambda: None
) -> None:
    """Write the first marker of each shard of a new checkpoint, all or none. Raises DeliveryFailed, BrokerUnreachable.

    From then on the markers record how the checkpoint began, even if the checkpoint itself is lost. `check_lease`
    raises if this process does not hold the lease any more.
    """

    def first(before: Progress | None) -> Progress:
        return Progress(BatchSpan(origin), staged=0 if before is None else before.staged)

    _write_markers(settings, range(origin.shards), first, check_lease)


def restore_markers(
    settings: Settings, shards: Iterable[int], marker: Progress, check_lease: Callable[[], None] = lambda: None
) -> None:
    """Write `marker` for each of `shards` that has none, all or none. Raises DeliveryFailed, BrokerUnreachable.

    `check_lease` raises if this process does not hold the lease any more.
    """
    _write_markers(settings, shards, lambda before: marker if before is None else None, check_lease)


def _write_markers(
    settings: Settings,
    shards: Iterable[int],
    marker_after: Callable[[Progress | None], Progress | None],
    check_lease: Callable[[], None],
) -> None:
    """Write the result of `marker_after` for the last marker of each of `shards`, or nothing if the result is None."""
    topic = settings.progress_topic
    own = NO_SIZE_LIMIT | {
        "transactional.id": transactional_id(settings.application_id, "origin"),
        "transaction.timeout.ms": str(settings.release.transaction_timeout),
    }
    options = librdkafka_options(settings.kafka)
    producer = Producer({**options, **own}, logger=client_log(log))
    try:
        init_transactions(producer, own["transactional.id"], _WRITE_TIMEOUT_S)
        # Not earlier: this process may have hung until here, while another one announced its checkpoint and staged
        # messages. A process that takes the lease after this check announces too, and fences this producer.
        check_lease()
        markers = {shard: marker_after(read_progress(options, topic, shard)) for shard in shards}
        producer.begin_transaction()
        for shard, marker in markers.items():
            if marker is not None:
                producer.produce(topic, marker.to_bytes(), marker_key(shard), shard)
        producer.commit_transaction(_WRITE_TIMEOUT_S)
    except KafkaException as problem:
        if is_refusal(problem.args[0]):
            raise right_missing("Write", f"topic {topic}") from problem
        raise DeliveryFailed(f"could not write the markers of the checkpoint to {topic}: {problem}") from problem


def read_progress(options: Mapping[str, str], topic: str, shard: int, after_fencing: bool = False) -> Progress | None:
    """Return the last committed marker of `shard`, or None if it has none.

    `after_fencing` says that all who may write markers of the shard are fenced (`newest_value`).

    Raises BrokerUnreachable, TopicMissing, CheckpointMismatch, FormatMismatch.
    """
    value = newest_value(options, topic, shard, after_fencing)
    return None if value is None else Progress.from_bytes(value)


def read_markers(settings: Settings) -> list[Progress | None]:
    """Return the last marker in each partition of the progress topic; None for a partition without one.

    The topic has at least one partition for each shard.
    """
    options, topic = librdkafka_options(settings.kafka), settings.progress_topic
    partitions = partition_counts(settings, [topic]).get(topic, 0)
    with ThreadPoolExecutor(max_workers=_MARKERS_AT_A_TIME) as threads:
        return list(threads.map(lambda partition: read_progress(options, topic, partition), range(partitions)))
