"""This host's clock, compared with a broker's: a forwarder with a clock far ahead would deliver messages early."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from confluent_kafka import KafkaException

from conf.errors import ClockAhead
from conf.instants import instant
from conf.settings import Settings
from sinks.internal_topics.log_producer import LogProducer, LogRecord, ProducerFenced
from sinks.internal_topics.transactional_ids import transactional_id
from sinks.lanes.terms import failure_of
from sinks.release.wall_clock import now_ms
from state.lanes import TERMS_PARTITION

# If this process dies within the few milliseconds of its transaction, newer terms are hidden for so long.
_TRANSACTION_TIMEOUT_MS = 10_000
_OWN_OPTIONS = {"message.timeout.ms": str(_TRANSACTION_TIMEOUT_MS), "socket.timeout.ms": str(_TRANSACTION_TIMEOUT_MS)}


class _Stamped(Exception):
    """The broker has stamped the record, which need not be committed."""


def check_clock(clock_ms: int, stamp_ms: int, limit_ms: int) -> None:
    """Raise ClockAhead if this host showed `clock_ms` before a broker stamped a record by `stamp_ms`, far less.

    All are epoch ms, but for the limit. Release processes of this host would let messages out long before they are due.
    """
    if clock_ms - stamp_ms > limit_ms:
        raise ClockAhead(
            f"this host's clock shows {instant(clock_ms)}, but the broker's clock shows "
            f"{instant(stamp_ms)}. clock.skew_limit is {timedelta(milliseconds=limit_ms)}. Correct the "
            "wrong clock. Forwarders claim no messages until then"
        )


def check_host_clock(settings: Settings, options: Mapping[str, str], member: str) -> None:
    """Raise ClockAhead if this host's clock is far ahead of a broker's. Fences nobody but an earlier process `member`.

    The broker stamps a record in the claims topic, the transaction of which is aborted. `options` are librdkafka's.
    Raises BrokerUnreachable, DeliveryFailed, TopicMissing, TopicMismatch, RightMissing.
    """
    own_id = transactional_id(settings.application_id, "forward", "clock", member)
    topic, clock_ms = settings.claims_topic, now_ms()
    producer = LogProducer(options, _OWN_OPTIONS, own_id, _TRANSACTION_TIMEOUT_MS, (topic,))

    def check_stamp() -> None:
        # Without a stamp, the topic's records have the time of their producer.
        if producer.stamp_ms is not None:
            check_clock(clock_ms, producer.stamp_ms, settings.clock.skew_limit)
        raise _Stamped

    try:
        producer.open()
        producer.write([LogRecord(topic, TERMS_PARTITION, b"")], check_stamp)
    except _Stamped:
        return
    except (KafkaException, ProducerFenced) as problem:
        raise failure_of(problem, "could not compare this host's clock with a broker's") from problem
    finally:
        producer.close()
