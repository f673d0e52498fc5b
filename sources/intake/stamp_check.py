"""Finding input records with a timestamp that Spark cannot read: Kafka accepts any 64-bit number of milliseconds."""

from __future__ import annotations

import logging
import time
from contextlib import closing
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException

from conf.errors import BrokerUnreachable
from conf.kafka.client_log import client_log
from conf.kafka.options import librdkafka_options
from conf.kafka.read_up_to import read_up_to
from conf.settings import Settings
from state.checkpoint.origin import Offsets, by_partition
from state.message import LAST_MS

log = logging.getLogger(__name__)

_TIMEOUT_S = 60.0
# More finds would not tell more: a publisher that stamps in nanoseconds fills whole batches with such records.
MOST_FOUND = 1_000


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
    starts: Offsets,
    ends: Offsets,
    most_found: int = MOST_FOUND,
    timeout_s: float = _TIMEOUT_S,
) -> list[Unreadable]:
    """Return the unreadable records from `starts` up to `ends`. A partition that `starts` lacks begins at 0.

    It stops after `most_found` of them, and after about `timeout_s`. Raises BrokerUnreachable if it has found no such
    record by then and has not read all records, or if the range cannot be read. Raises RightMissing.
    """
    begins = {place: starts.get(place[0], {}).get(str(place[1]), 0) for place in by_partition(ends)}
    options = {
        **librdkafka_options(settings.kafka),
        "group.id": f"{settings.application_id}-stamps",
        "enable.auto.commit": "false",
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        "enable.partition.eof": "true",
        "log_level": "2",
    }
    unreadable: list[Unreadable] = []
    deadline_s = time.monotonic() + timeout_s
    try:
        with closing(Consumer(options, logger=client_log(log))) as consumer:
            for message in read_up_to(consumer, begins, by_partition(ends), timeout_s):
                if abs(stamp := message.timestamp()[1]) > LAST_MS:
                    place = message.topic() or "", message.partition() or 0, message.offset() or 0
                    unreadable.append(Unreadable(*place, stamp))
                    if len(unreadable) == most_found:
                        break
                if time.monotonic() > deadline_s:
                    raise BrokerUnreachable(f"{message.topic()} cannot be read to the end within {timeout_s:g} s")
    except BrokerUnreachable:
        if not unreadable:
            raise
    except KafkaException as problem:
        raise BrokerUnreachable(f"the input cannot be read: {problem}") from problem
    return unreadable
