"""Waiting for brokers that do not answer, with a log line for each try, up to a limit."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from confluent_kafka import KafkaException

from conf.errors import BrokerUnreachable, DeliveryFailed
from conf.kafka.error_codes import is_outage

log = logging.getLogger(__name__)

_PAUSE_S = 1.0


class BrokerRetry:
    """The retries of `who` during one outage, which starts with the first problem and may last `limit_ms`.

    It is over at once when `stopping` says so. `on_wait` is called before each pause.
    """

    def __init__(
        self,
        who: str,
        limit_ms: int,
        stopping: Callable[[], bool] = lambda: False,
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        self._who = who
        self._limit_s = limit_ms / 1000
        self._began_s: float | None = None
        self._stopping = stopping
        self._on_wait = on_wait

    def end(self) -> None:
        """End the outage: the next problem begins another one."""
        self._began_s = None

    def wait(self, problem: KafkaException | BrokerUnreachable) -> None:
        """Log the problem, and pause before the next try.

        Raises BrokerUnreachable once the limit is over, and DeliveryFailed at once for a problem that is not an outage.
        """
        if isinstance(problem, KafkaException) and not is_outage(problem.args[0]):
            raise DeliveryFailed(
                f"{self._who}: {problem}. Nothing is lost. Fix what the broker reports, and start the job again"
            ) from problem
        now_s = time.monotonic()
        self._began_s = self._began_s or now_s
        left_s = self._limit_s - (now_s - self._began_s)
        if left_s <= 0 or self._stopping():
            raise BrokerUnreachable(
                f"{self._who}: no broker answered for {self._limit_s:g} s (kafka.outage_limit): {problem}. "
                "Nothing is lost. Check the brokers, and start the job again"
            ) from problem
        self._on_wait()
        log.warning("%s: Kafka does not answer; retrying for %.0f s more: %s", self._who, left_s, problem)
        time.sleep(min(_PAUSE_S, left_s))
