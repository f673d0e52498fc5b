"""The rates of a shard: its share of the limits for single topics, by the partitions that these have."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaException

from conf.errors import BrokerUnreachable
from sinks.release.context import ReleaseContext
from sinks.release.rate_limiter import RateLimiter, shares
from sinks.release.shard_beat import ShardBeat
from sinks.topics.partitions import partition_counts


class ShardRates:
    """The `limiter` of a shard. Its rates change when the topics with rates of their own do."""

    def __init__(self, context: ReleaseContext, shard: int, beat: ShardBeat) -> None:
        self._settings, self._hold_s = context.settings, context.waits.rates
        self._closed = context.closed
        self._shard, self._shards = shard, context.settings.bucket.shards
        self._beat = beat
        # How many closed topics had been found to take records again when the rates were read.
        self._reopened = 0
        # How many partitions the topics with limited rates had when the rates were read.
        self._partitions: Mapping[str, int] = {}
        self._read_s = 0.0
        self.limiter = RateLimiter(self._settings.release.messages_per_second / self._shards, self._shares())

    def read(self) -> None:
        """Read how many partitions the topics with limited rates have. Raises BrokerUnreachable."""
        retry = self._beat.retry()
        self._reopened = self._closed.reopened
        self._read_s = time.monotonic()
        while limited := self._settings.rates.by_topic:
            try:
                self._partitions = partition_counts(self._settings, limited)
                self.limiter.limit_topics(self._shares())
                return
            except (KafkaException, BrokerUnreachable) as problem:
                retry.wait(problem)

    def read_if_reopened(self) -> None:
        """Read them if a topic takes records again: it may have been recreated with another number of partitions."""
        if self._closed.reopened != self._reopened:
            self.read()

    def read_for(self, messages: pa.Table) -> None:
        """Read them if one of `messages` is for a partition that its topic did not have before.

        It does not do so for each message: a topic that was recreated with fewer partitions never has that partition.
        """
        if time.monotonic() < self._read_s + self._hold_s:
            return
        topics, numbers = messages.column("output_topic"), messages.column("output_partition")
        # `read_if_reopened` looks at closed topics.
        for topic in self._settings.rates.by_topic.keys() - self._closed.now.keys():
            count = self._partitions.get(topic, 0)
            if pc.any(pc.and_(pc.equal(topics, topic), pc.greater_equal(numbers, count))).as_py():
                self.read()
                return

    def _shares(self) -> dict[str, float]:
        return shares(self._settings.rates.by_topic, self._partitions, self._shard, self._shards)
