"""Waits until all staged messages are released, before the number of shards changes."""

from __future__ import annotations

import logging
import time

from confluent_kafka import KafkaException

from conf.errors import BrokerUnreachable
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.internal_topics.position_reader import read_position
from sinks.internal_topics.progress import read_progress
from sinks.release.log_end import unreleased
from sinks.topics.partitions import partition_counts
from streaming.processes.kinds import Kind
from streaming.processes.restarts import USUAL_PAUSES, Pauses
from streaming.processes.supervisor import Processes

log = logging.getLogger(__name__)

_POLL_S = 0.5
_LOG_EVERY_S = 10.0


def unreleased_shards(settings: Settings) -> list[int]:
    """Return the shards of which a log is not released to its end.

    Raises BrokerUnreachable, TopicMissing, CheckpointMismatch.
    """
    shards = partition_counts(settings, [settings.ready_topic]).get(settings.ready_topic, 0)
    try:
        return unreleased(settings, librdkafka_options(settings.kafka), range(shards))
    except KafkaException as problem:
        raise BrokerUnreachable(
            f"cannot read the ends of {settings.ready_topic} and {settings.near_topic}: {problem}"
        ) from problem


def left_to_release(settings: Settings) -> dict[int, int]:
    """Return, for each shard that ever had messages, about how many of them are not released.

    Messages that forwarders have staged count once a release process has read them.

    Raises BrokerUnreachable, TopicMissing, CheckpointMismatch.
    """
    options = librdkafka_options(settings.kafka)
    counts = partition_counts(settings, [settings.progress_topic, settings.position_topic])
    ready = {}
    for shard in range(counts.get(settings.progress_topic, 0)):
        marker = read_progress(options, settings.progress_topic, shard)
        has_position = shard < counts.get(settings.position_topic, 0)
        position = read_position(options, settings.position_topic, shard) if has_position else None
        if marker is not None or position is not None:
            staged = 0 if marker is None else marker.staged
            left = staged if position is None else staged + position.forwarded - position.released
            # A progress topic that was lost starts counting from zero again.
            ready[shard] = max(0, left)
    return ready


def drain(settings: Settings, pauses: Pauses = USUAL_PAUSES) -> None:
    """Release all staged messages. Returns when the last one is released.

    That takes up to `clock.horizon`, or longer with a limited rate. Other release processes of the application may take
    part. Raises BrokerUnreachable, TopicMissing, CheckpointMismatch, and the errors of release processes.
    """
    if not unreleased_shards(settings):
        return
    # This process listens at no address. A `delayline release` on this host may use the configured one.
    monitor = settings.monitor.model_copy(update={"release": ""})
    own = settings.model_copy(update={"monitor": monitor})
    with Processes(own, {Kind.RELEASE: 1}, "drain", pauses) as processes:
        processes.start()
        logged_s = 0.0
        while left := unreleased_shards(settings):
            processes.check()
            if time.monotonic() - logged_s > _LOG_EVERY_S:
                logged_s = time.monotonic()
                count = sum(left_to_release(settings).values())
                log.info("waiting until about %d messages of shards %s are due and released", count, left)
            time.sleep(_POLL_S)
