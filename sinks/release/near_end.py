"""Where the near log of a shard ends when requests have come: they wait until it is taken in up to there.

A reader of committed records does not see that end: an open transaction of one forwarder hides records that another one
has committed behind it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Future

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec

from conf.kafka.client_log import client_log
from conf.kafka.rights import right_named
from conf.settings import Settings
from sinks.internal_topics.position import Log
from sinks.release.incoming import Incoming

log = logging.getLogger(__name__)

_TIMEOUT_S = 10.0


class NearEnd:
    """Asks the broker whenever requests have come, without waiting for the answer: other messages continue."""

    def __init__(self, settings: Settings, options: Mapping[str, str], shard: int) -> None:
        """`options` are librdkafka's. It connects when requests come."""
        self._partition = TopicPartition(settings.near_topic, shard)
        self._options = options
        self._client: AdminClient | None = None
        self._answer: Future[ListOffsetsResultInfo] | None = None
        # All records of the ready log below this offset had been read when the broker was asked.
        self._asked_below = 0

    def look(self, incoming: Incoming) -> None:
        """Report the end in the broker's answer to `incoming`, or ask the broker for it if `incoming` needs it.

        Raises KafkaException, after which it may be called again, and RightMissing.
        """
        if self._answer is None and incoming.needs_near_end:
            self._ask(incoming.ends[Log.READY])
        elif self._answer is not None and self._answer.done():
            answer, self._answer = self._answer, None
            with right_named("Describe", f"topic {self._partition.topic}"):
                incoming.learn_near_end(answer.result().offset, self._asked_below)

    def _ask(self, asked_below: int) -> None:
        if self._client is None:
            self._client = AdminClient(dict(self._options), logger=client_log(log))
        # It serves the client's callbacks: a token that has expired since the last call is fetched again.
        self._client.poll(0)
        latest = {self._partition: OffsetSpec.latest()}  # type: ignore[no-untyped-call]
        answers = self._client.list_offsets(
            latest, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=_TIMEOUT_S
        )
        self._answer, self._asked_below = answers[self._partition], asked_below
