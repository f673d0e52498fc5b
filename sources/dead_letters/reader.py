"""Reading the dead-letter topic up to its present end, and how far it is resent, which Kafka stores for a group."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from conf.errors import BrokerUnreachable
from conf.kafka.client_log import client_log
from conf.kafka.options import librdkafka_options
from conf.kafka.read_up_to import read_up_to
from conf.settings import Settings
from sources.dead_letters.position import ResendPosition
from sources.subscriber import Received, received

_TIMEOUT_S = 30.0
_RETRY_S = 0.5
_COORDINATOR = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)
log = logging.getLogger(__name__)


def resend_group(application_id: str) -> str:
    """Return the name of the consumer group that stores, as its offsets, how far the dead letters are resent."""
    return f"{application_id}-resend"


class DeadLetterReader:
    """A consumer of some partitions of the dead-letter topic. It joins no group. Close it after use."""

    def __init__(self, settings: Settings, partitions: range) -> None:
        self._topic = settings.topics.dead_letter
        self._partitions = partitions
        self._servers = settings.kafka.bootstrap_servers
        options = {
            "log_level": "3",
            **librdkafka_options(settings.kafka),
            "group.id": resend_group(settings.application_id),
            "isolation.level": "read_committed",
            "enable.auto.commit": "false",
            "enable.partition.eof": "true",
            # Applies when retention deletes letters before they are read.
            "auto.offset.reset": "earliest",
        }
        self._consumer = Consumer(options, logger=client_log(log))

    def positions(self) -> dict[int, ResendPosition]:
        """Return how far each partition is resent. In a partition without a position, nothing is.

        Raises BrokerUnreachable, PositionInvalid.
        """
        committed = self._committed(time.monotonic() + _TIMEOUT_S)
        return {
            each.partition: ResendPosition.from_text(each.offset, each.metadata or "")
            if each.offset >= 0
            else ResendPosition()
            for each in committed
        }

    def records(self, starts: Mapping[int, int]) -> Iterator[Received]:
        """Yield the committed records of each partition from its start up to its present end.

        Raises BrokerUnreachable, RightMissing.
        """
        begins = {(self._topic, number): start for number, start in starts.items()}
        try:
            ends = {place: self._end(*place) for place in begins}
            for message in read_up_to(self._consumer, begins, ends, _TIMEOUT_S):
                yield received(message, int(time.time() * 1000))
        except KafkaException as problem:
            raise self._unreachable(problem.args[0]) from problem

    def group(self) -> Any:
        """Return the group metadata with which a transaction commits positions."""
        return self._consumer.consumer_group_metadata()

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close()

    def _committed(self, deadline_s: float) -> list[TopicPartition]:
        partitions = [TopicPartition(self._topic, number) for number in self._partitions]
        while True:
            try:
                committed: list[TopicPartition] = self._consumer.committed(partitions, _TIMEOUT_S)
                return committed
            except KafkaException as problem:
                # When a group is first used, its coordinator is still starting.
                error = problem.args[0]
                starting = error.retriable() or error.code() in _COORDINATOR
                if not starting or time.monotonic() > deadline_s:
                    raise self._unreachable(error) from problem
                time.sleep(_RETRY_S)

    def _end(self, topic: str, number: int) -> int:
        _, high = self._consumer.get_watermark_offsets(TopicPartition(topic, number), _TIMEOUT_S, cached=False)
        return int(high)

    def _unreachable(self, error: KafkaError) -> BrokerUnreachable:
        return BrokerUnreachable(f"could not read {self._topic} at {self._servers}: {error.str()}")
