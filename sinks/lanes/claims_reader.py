"""Follows the claims of all lanes, as the job does, which waits for what they decide."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from conf.kafka.client_log import client_log
from conf.settings import Settings
from sinks.internal_topics.newest_record import reader_options
from sinks.lanes.claims_search import first_offsets
from state.checkpoint.origin import Offsets
from state.claims import Claim, partition_of_lane

log = logging.getLogger(__name__)

_MOST_AT_ONCE = 500


class ClaimsReader:
    """Reads the claims that may decide what is `needed`, and what follows. A context manager. Not safe between threads.

    It reads all lanes that there ever were: partitions may have been in other lanes. A lane that has claims begins with
    one that decides nothing at or above `needed`, if it has one.
    """

    def __init__(
        self, settings: Settings, options: Mapping[str, str], needed: Offsets, topic_ids: Mapping[str, str], epoch: int
    ) -> None:
        """Find where to begin in each lane.

        `options` are librdkafka's, `needed` the offset of each partition from which on somebody needs what claims of
        `epoch` decide, and `topic_ids` the present ids of these topics. Raises TopicMissing, KafkaException,
        BrokerUnreachable, CheckpointMismatch, FormatMismatch.
        """
        topic = settings.claims_topic
        begin = first_offsets(settings, options, needed, topic_ids, epoch)
        own: dict[str, Any] = {
            "enable.partition.eof": False,
            "fetch.min.bytes": 1,
            "fetch.error.backoff.ms": 20,
            "fetch.wait.max.ms": 500,
        }
        self._consumer = Consumer({**reader_options(options, topic), **own}, logger=client_log(log))
        self._consumer.assign([TopicPartition(topic, partition_of_lane(lane), at) for lane, at in begin.items()])

    def read(self, timeout_s: float) -> list[tuple[int, Claim]]:
        """Return the claims that have come, each with its lane, in order for each lane.

        Waits for the first one up to `timeout_s`. Raises KafkaException, CheckpointMismatch, FormatMismatch; what has
        come before an error comes with no later call.
        """
        first = self._consumer.poll(timeout_s)
        if first is None:
            return []
        found = []
        for message in (first, *self._consumer.consume(_MOST_AT_ONCE, 0)):
            error = message.error()
            if error is None:
                lane = (message.partition() or 0) - partition_of_lane(0)
                found.append((lane, Claim.from_bytes(message.value() or b"")))
            # The login needs no right to the group, which is neither joined nor written to.
            elif not error.retriable() and error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                raise KafkaException(error)
        return found

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def __enter__(self) -> ClaimsReader:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
