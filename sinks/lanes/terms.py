"""The terms of forwarders, in the first partition of the claims topic: the newest record counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from confluent_kafka import KafkaError, KafkaException

from conf.errors import BrokerUnreachable, DeliveryFailed, TopicMismatch
from conf.kafka.error_codes import is_outage
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.internal_topics.log_producer import LogProducer, LogRecord, ProducerFenced
from sinks.internal_topics.newest_record import newest_value
from sinks.internal_topics.transactional_ids import transactional_id
from sinks.topics.record_protection import READY_MAX_BYTES
from state.claims import Terms
from state.lanes import TERMS_PARTITION


def read_terms(settings: Settings, options: Mapping[str, str]) -> Terms | None:
    """Return the newest terms, or None if there never were any. `options` are librdkafka's.

    Raises BrokerUnreachable, TopicMissing, RightMissing, CheckpointMismatch, FormatMismatch.
    """
    value = newest_value(options, settings.claims_topic, TERMS_PARTITION)
    return None if value is None else Terms.from_bytes(value)


def fence_terms(settings: Settings) -> None:
    """Let no earlier start write the terms that it is about to write, and end its open transaction.

    Raises DeliveryFailed, BrokerUnreachable, RightMissing.
    """
    producer = _producer(settings)
    try:
        producer.open()
    except (KafkaException, ProducerFenced) as problem:
        raise failure_of(problem, "could not fence an earlier writer of the terms of forwarders") from problem
    finally:
        producer.close()


def write_terms(settings: Settings, terms: Terms, check_lease: Callable[[], None]) -> None:
    """Write the terms, and return when everyone who reads the newest ones finds these.

    `check_lease` raises if this process does not hold the lease any more: only its holder writes terms. Raises
    DeliveryFailed, BrokerUnreachable, TopicMissing, RightMissing; TopicMismatch also if the topic has no room for them.
    """
    topic, producer, value = settings.claims_topic, _producer(settings), terms.to_bytes()
    try:
        producer.open()
        # Only now: this process may have hung until here. Who takes the lease after this check writes terms too, and
        # fences this producer.
        check_lease()
        producer.write([LogRecord(topic, TERMS_PARTITION, value)])
    except (KafkaException, ProducerFenced) as problem:
        if isinstance(problem, KafkaException) and problem.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE:
            raise TopicMismatch(
                f"max.message.bytes of topic {topic} is too small for the terms of forwarders ({len(value)} bytes). "
                f"They name each output topic. Set it to {READY_MAX_BYTES} (kafka-configs.sh --alter)"
            ) from problem
        raise failure_of(problem, f"could not write the terms of forwarders to {topic}") from problem
    finally:
        producer.close()
    # A commit is done before it is seen. The read ends only where no transaction is open.
    newest_value(librdkafka_options(settings.kafka), topic, TERMS_PARTITION, after_fencing=True)


def _producer(settings: Settings) -> LogProducer:
    own_id, topics = transactional_id(settings.application_id, "terms"), (settings.claims_topic,)
    return LogProducer(librdkafka_options(settings.kafka), {}, own_id, settings.release.transaction_timeout, topics)


def failure_of(problem: KafkaException | ProducerFenced, what: str) -> BrokerUnreachable | DeliveryFailed:
    """Return the error for `what` could not be done: BrokerUnreachable in an outage, after which it is tried again."""
    is_away = isinstance(problem, KafkaException) and is_outage(problem.args[0])
    return (BrokerUnreachable if is_away else DeliveryFailed)(f"{what}: {problem}")
