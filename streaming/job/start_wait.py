"""Waiting for brokers at a start of a job that has run before."""

from __future__ import annotations

import time
from collections.abc import Callable

from conf.errors import BrokerUnreachable, TopicMissing
from conf.kafka.clients import STARTING_S
from conf.settings import Settings
from sinks.internal_topics.broker_retry import BrokerRetry
from streaming.checkpoint.current import has_checkpoint


class StartWait:
    """The tries of a start that finds no broker.

    A job with a checkpoint waits for `kafka.outage_limit`, as it does while it runs. A first start fails at once: its
    settings may be wrong.
    """

    def __init__(self, settings: Settings, on_wait: Callable[[], None] = lambda: None) -> None:
        """`on_wait` is called before each wait."""
        self._settings = settings
        self._on_wait = on_wait
        self._retry = BrokerRetry("the start", settings.kafka.outage_limit)
        self._has_waited = False

    def wait(self, problem: BrokerUnreachable | TopicMissing) -> None:
        """Wait until the next try may begin. Raises `problem` if no try may follow, BrokerUnreachable after the limit.

        A broker that has just come back may not know its topics yet. So one missing topic after a wait is retried.
        """
        if isinstance(problem, TopicMissing):
            if not self._has_waited:
                raise problem
            self._has_waited = False
            time.sleep(STARTING_S)
            return
        if not self._has_waited and not has_checkpoint(self._settings):
            raise problem
        self._has_waited = True
        self._on_wait()
        self._retry.wait(problem)
