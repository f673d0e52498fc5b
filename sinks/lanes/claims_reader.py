"""Follows the claims of all lanes, as the job does, which waits for what they decide."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from conf.kafka.client_log import client_log
from conf.kafka.error_codes import is_transient_read
from conf.kafka.read_up_to import read_up_to
from conf.settings import Settings
from sinks.internal_topics.newest_record import bounds, reader_options
from sinks.lanes.claims_search import claim_in, first_offsets
from state.checkpoint.origin import Offsets
from state.claims import Claim
from state.lanes import partition_of_lane

log = logging.getLogger(__name__)

_MOST_AT_ONCE = 500
# For how long nothing may come before the ends of the lanes.
_TIMEOUT_S = 30.0


class ClaimsReader:
    """Reads the claims that may decide offsets from `needed` on, and all later claims. Not thread-safe.

    It reads all lanes that there ever were, since partitions may have been in other lanes. The existing claims of all
    lanes come first (`read_there`): the claims of a partition's former lane add to the decisions of its present lane.
    A lane that has claims begins with one that decides nothing at or above `needed`, if it has one.
    """

    def __init__(
        self, settings: Settings, options: Mapping[str, str], needed: Offsets, topic_ids: Mapping[str, str], epoch: int
    ) -> None:
        """Find where to begin in each lane.

        `options` are librdkafka's, `needed` the offset of each partition from which on somebody needs what claims of
        `epoch` decide, and `topic_ids` the present ids of these topics. Raises TopicMissing, KafkaException,
        BrokerUnreachable, CheckpointMismatch, FormatMismatch.
        """
        self._topic = settings.claims_topic
        self._begin = first_offsets(settings, options, needed, topic_ids, epoch)
        # The claims that came before an error of a partition. `read` continues after them.
        self._read: list[tuple[int, Claim]] = []
        self._options = reader_options(options, self._topic)
        own: dict[str, Any] = {
            "enable.partition.eof": False,
            "fetch.min.bytes": 1,
            "fetch.error.backoff.ms": 20,
            "fetch.wait.max.ms": 500,
        }
        self._consumer = Consumer({**self._options, **own}, logger=client_log(log))

    def read_there(self) -> Iterator[tuple[int, Claim]]:
        """Yield all claims that are there, each with its lane, in order for each lane. To be read to the end, once.

        It keeps none: forwarders may have written millions while no job ran. Raises KafkaException, BrokerUnreachable,
        RightMissing, CheckpointMismatch, FormatMismatch.
        """
        with closing(Consumer(self._options, logger=client_log(log))) as consumer:
            deadline_s = time.monotonic() + _TIMEOUT_S
            begins = {(self._topic, partition_of_lane(lane)): offset for lane, offset in self._begin.items()}
            ends = {place: bounds(consumer, TopicPartition(*place), deadline_s)[1] for place in begins}
            for message in read_up_to(consumer, begins, ends, _TIMEOUT_S):
                yield _lane(message), claim_in(message)
        self._consumer.assign([TopicPartition(*place, end) for place, end in ends.items()])

    def read(self, timeout_s: float) -> list[tuple[int, Claim]]:
        """Return the claims that have come since, each with its lane, in order for each lane.

        Waits for the first one up to `timeout_s`. Raises KafkaException, and returns what has come with the next call;
        CheckpointMismatch, FormatMismatch.
        """
        if not self._read and (first := self._consumer.poll(timeout_s)) is not None:
            failure: KafkaException | None = None
            for message in (first, *self._consumer.consume(_MOST_AT_ONCE, 0)):
                try:
                    if _is_claim(message):
                        self._read.append((_lane(message), claim_in(message)))
                except KafkaException as problem:
                    failure = failure or problem
            if failure is not None:
                raise failure
        found, self._read = self._read, []
        return found

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()


def _is_claim(message: Message) -> bool:
    """Return False for an error that passes. Raises KafkaException for others."""
    error = message.error()
    if error is not None and not is_transient_read(error):
        raise KafkaException(error)
    return error is None


def _lane(message: Message) -> int:
    return (message.partition() or 0) - partition_of_lane(0)
