"""The job's input lag: the end of each input partition minus the offset that committed batches have read up to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from conf.settings import Settings
from sources.subscriber import Subscriber


@dataclass(frozen=True)
class PartitionLag:
    """The lag of one input partition. Both offsets are those of the next record, as in Kafka."""

    topic: str
    partition: int
    read_offset: int
    end_offset: int

    @property
    def lag(self) -> int:
        """The number of unread offsets. Transaction markers count, so it can exceed the number of messages."""
        return max(0, self.end_offset - self.read_offset)


def input_lag(settings: Settings, read: Mapping[str, Mapping[str, int]]) -> list[PartitionLag]:
    """Compare `read`, the offsets of the offset log, with the ends of the topics that a read_committed consumer sees.

    A partition that no batch has read counts from its beginning. Raises BrokerUnreachable, TopicMissing.
    """
    lags = []
    for topic in settings.topics.input:
        read_to = {int(number): offset for number, offset in read.get(topic, {}).items()}
        ends = _offsets(settings, topic, from_beginning=False)
        if not set(ends) <= set(read_to):
            read_to = _offsets(settings, topic, from_beginning=True) | read_to
        lags += [PartitionLag(topic, number, read_to[number], end) for number, end in ends.items()]
    return lags


def _offsets(settings: Settings, topic: str, from_beginning: bool) -> dict[int, int]:
    with Subscriber(settings, topic, from_beginning) as subscriber:
        return dict(subscriber.start_offsets)
