"""The groups of the state stage, by key: each shard has its own group and overflow groups.

Spark puts a group on the state partition that the hash of its key names, and a task does the work of one partition.
The keys of all groups of a shard hash to one partition. Few shards have a partition each, and many share partitions.

Java writes a group into one buffer, and the state function holds all of its arrivals in memory, several times. So a
shard's own group, which has the mutable bucket as its state, takes only so many bytes of a batch, or a little of each
input partition (`sources.intake.grouping`). The rest goes to the shard's *overflow groups*, which keep no message: due
messages are staged, and all others are sealed.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

# A batch pays for each state partition, with or without rows: two runs of a Python function, and a commit. So many
# shards share partitions, but so few that the state stage still uses many cores.
_MOST_ALONE = 16
# One task may hold the mutable buckets of all shards of its partition.
_MOST_TOGETHER = 8
# How many overflow groups a shard has. This bounds the number of segments: segment numbers have 32 bits.
OVERFLOW_GROUPS = 1024
# With a range of 64 keys for each shard, the chance that none of them hashes to one shard is e^-64.
_KEYS_A_SHARD = 64
# Above every key that a shard's own group can have: there are 1024 shards at most.
_FIRST_OVERFLOW_KEY = 1 << 20


def state_partitions(shards: int) -> int:
    """Return the number of state partitions. Each has the groups of the same number of shards.

    It divides `shards`. So if a key's hash modulo `shards` is a shard's number, the key is on the shard's partition.
    """
    least = max(min(shards, _MOST_ALONE), -(-shards // _MOST_TOGETHER))
    return next(number for number in range(least, shards + 1) if shards % number == 0)


def shard_keys(shards: int) -> tuple[int, ...]:
    """Return, for each shard, the key of its own group.

    The hash of the key, modulo `shards`, is the shard's number. So all state partitions have equally many shards.
    """
    _, keys = np.unique(_partitions(np.arange(_KEYS_A_SHARD * shards), shards), return_index=True)
    return tuple(keys.tolist())


@cache
def overflow_key(shard: int, number: int, shards: int) -> int:
    """Return the key of the overflow group `number`, below `OVERFLOW_GROUPS`, of a shard."""
    return _least_key(_FIRST_OVERFLOW_KEY + number * _KEYS_A_SHARD * shards, shard, shards)


def overflow_of(key: int, shards: int) -> tuple[int, int] | None:
    """Return the shard and the number of the overflow group with this key; None for a shard's own group."""
    if key < _FIRST_OVERFLOW_KEY:
        return None
    return int(_partitions(np.array([key]), shards)[0]), (key - _FIRST_OVERFLOW_KEY) // (_KEYS_A_SHARD * shards)


def _least_key(first: int, shard: int, shards: int) -> int:
    keys = np.arange(first, first + _KEYS_A_SHARD * shards)
    return int(keys[np.argmax(_partitions(keys, shards) == shard)])


def _partitions(keys: npt.NDArray[np.int64], partitions: int) -> npt.NDArray[np.int64]:
    """Return the partition of each key: Spark's `pmod(hash(key), partitions)` of a 32-bit integer.

    Source: `org.apache.spark.unsafe.hash.Murmur3_x86_32.hashInt`, with the seed 42.
    """
    word = keys.astype(np.uint32)
    word = _rotated(word * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    mixed = _rotated(np.uint32(42) ^ word, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    # The length of an integer, in bytes.
    mixed = mixed ^ np.uint32(4)
    mixed = (mixed ^ (mixed >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    mixed = (mixed ^ (mixed >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    mixed = mixed ^ (mixed >> np.uint32(16))
    return mixed.astype(np.int32).astype(np.int64) % partitions


def _rotated(words: npt.NDArray[np.uint32], bits: int) -> npt.NDArray[np.uint32]:
    return (words << np.uint32(bits)) | (words >> np.uint32(32 - bits))
