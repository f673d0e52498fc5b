"""Finding input records with a timestamp that Spark cannot read: Kafka accepts any 64-bit number of milliseconds."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, TopicPartition

from conf.errors import BrokerUnreachable
from conf.kafka.client_log import client_log
from conf.kafka.error_codes import is_transient_read
from conf.kafka.options import librdkafka_options
from conf.kafka.rights import is_refusal, right_missing
from conf.settings import Settings
from state.message import LAST_MS

log = logging.getLogger(__name__)

_TIMEOUT_S = 60.0
_POLL_MESSAGES = 10_000
_POLL_S = 0.5
# More finds would not tell more: a publisher that stamps in nanoseconds fills whole batches with such records.
MOST_FOUND = 1_000

_Offsets = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Unreadable:
    """An input record with its timestamp in ms."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}: offset {self.offset} has timestamp {self.timestamp_ms} ms"


def unreadable_records(
    settings: Settings,
    starts: _Offsets,
    ends: _Offsets,
    most_found: int = MOST_FOUND,
    timeout_s: float = _TIMEOUT_S,
) -> list[Unreadable]:
    """Return the unreadable records from `starts` up to `ends`. A partition that `starts` lacks begins at 0.

    It stops after `most_found` of them, and after `timeout_s`. Raises BrokerUnreachable if it has found no such record
    by then and has not read all records, or if the range cannot be read. Raises RightMissing.
    """
    unread = {
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
        },
        logger=client_log(log),
    )
    unreadable: list[Unreadable] = []
    deadline_s = time.monotonic() + timeout_s
    try:
        consumer.assign([TopicPartition(*place, starts.get(place[0], {}).get(str(place[1]), 0)) for place in unread])
        while unread and len(unreadable) < most_found:
            if time.monotonic() > deadline_s and unreadable:
                break
            if time.monotonic() > deadline_s:
                raise BrokerUnreachable(
                    f"{', '.join(sorted({topic for topic, _ in unread}))} cannot be read to the end"
                )
            for message in consumer.consume(_POLL_MESSAGES, _POLL_S):
                place = (message.topic() or "", message.partition() or 0)
                offset, error = message.offset() or 0, message.error()
                if error is not None and error.name() != "_PARTITION_EOF":
                    if is_transient_read(error):
                        continue
                    if is_refusal(error):
                        raise right_missing("Read", f"topic {place[0]}")
                    raise BrokerUnreachable(f"{place[0]}/{place[1]} cannot be read: {error.str()}")
                if error is None and abs(stamp := message.timestamp()[1]) > LAST_MS and offset < unread.get(place, 0):
                    unreadable.append(Unreadable(*place, offset, stamp))
                # The end-of-partition event has the offset of the next record.
                if place in unread and offset + (error is None) >= unread[place]:
                    del unread[place]
    except KafkaException as problem:
        raise BrokerUnreachable(f"the input cannot be read: {problem}") from problem
    finally:
        consumer.close()
    return unreadable[:most_found]
