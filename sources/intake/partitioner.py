"""Kafka's default partitioner for keys, applied to a column at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_M = np.uint32(0x5BD1E995)
_SEED = np.uint32(0x9747B28C)
_BYTES_AT_ONCE = 4 * 1024 * 1024
# For fewer keys than these, a loop over their words in Python's own numbers is faster than one over columns in numpy.
_FEW_KEYS = 32
_WORDS_AT_ONCE = 65_536


def murmur2(keys: pa.Array, bytes_at_once: int = _BYTES_AT_ONCE) -> npt.NDArray[np.uint32]:
    """Return the murmur2 hash of each key, as `org.apache.kafka.common.utils.Utils.murmur2` computes it.

    `keys` is a binary array without nulls. Keys of the same length are hashed together, a word at a time.
    """
    offsets = np.frombuffer(keys.buffers()[1], dtype=np.int32)[keys.offset : keys.offset + len(keys) + 1]
    content = keys.buffers()[2]
    flat = np.frombuffer(content, dtype=np.uint8) if content is not None else np.empty(0, dtype=np.uint8)
    starts, lengths = offsets[:-1].astype(np.int64), np.diff(offsets)
    hashes = np.empty(len(keys), dtype=np.uint32)
    for length in np.unique(lengths):
        same = np.flatnonzero(lengths == length)
        # The index of each byte takes eight bytes, so large keys are hashed in parts.
        step = max(1, bytes_at_once // max(1, int(length)))
        for rows in (same[at : at + step] for at in range(0, len(same), step)):
            first = int(starts[rows[0]])
            same_length = flat[None, first : first + length] if len(rows) == 1 else flat[_places(starts[rows], length)]
            hashes[rows] = _murmur2_of_one_length(same_length)
    return hashes


def _places(starts: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
    return np.asarray(starts[:, None] + np.arange(length))


def _mix(words: npt.NDArray[np.uint32], h: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Mix the words of each row into the row's hash, a column at a time."""
    for column in range(words.shape[1]):
        h = h * _M ^ _scrambled(words[:, column])
    return h


def _mix_few(words: npt.NDArray[np.uint32], h: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Do the same a row at a time. A key of megabytes takes milliseconds, not seconds."""
    factor, mixed = int(_M), []
    for row, first in zip(words, h.tolist(), strict=True):
        value = first
        for at in range(0, len(row), _WORDS_AT_ONCE):
            for word in _scrambled(row[at : at + _WORDS_AT_ONCE]).tolist():
                value = (value * factor & 0xFFFFFFFF) ^ word
        mixed.append(value)
    return np.array(mixed, dtype=np.uint32)


def _scrambled(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    k = words * _M
    return np.asarray((k ^ (k >> np.uint32(24))) * _M)


def _murmur2_of_one_length(keys: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Return the hash of each row of an (n, length) matrix of bytes."""
    count, length = keys.shape
    with np.errstate(over="ignore"):
        h = np.full(count, _SEED ^ np.uint32(length), dtype=np.uint32)
        whole = length // 4 * 4
        words = np.ascontiguousarray(keys[:, :whole]).view("<u4") if whole else np.empty((count, 0), np.uint32)
        h = _mix_few(words, h) if count < _FEW_KEYS else _mix(words, h)
        tail = keys[:, whole:].astype(np.uint32)
        if tail.shape[1]:
            for at in range(tail.shape[1]):
                h = h ^ (tail[:, at] << np.uint32(8 * at))
            h = h * _M
        h = (h ^ (h >> np.uint32(13))) * _M
        return np.asarray(h ^ (h >> np.uint32(15)), dtype=np.uint32)


def partitions_for(
    keys: pa.Array, input_partitions: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the output partition of each message: by its key, or by its input partition if it has no key.

    `counts` has the number of partitions of each message's output topic.
    """
    chosen = input_partitions % counts
    keyed = np.flatnonzero(np.asarray(keys.is_valid()))
    if len(keyed):
        hashes = murmur2(keys.drop_null()).astype(np.int64) & 0x7FFFFFFF
        chosen[keyed] = hashes % counts[keyed]
    return chosen
