"""Whether the records that a batch has read come from the input topics that the job knows."""

from __future__ import annotations

from confluent_kafka import KafkaException

from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.internal_topics.broker_retry import BrokerRetry
from sinks.topics.topic_ids import TopicIds
from state.checkpoint.input_ids import recreated
from state.checkpoint.progress import BatchSpan
from streaming.checkpoint.recreated_inputs import recreated_error


class InputWatch:
    """Compares Kafka's ids of the input topics with the known ones, after a batch has read them.

    Spark does not notice that a topic was deleted and created again, once the new one has as many records.
    """

    def __init__(self, settings: Settings) -> None:
        self._limit_ms = settings.kafka.outage_limit
        self._ids = TopicIds(librdkafka_options(settings.kafka))

    def check(self, batch: BatchSpan) -> None:
        """Raise CheckpointMismatch if `batch` has read records of a topic that is not the one that the job knows.

        A topic that does not exist now has not been created again. Waits through an outage; raises BrokerUnreachable
        after `kafka.outage_limit`.
        """
        topics = batch.read_by_topic
        if not topics:
            return
        retry = BrokerRetry(f"batch {batch.batch_id}, ids of the input topics", self._limit_ms)
        while True:
            try:
                present = self._ids.of(topics)
                break
            except KafkaException as problem:
                retry.wait(problem)
        if changed := recreated(batch.input_ids, present):
            raise recreated_error(changed)
