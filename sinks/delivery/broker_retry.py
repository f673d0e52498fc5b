"""Waiting for brokers that do not answer: with a line in the log for each try, and an end."""

from __future__ import annotations

import logging
import time

from confluent_kafka import KafkaError, KafkaException

from conf.errors import BrokerUnreachable, DeliveryFailed

log = logging.getLogger(__name__)

_PAUSE_S = 1.0
# What passes when the brokers are back. The client calls most of these retriable, but not once a transaction has
# failed by them.
_ABSENCE = {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.CONCURRENT_TRANSACTIONS,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.NOT_COORDINATOR,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.REQUEST_TIMED_OUT,
}


class BrokerRetry:
    """One outage as `who` meets it, from the first problem on. `limit_ms` is how long it is waited for."""

    def __init__(self, who: str, limit_ms: int) -> None:
        self._who = who
        self._limit_s = limit_ms / 1000
        self._began_s: float | None = None

    def wait(self, problem: KafkaException | BrokerUnreachable) -> None:
        """Say what is waited for, and pause before the next try.

        Raises BrokerUnreachable when the limit is over, and DeliveryFailed at once for a problem that is no outage.
        """
        if isinstance(problem, KafkaException) and not _is_absence(problem.args[0]):
            raise DeliveryFailed(
                f"{self._who}: {problem}. Nothing is lost: mend what the broker says, and start the job again"
            ) from problem
        now_s = time.monotonic()
        self._began_s = self._began_s or now_s
        left_s = self._limit_s - (now_s - self._began_s)
        if left_s <= 0:
            raise BrokerUnreachable(
                f"{self._who}: no broker answered for {self._limit_s:g} s (kafka.outage_limit): {problem}. Nothing is "
                "lost: check the brokers, and start the job again"
            ) from problem
        log.warning("%s: Kafka does not answer, tried for %.0f s more: %s", self._who, left_s, problem)
        time.sleep(min(_PAUSE_S, left_s))


def _is_absence(error: KafkaError) -> bool:
    return error.code() in _ABSENCE or (error.retriable() and not error.fatal())
