"""From which offsets of the input topics on the job knows what became of each message.

The bounds are a record in the first partition of the recalled topic (`state.recalled`). They move on in the transaction
that deletes the records of what is forgotten.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.internal_topics.log_producer import LogProducer, LogRecord
from sinks.internal_topics.newest_record import newest_value
from sinks.internal_topics.transactional_ids import transactional_id
from state.cancel import MessageId
from state.checkpoint.origin import Offsets

_KEY = b"known-from"
_PARTITION = 0


class KnownFrom:
    """The bounds of what the job knows: of no message below the offset of its input partition is it known for certain
    what became of it.

    Whoever moves them on fences the one before, and reads its bounds then: they never go back.
    """

    def __init__(self, settings: Settings) -> None:
        """Fence earlier writers, and read the bounds.

        Raises KafkaException, BrokerUnreachable, RightMissing, TopicMissing.
        """
        self._topic = settings.recalled_topic
        options = librdkafka_options(settings.kafka)
        self._producer = LogProducer(
            options,
            {},
            transactional_id(settings.application_id, "recalled"),
            settings.release.transaction_timeout,
            (self._topic,),
        )
        self._producer.open()
        value = newest_value(options, self._topic, _PARTITION, after_fencing=True)
        # None if nobody has written any: the topic is new.
        self.bounds: Offsets | None = None if value is None else json.loads(value)

    def move(self, bounds: Offsets, forgotten: Iterable[tuple[int, MessageId]] = ()) -> None:
        """Write other bounds, and delete the records of what is `forgotten`: the partition and the id of each message.

        Raises what `LogProducer.write` does.
        """
        self._producer.write(self._records(bounds, forgotten))
        self.bounds = bounds

    def close(self) -> None:
        """Discard the queued records, so that closing the producer does not wait for them."""
        self._producer.close()

    def _records(self, bounds: Offsets, forgotten: Iterable[tuple[int, MessageId]]) -> Iterator[LogRecord]:
        yield LogRecord(self._topic, _PARTITION, json.dumps(bounds).encode(), _KEY)
        for partition, identity in forgotten:
            yield LogRecord(self._topic, partition, None, "/".join(map(str, identity)).encode())
