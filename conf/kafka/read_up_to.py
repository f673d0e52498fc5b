"""Reading the records of partitions up to known ends, as far as they are committed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from conf.errors import BrokerUnreachable
from conf.kafka.error_codes import is_transient_read
from conf.kafka.rights import is_refusal, right_missing

# A topic, and the number of a partition.
Place = tuple[str, int]

_POLL_S = 0.5
_AT_ONCE = 500


def read_up_to(
    consumer: Consumer, begins: Mapping[Place, int], ends: Mapping[Place, int], patience_s: float
) -> Iterator[Message]:
    """Yield the records of each partition in `ends` from its offset in `begins` up to its end, which is exclusive.

    Assigns the partitions to `consumer`, which must have the option `enable.partition.eof`: there may be no record just
    before an end, but a marker of a transaction. Raises BrokerUnreachable if nothing comes for `patience_s`,
    RightMissing, KafkaException.
    """
    left = {place: end for place, end in ends.items() if begins[place] < end}
    consumer.assign([TopicPartition(*place, begins[place]) for place in left])
    heard_s = time.monotonic()
    while left:
        is_heard = False
        # Poll for one message first: `consume` alone would wait for 500.
        for message in (consumer.poll(_POLL_S), *consumer.consume(_AT_ONCE, 0)):
            if message is None or not _is_record_or_end(message):
                continue
            place, offset = (message.topic() or "", message.partition() or 0), message.offset() or 0
            if place not in left:
                # Records behind its end say nothing about the others.
                continue
            is_heard, is_record = True, message.error() is None
            if is_record and offset < left[place]:
                yield message
            # The client may report an end of the partition below: a replica may lag behind.
            if offset + is_record >= left[place]:
                del left[place]
        if is_heard:
            heard_s = time.monotonic()
        elif time.monotonic() > heard_s + patience_s:
            topics = ", ".join(sorted({topic for topic, _ in left}))
            raise BrokerUnreachable(f"{topics} cannot be read to the end: nothing has come for {patience_s:g} s")


def raise_unless_transient(message: Message, error: KafkaError) -> None:
    """Raise RightMissing or KafkaException for the `error` of a message, unless it is transient."""
    # This comes first: a missing right to the group, which is not used, counts as transient.
    if is_transient_read(error):
        return
    if is_refusal(error):
        raise right_missing("Read", f"topic {message.topic()}")
    raise KafkaException(error)


def _is_record_or_end(message: Message) -> bool:
    """Return False for an error that passes. Raises RightMissing and KafkaException for others."""
    error = message.error()
    if error is None or error.code() == KafkaError._PARTITION_EOF:
        return True
    raise_unless_transient(message, error)
    return False
