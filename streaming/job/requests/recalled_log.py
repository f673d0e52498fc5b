"""Reading the recalled topic: its first offsets and ends, and the records in between."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterable, Mapping

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaException, Message, TopicPartition

from conf.kafka.client_log import client_log
from conf.kafka.options import librdkafka_options
from conf.kafka.read_up_to import read_up_to
from conf.settings import Settings
from sinks.internal_topics.newest_record import reader_options

log = logging.getLogger(__name__)

_TIMEOUT_S = 10.0
_PAUSE_S = 0.01


class RecalledLog:
    """The recalled topic of an application. Not thread-safe.

    Each method may raise KafkaException.
    """

    def __init__(self, settings: Settings) -> None:
        """Open nothing yet."""
        self._topic = settings.recalled_topic
        self._options = reader_options(librdkafka_options(settings.kafka), self._topic)
        self._consumer: Consumer | None = None
        # Knows the ends of the topic including uncommitted records. It reads nothing.
        self._reader_of_all: Consumer | None = None

    def bounds(self, numbers: Iterable[int], wait_s: float) -> tuple[dict[int, tuple[int, int]], bool]:
        """Return the first offset and the end of each partition, for a reader of committed records.

        The end is before the first transaction that is still open. Waits up to `wait_s` for such transactions. Also
        returns whether all of them have ended.
        """
        until_s = time.monotonic() + wait_s
        # Not with an admin client, which keeps using the leader epochs that it knows. After a broker has restarted,
        # brokers refuse these epochs until the client refreshes its metadata, after many minutes.
        of_all = self._reader_of_all = self._reader_of_all or self._made("read_uncommitted")
        consumer, own = self._opened(), [*numbers]
        written = self._offsets(of_all, own, OFFSET_END)
        firsts = self._offsets(consumer, own, OFFSET_BEGINNING)
        while True:
            ends = self._offsets(consumer, own, OFFSET_END)
            has_all = all(ends[number] >= written[number] for number in own)
            if has_all or time.monotonic() > until_s:
                return {number: (firsts[number], ends[number]) for number in own}, has_all
            time.sleep(_PAUSE_S)

    def read(self, begins: Mapping[int, int], ends: Mapping[int, int]) -> Generator[Message, None, None]:
        """Yield the records of the partitions in `ends`, from the offsets `begins` up to `ends`.

        Close it before the next one. Raises BrokerUnreachable, RightMissing.
        """
        consumer = self._opened()
        from_places, to_places = ({(self._topic, number): each[number] for number in ends} for each in (begins, ends))
        try:
            yield from read_up_to(consumer, from_places, to_places, _TIMEOUT_S)
        finally:
            consumer.unassign()

    def close(self) -> None:
        """Close the consumers."""
        for consumer in (self._consumer, self._reader_of_all):
            if consumer is not None:
                consumer.close()

    def _offsets(self, consumer: Consumer, numbers: Iterable[int], which: int) -> dict[int, int]:
        """Return the offset of each partition that `which` stands for, by one request to each broker."""
        # Kafka takes these two in place of a time.
        asked = [TopicPartition(self._topic, number, which) for number in numbers]
        found = {}
        for each in consumer.offsets_for_times(asked, _TIMEOUT_S):
            if each.error is not None:
                raise KafkaException(each.error)
            found[each.partition] = each.offset
        return found

    def _opened(self) -> Consumer:
        self._consumer = self._consumer or self._made("read_committed")
        return self._consumer

    def _made(self, isolation: str) -> Consumer:
        return Consumer({**self._options, "isolation.level": isolation}, logger=client_log(log))
