"""The progress topic: the markers of how far each shard's delivery is committed.

It is compacted and the service's own, one partition for each shard, written in the very transaction whose progress a
marker tells. Consumer group offsets would do the same but expire with a job that rests.
"""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaException, Producer

from conf.errors import DeliveryFailed
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.internal_topics.newest_record import newest_value
from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.progress import BatchSpan, Progress

_WRITE_TIMEOUT_S = 60.0


def marker_key(shard: int) -> bytes:
    """Return the key of a shard's markers, which lie in the partition of its number."""
    return f"shard-{shard}".encode()


def announce_origin(settings: Settings, origin: CheckpointOrigin) -> None:
    """Write the first marker of each shard of a new checkpoint, all or none. Raises DeliveryFailed.

    From then on the markers say to which records the checkpoint began, whatever becomes of it.
    """
    topic = settings.progress_topic
    own = {
        "transactional.id": f"{settings.application_id}-birth",
        "transaction.timeout.ms": str(settings.delivery.transaction_timeout),
    }
    producer = Producer({**librdkafka_options(settings.kafka), **own})
    marker = Progress(BatchSpan(origin)).to_bytes()
    try:
        producer.init_transactions(_WRITE_TIMEOUT_S)
        producer.begin_transaction()
        for shard in range(origin.shards):
            producer.produce(topic, marker, marker_key(shard), shard)
        producer.commit_transaction(_WRITE_TIMEOUT_S)
    except KafkaException as problem:
        raise DeliveryFailed(f"the new checkpoint could not be announced in {topic}: {problem}") from problem


def read_progress(options: Mapping[str, str], topic: str, shard: int) -> Progress | None:
    """Return the last committed marker of `shard`, or None if it never delivered. Raises BrokerUnreachable."""
    value = newest_value(options, topic, shard)
    return None if value is None else Progress.from_bytes(value)
