"""The job's input lag: the end of each input partition minus the offset that committed batches have read up to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaException

from conf.errors import BrokerUnreachable
from conf.kafka.rights import is_refusal, right_missing
from conf.settings import Settings
from sources.subscriber import Subscriber
from streaming.monitor.held_input import PartitionEnds


@dataclass(frozen=True)
class PartitionLag:
    """The lag of one input partition. Both are offsets of the next record, as in Kafka.

    `held` is the number of offsets behind an open transaction, from `end_offset` on: no committed reader gets them.
    """

    topic: str
    partition: int
    read_offset: int
    end_offset: int
    held: int

    @property
    def lag(self) -> int:
        """The number of unread offsets. Transaction markers count, so it can exceed the number of messages."""
        return max(0, self.end_offset - self.read_offset)


def input_lag(settings: Settings, read: Mapping[str, Mapping[str, int]]) -> list[PartitionLag]:
    """Compare `read`, the offsets of the offset log, with the ends of the topics that a read_committed consumer sees.

    A partition that no batch has read counts from its beginning. Raises BrokerUnreachable, TopicMissing, RightMissing.
    """
    read_to: dict[tuple[str, int], int] = {}
    for topic in settings.topics.input:
        with Subscriber(settings, topic, from_beginning=True) as subscriber:
            own = read.get(topic, {})
            read_to |= {(topic, number): own.get(str(number), at) for number, at in subscriber.start_offsets.items()}
    try:
        ends = PartitionEnds(settings)(read_to)
    except KafkaException as problem:
        error = problem.args[0]
        if is_refusal(error):
            raise right_missing("Describe", "the input topics") from problem
        raise BrokerUnreachable(f"cannot read the end offsets of the input topics ({error.str()})") from problem
    return [PartitionLag(*each, read_to[each], end.committed, end.held) for each, end in ends.items()]
