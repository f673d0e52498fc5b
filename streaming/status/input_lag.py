"""How far the job is behind its input topics: what is there, less what its committed batches have read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from conf.settings import Settings
from sources.subscriber import Subscriber


@dataclass(frozen=True)
class PartitionLag:
    """One input partition. Both offsets are of the next record, as Kafka counts them."""

    topic: str
    partition: int
    read_offset: int
    end_offset: int

    @property
    def lag(self) -> int:
        """Offsets not yet read; a little more than messages where publishers use transactions."""
        return max(0, self.end_offset - self.read_offset)


def input_lag(settings: Settings, read: Mapping[str, Mapping[str, int]]) -> list[PartitionLag]:
    """Compare the topics' ends, as a reader of committed records sees them, with the offset log's `read`.

    A partition that no batch has read counts from its beginning. Raises BrokerUnreachable, TopicMissing.
    """
    lags = []
    for topic in settings.topics.input:
        done = {int(number): offset for number, offset in read.get(topic, {}).items()}
        ends = _offsets(settings, topic, from_beginning=False)
        if not set(ends) <= set(done):
            done = _offsets(settings, topic, from_beginning=True) | done
        lags += [PartitionLag(topic, number, done[number], end) for number, end in ends.items()]
    return lags


def _offsets(settings: Settings, topic: str, from_beginning: bool) -> dict[int, int]:
    with Subscriber(settings, topic, from_beginning) as subscriber:
        return dict(subscriber.start_offsets)
