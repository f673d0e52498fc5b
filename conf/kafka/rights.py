"""Rights that the login of [kafka] lacks. The brokers' own words name neither the right nor, mostly, the resource."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException, Producer

from conf.errors import RightMissing

_REFUSALS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


def right_missing(right: str, on: str) -> RightMissing:
    """Return the error for the operation `right` of Kafka's access control on a resource, such as "topic orders"."""
    return RightMissing(f"the login of [kafka] lacks the right {right} on the {on}. Nothing is lost")


def write_barred(place: str) -> RightMissing:
    """Return the error for a topic, or a partition of it, that a running job may not write to."""
    return RightMissing(
        f"the login of [kafka] lacks the right Write on {place}. Grant it and start the job again. Nothing is lost"
    )


def is_refusal(error: KafkaError) -> bool:
    """Return whether a broker says that the login lacks a right."""
    return error.code() in _REFUSALS


@contextmanager
def right_named(right: str, on: str) -> Iterator[None]:
    """Raise RightMissing in place of a KafkaException that says that the login lacks a right: `right` on `on`."""
    try:
        yield
    except KafkaException as problem:
        if is_refusal(problem.args[0]):
            raise right_missing(right, on) from problem
        raise


def init_transactions(producer: Producer, transactional_id: str, timeout_s: float) -> None:
    """Fence earlier producers of `transactional_id`, the one of `producer`. Raises KafkaException, RightMissing."""
    with right_named("Write", f"transactional id {transactional_id}"):
        producer.init_transactions(timeout_s)
