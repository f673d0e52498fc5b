"""Reads the position of a shard."""

from __future__ import annotations

from collections.abc import Mapping

from sinks.internal_topics.newest_record import newest_value
from sinks.internal_topics.position import Position


def read_position(options: Mapping[str, str], topic: str, shard: int, after_fencing: bool = False) -> Position | None:
    """Return the last committed position of `shard`, or None if it has none.

    `after_fencing` says that all who may write positions of the shard are fenced (`newest_value`).

    Raises BrokerUnreachable, TopicMissing, CheckpointMismatch, FormatMismatch.
    """
    value = newest_value(options, topic, shard, after_fencing)
    return None if value is None else Position.from_bytes(value)
