"""Choosing the group of the state stage that takes each message of a batch: its shard's own, or an overflow group.

Pure. The choice depends on the messages that a task has read before, not on how Spark cuts them into tables. So a
replay of the batch finds the same groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa

from state.buckets.operator import FILLED_BYTES, fillers
from state.buckets.segments import row_bytes
from state.checkpoint.batch_settings import RunningBatch
from state.group_keys import OVERFLOW_GROUPS, overflow_key
from state.shards import by_shard

# The least room that a group has for an input partition. Less would make small pieces, and a segment of each.
_LEAST_SHARE = 256 * 1024


class Grouping:
    """Divides the messages of one input partition among groups, table by table, in the order of their offsets.

    A shard's own group has room for `group_bytes`, and each overflow group for `FILLED_BYTES`. The input partitions
    that the batch reads share it evenly, and each of them fills its share of one group after the other.

    A group may take more, for three reasons: each input partition has at least `_LEAST_SHARE`, the last message of a
    share of an overflow group may reach beyond it, and after the last overflow group the first one follows again.
    """

    def __init__(self, batch: RunningBatch) -> None:
        self._batch = batch
        self._own_bytes = self._share(batch.settings.group_bytes)
        self._overflow_bytes = self._share(FILLED_BYTES)
        # By shard: the bytes of the messages so far.
        self._bytes: dict[int, int] = {}

    def divide(self, messages: pa.Table) -> Iterator[tuple[int, pa.Table, int]]:
        """Yield key and messages of each group that takes some of `messages`, and how many fillers go with them."""
        settings = self._batch.settings
        for shard, own in by_shard(messages, settings.shards):
            ends = self._bytes.get(shard, 0) + np.cumsum(row_bytes(own))
            self._bytes[shard] = int(ends[-1])
            numbers = np.where(ends <= self._own_bytes, -1, (ends - self._own_bytes) // self._overflow_bytes)
            bounds = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(ends)]
            for start, end in pairwise(bounds):
                piece = own.slice(start, end - start)
                if numbers[start] < 0:
                    yield settings.shard_keys[shard], piece, 0
                else:
                    number = int(numbers[start]) % OVERFLOW_GROUPS
                    filling = fillers(piece.nbytes, self._batch.transfer_rows)
                    yield overflow_key(shard, number, settings.shards), piece, filling

    def _share(self, nbytes: int) -> int:
        return max(_LEAST_SHARE, nbytes // max(1, self._batch.read_partitions))
