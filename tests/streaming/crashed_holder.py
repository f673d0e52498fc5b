"""The lease after its holder has crashed, or is paused: the next holder must fence it."""

from __future__ import annotations

from confluent_kafka import Producer

from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.internal_topics.lease import HeldLease, read_lease
from sinks.internal_topics.lease_record import claim_after


def lease_after_a_crash(settings: Settings, command: str) -> HeldLease:
    """Return the lease of a process that runs `command`. The holder before has not released it."""
    options = librdkafka_options(settings.kafka)
    producer = Producer(options)
    last = claim_after(read_lease(options, settings.lease_topic), "run", period_ms=1)
    producer.produce(settings.lease_topic, last.to_bytes(), b"lease", 0)
    assert producer.flush(10) == 0
    return HeldLease(settings, command)


def must_fence(settings: Settings, lease: HeldLease) -> bool:
    """Return whether the next holder after `lease` must fence as well."""
    lease.check_now()
    newest = read_lease(librdkafka_options(settings.kafka), settings.lease_topic)
    assert newest is not None
    return newest.unfenced
