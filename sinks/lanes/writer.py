"""The transactional producer of a lane's owner: writes messages to the near log, and the claim on them, atomically."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

import pyarrow as pa

from conf.failpoints import failpoint
from conf.settings import Settings
from sinks.group.parts import PartTaken
from sinks.internal_topics.log_producer import LogProducer, LogRecord, ProducerFenced
from sinks.internal_topics.newest_record import newest_value
from sinks.internal_topics.transactional_ids import transactional_id
from sinks.ready_log.chunk import chunk_record
from state.claims import Claim
from state.lanes import partition_of_lane

# A dead owner's open transaction hides what follows it in each partition of the near log, until the next owner fences
# it, or until this time is over. A transaction takes some milliseconds.
_TRANSACTION_TIMEOUT_MS = 10_000
# These override [kafka]. The producer's timeouts must fit the transaction timeout, and waiting for more records gains
# nothing.
_OWN_OPTIONS = {
    "linger.ms": "0",
    "message.timeout.ms": str(_TRANSACTION_TIMEOUT_MS),
    "socket.timeout.ms": str(_TRANSACTION_TIMEOUT_MS),
    # A claim has the positions of thousands of partitions, and there are up to 50 claims a second.
    "compression.type": "zstd",
}
_NO_CHUNKS: Mapping[int, Sequence[pa.Table]] = MappingProxyType({})


class LaneTaken(PartTaken):
    """Another owner of the lane has fenced this writer."""


class LaneWriter:
    """The producer of the owner of `lane`. `claim` is the lane's newest committed claim, or None.

    After any error it must be replaced by a new writer: whether the transaction is committed is not known, and the new
    writer's `claim` tells. The same holds if `is_spent`: the last commit may have been sent twice
    (`conf.kafka.repeated_commit`). After LaneTaken, a new writer would take the lane from its new owner.
    """

    def __init__(self, settings: Settings, options: Mapping[str, str], lane: int) -> None:
        """Fence the lane's earlier owners, end their open transaction, and read the newest claim.

        `options` are librdkafka's. Raises KafkaException, BrokerUnreachable, RightMissing, TopicMissing,
        CheckpointMismatch, FormatMismatch.
        """
        self.lane = lane
        self._near_topic, self._claims_topic = settings.near_topic, settings.claims_topic
        self._producer = LogProducer(
            options,
            _OWN_OPTIONS,
            transactional_id(settings.application_id, "forward", lane),
            _TRANSACTION_TIMEOUT_MS,
            (self._near_topic, self._claims_topic),
        )
        self._producer.open()
        # Only now: no earlier owner can write a claim any more.
        value = newest_value(options, self._claims_topic, partition_of_lane(lane), after_fencing=True)
        self.claim = None if value is None else Claim.from_bytes(value)

    @property
    def is_spent(self) -> bool:
        """Whether the last commit may have been sent twice."""
        return self._producer.is_spent

    def write(
        self,
        claim: Claim,
        chunks: Mapping[int, Sequence[pa.Table]] = _NO_CHUNKS,
        check_stamp: Callable[[int], None] = lambda stamp_ms: None,
    ) -> None:
        """Write messages by shard, in chunks in delivery order, and the lane's next claim in one transaction.

        `check_stamp` is called with the broker's stamp on the claim (epoch ms) before the commit. If it raises, nothing
        is committed.

        Raises LaneTaken, now and each time after; TopicMissing, TopicMismatch or RightMissing for a topic that is gone,
        has too few partitions or may not be written to; KafkaException for other errors.
        """

        def before_commit() -> None:
            failpoint("near-filled")
            if (stamp_ms := self._producer.stamp_ms) is not None:
                check_stamp(stamp_ms)

        try:
            self._producer.write(self._records(claim, chunks), before_commit)
        except ProducerFenced as problem:
            raise LaneTaken("another owner has taken it") from problem
        self.claim = claim

    def close(self) -> None:
        """Discard the queued records, so that closing the producer does not wait for them."""
        self._producer.close()

    def _records(self, claim: Claim, chunks: Mapping[int, Sequence[pa.Table]]) -> Iterator[LogRecord]:
        for shard, tables in chunks.items():
            for messages in tables:
                value, headers = chunk_record(messages)
                yield LogRecord(self._near_topic, shard, value, headers=headers)
        yield LogRecord(self._claims_topic, partition_of_lane(self.lane), claim.to_bytes())
