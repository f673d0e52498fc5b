"""Input records whose timestamp Spark cannot read: it counts microseconds, and Kafka takes any 64-bit number of ms."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from conf.errors import BrokerUnreachable
from conf.kafka.options import librdkafka_options
from conf.settings import Settings

# The last one that Spark can read: in the year 294,247.
LAST_MS = ((1 << 63) - 1) // 1000
_TIMEOUT_S = 60.0
_POLL_MESSAGES = 10_000
_POLL_S = 0.5

_Offsets = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Unreadable:
    """One input record, and the timestamp (ms) that it has."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}: offset {self.offset} is stamped {self.timestamp_ms} ms"


def unreadable_records(settings: Settings, starts: _Offsets, ends: _Offsets) -> list[Unreadable]:
    """Look through the records from `starts` up to `ends`; a partition that `starts` does not name begins at 0.

    Raises BrokerUnreachable if they cannot be read within a minute.
    """
    left = {
        (topic, int(number)): end
        for topic, offsets in ends.items()
        for number, end in offsets.items()
        if starts.get(topic, {}).get(number, 0) < end
    }
    consumer = Consumer(
        {
            **librdkafka_options(settings.kafka),
            "group.id": f"{settings.application_id}-stamps",
            "enable.auto.commit": "false",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": "true",
            "log_level": "2",
        }
    )
    found = []
    deadline_s = time.monotonic() + _TIMEOUT_S
    try:
        consumer.assign([TopicPartition(*place, starts.get(place[0], {}).get(str(place[1]), 0)) for place in left])
        while left:
            if time.monotonic() > deadline_s:
                raise BrokerUnreachable(f"{', '.join(sorted({topic for topic, _ in left}))} cannot be read to the end")
            for message in consumer.consume(_POLL_MESSAGES, _POLL_S):
                place = (message.topic() or "", message.partition() or 0)
                offset, error = message.offset() or 0, message.error()
                if error is not None and error.name() != "_PARTITION_EOF":
                    # A login need not be allowed the group: it is neither joined nor written to.
                    if error.retriable() or error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                        continue
                    raise BrokerUnreachable(f"{place[0]}/{place[1]} cannot be read: {error.str()}")
                if error is None and (stamp := message.timestamp()[1]) > LAST_MS and offset < left.get(place, 0):
                    found.append(Unreadable(*place, offset, stamp))
                # The end of a partition is told with the offset that comes next.
                if place in left and offset + (error is None) >= left[place]:
                    del left[place]
    except KafkaException as problem:
        raise BrokerUnreachable(f"the input cannot be read: {problem}") from problem
    finally:
        consumer.close()
    return found
