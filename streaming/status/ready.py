"""Messages that are staged and not released, from the logs of shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaException

from conf.errors import BrokerUnreachable
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.internal_topics.position import Lateness, Log, Position
from sinks.internal_topics.position_reader import read_position
from sinks.ready_log.chunk import ChunkSummary, messages_of
from sinks.release.log_reader import LogReader
from sinks.topics.partitions import partition_counts

# Above the number of every batch. Before a checkpoint's first batch, the messages there are from the checkpoint before.
EVERY_BATCH = 2**62
_SHARDS_AT_ONCE = 8


@dataclass(frozen=True)
class ReadyShard:
    """Staged messages of one shard that are not released: due times (epoch ms, ascending), and the last release.

    `member` and `at_ms` (epoch ms) say who released last and when, `lateness` how late the messages of the minute
    before were. `released` is how many messages were ever released. Without any release they are empty.
    """

    shard: int
    dues_ms: np.ndarray
    released: int = 0
    member: str = ""
    at_ms: int | None = None
    lateness: Lateness = field(default_factory=Lateness)


def ready_shards(settings: Settings, last_batch: int) -> list[ReadyShard]:
    """Return the unreleased messages that batches up to `last_batch` and forwarders have staged, by shard.

    Messages that later batches have staged count in the place from which these batches took them.

    Raises BrokerUnreachable, TopicMissing, ReadyLogLost, CheckpointMismatch.
    """
    options = librdkafka_options(settings.kafka)
    count = partition_counts(settings, [settings.ready_topic]).get(settings.ready_topic, 0)
    try:
        # Each shard asks the broker several times, one after the other.
        with ThreadPoolExecutor(_SHARDS_AT_ONCE) as threads:
            return list(threads.map(lambda shard: _ready_shard(settings, options, shard, last_batch), range(count)))
    except KafkaException as problem:
        raise BrokerUnreachable(f"cannot read {settings.ready_topic} or {settings.near_topic}: {problem}") from problem


def _ready_shard(settings: Settings, options: Mapping[str, str], shard: int, last_batch: int) -> ReadyShard:
    position = read_position(options, settings.position_topic, shard)
    parts = [np.zeros(0, dtype=np.int64)]
    for messages in ready_messages(settings, options, shard, position, last_batch):
        parts.append(np.asarray(messages.column("deliver_at_ms").to_numpy()))
    dues_ms = np.sort(np.concatenate(parts))
    if position is None:
        return ReadyShard(shard, dues_ms)
    return ReadyShard(shard, dues_ms, position.released, position.member, position.at_ms, position.lateness)


def ready_messages(
    settings: Settings,
    options: Mapping[str, str],
    shard: int,
    position: Position | None,
    last_batch: int,
    is_wanted: Callable[[ChunkSummary], bool] = lambda _: True,
) -> Iterator[pa.Table]:
    """Yield the unreleased messages that batches up to `last_batch` and forwarders have staged in a shard.

    `position` is the position of the shard. A forwarder has taken its messages before any batch could, so `last_batch`
    does not limit them. Opens only chunks that are wanted by their summary.

    Raises ReadyLogLost, TopicMissing, BrokerUnreachable, KafkaException.
    """
    with LogReader(settings, options, shard, position) as reader:
        for place, summary, payload in reader.read_to_end():
            if (place.log is Log.NEAR or summary.batch <= last_batch) and is_wanted(summary):
                yield reader.position.left_of(place, messages_of(payload, str(place)))
