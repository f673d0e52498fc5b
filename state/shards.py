"""The assignment of messages to shards."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def shards_of(messages: pa.Table, shards: int) -> npt.NDArray[np.int64]:
    """Return each message's shard: a function of its output partition, so that one writer keeps a partition's order."""
    topics = messages.column("output_topic").dictionary_encode().combine_chunks()
    bases = np.array([shard_of(name, 0, shards) for name in topics.dictionary.to_pylist()], dtype=np.int64)
    partitions = messages.column("output_partition").to_numpy().astype(np.int64)
    return np.asarray((bases[np.asarray(topics.indices)] + partitions) % shards, dtype=np.int64)


def shard_of(topic: str, partition: int, shards: int) -> int:
    """Return the shard of the messages for a partition of an output topic."""
    return (zlib.crc32(topic.encode()) + partition) % shards


def by_shard(messages: pa.Table, shards: int) -> Iterator[tuple[int, pa.Table]]:
    """Yield each shard that has messages, and its messages in their order."""
    shard_of_row = shards_of(messages, shards)
    for shard in np.unique(shard_of_row).tolist():
        yield shard, messages.filter(pa.array(shard_of_row == shard))
