"""Where the claims that may still be needed begin in each lane."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import closing

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from conf.errors import BrokerUnreachable, TopicMissing
from conf.kafka.client_log import client_log
from conf.kafka.error_codes import is_transient_read
from conf.settings import Settings
from sinks.internal_topics.newest_record import bounds, reader_options
from sinks.topics.limits import topic_access
from state.checkpoint.origin import Offsets
from state.claims import Claim
from state.lanes import partition_of_lane

log = logging.getLogger(__name__)

_TIMEOUT_S = 30.0
# A probe reads a single claim. The broker sends a larger one all the same.
_PROBE_BYTES = 4_096


def count_lanes(settings: Settings, options: Mapping[str, str]) -> int:
    """Return for how many lanes the claims topic has partitions: at least for all lanes that there ever were.

    Raises TopicMissing, KafkaException.
    """
    access = topic_access(options, [settings.claims_topic]).get(settings.claims_topic)
    if access is None or access.kind == "gone":
        raise TopicMissing(f"{settings.claims_topic} does not exist. Create it with `delayline topics create`")
    return access.partitions - partition_of_lane(0)


def first_offsets(
    settings: Settings, options: Mapping[str, str], needed: Offsets, topic_ids: Mapping[str, str], epoch: int
) -> dict[int, int]:
    """Return by lane the offset of the newest claim before all that may decide offsets at or above `needed`.

    Without such a claim it is the first offset that the lane's partition has. `options` are librdkafka's, `topic_ids`
    the present ids of the topics that matter: nothing of another one is needed, nor of an epoch before `epoch`.

    Raises TopicMissing, KafkaException, BrokerUnreachable, CheckpointMismatch, FormatMismatch.
    """
    topic = settings.claims_topic
    deadline_s = time.monotonic() + _TIMEOUT_S
    own = {"fetch.message.max.bytes": str(_PROBE_BYTES), "fetch.min.bytes": "1"}
    with closing(Consumer({**reader_options(options, topic), **own}, logger=client_log(log))) as consumer:
        # All claims below the first offset are not beyond `needed`; all at or above the second one are.
        open_ranges: dict[int, tuple[int, int]] = {}
        lows: dict[int, int] = {}
        for lane in range(count_lanes(settings, options)):
            low, high = bounds(consumer, TopicPartition(topic, partition_of_lane(lane)), deadline_s)
            lows[lane], open_ranges[lane] = low, (low, high)
        found: dict[int, int] = {}
        while True:
            found |= {lane: max(lows[lane], low - 1) for lane, (low, high) in open_ranges.items() if low == high}
            open_ranges = {lane: each for lane, each in open_ranges.items() if lane not in found}
            if not open_ranges:
                return found
            middles = {lane: (low + high) // 2 for lane, (low, high) in open_ranges.items()}
            for lane, message in _first_records(consumer, topic, middles, deadline_s).items():
                low, high = open_ranges[lane]
                offset = high if message is None else message.offset() or 0
                if message is None or offset >= high or claim_in(message).is_beyond(needed, topic_ids, epoch):
                    open_ranges[lane] = low, middles[lane]
                else:
                    open_ranges[lane] = offset + 1, high


def _first_records(
    consumer: Consumer, topic: str, offsets: Mapping[int, int], deadline_s: float
) -> dict[int, Message | None]:
    """Return by lane the first committed record at or above its offset, or None without such a record."""
    consumer.assign([TopicPartition(topic, partition_of_lane(lane), offset) for lane, offset in offsets.items()])
    lanes = {partition_of_lane(lane): lane for lane in offsets}
    found: dict[int, Message | None] = {}
    while len(found) < len(offsets):
        if time.monotonic() > deadline_s:
            raise BrokerUnreachable(f"could not search {topic} within {_TIMEOUT_S:g} s: brokers do not answer")
        message = consumer.poll(0.1)
        if message is None:
            continue
        error = message.error()
        if error is None or error.code() == KafkaError._PARTITION_EOF:
            found.setdefault(lanes[message.partition() or 0], None if error else message)
        elif not is_transient_read(error):
            raise KafkaException(error)
    return found


def claim_in(message: Message) -> Claim:
    """Return the claim that a record of the claims topic has. Raises CheckpointMismatch, FormatMismatch."""
    return Claim.from_bytes(message.value() or b"")
