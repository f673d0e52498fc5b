"""The scope of an error of Kafka or librdkafka: all brokers, the client itself, or only the request."""

from __future__ import annotations

from confluent_kafka import KafkaError

# Errors that end when the brokers are back, or with a new client. librdkafka calls most of these retriable, but not
# once they have failed a transaction. Brokers forget the id of a producer that was idle for a week.
_OUTAGE = {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._DESTROY_BROKER,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._STATE,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.CONCURRENT_TRANSACTIONS,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.NOT_COORDINATOR,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.UNKNOWN_PRODUCER_ID,
}

# Errors of a producer that another producer has fenced. The last one replaces the others if a record is on its way
# while the next producer aborts the transaction.
FENCED = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_TXN_STATE,
    }
)
# Each call of a producer that was fenced once fails by the client's own code.
FENCED_ONCE = FENCED | {KafkaError._FATAL}


def is_of_client(error: KafkaError) -> bool:
    """Return whether librdkafka itself has found `error`: its own codes are below UNKNOWN, the lowest of Kafka's."""
    return error.code() < KafkaError.UNKNOWN


def is_transient_read(error: KafkaError) -> bool:
    """Return whether a reader that is assigned its partitions may ignore `error`.

    It passes, or it says that the login has no right to the group, which is neither joined nor written to.
    """
    return error.retriable() or error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED


def is_outage(error: KafkaError) -> bool:
    """Return whether `error` ends when the brokers are back, or with a new client."""
    return error.code() in _OUTAGE or (error.retriable() and not error.fatal())
