"""Where the messages went that a shard has released last, for the answers to requests that come too late.

The shard that has released a message knows it for certain, so such a request need not go through the other shards.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sinks.release.records import message_ids
from sinks.release.reports import Offsets
from state.answers import Output
from state.kinds import ANSWER, DEAD_LETTER, kinds_of
from state.message_ids import ID, places_in

# Long enough for somebody who has just seen that a message came out. After that, its id may be another message's: of an
# input topic that was made anew.
_KEPT_MS = 120_000
# How much time is kept together, and how many messages, about: each piece is searched for itself.
_TOGETHER_MS, _TOGETHER = 10_000, 5_000
# In 2 MB.
_MOST_MESSAGES = 20_000
_KEPT = [*ID, "kind", "output_topic", "output_partition"]


@dataclass(frozen=True)
class _Transaction:
    """The ids of those messages that became dead letters while they were written, and the offsets of the records."""

    dead: Collection[bytes]
    offsets: Offsets


@dataclass(frozen=True)
class _Block:
    """The `messages` (columns `_KEPT`) of some `transactions`, and the number of each one's; the newest first.

    The transactions were committed in [`first_ms`, `last_ms`], epoch ms.
    """

    messages: pa.Table
    numbers: npt.NDArray[np.int64]
    transactions: Sequence[_Transaction]
    first_ms: int
    last_ms: int

    def may_grow(self, last_ms: int) -> bool:
        """Return whether it should have what was committed after it too, until `last_ms` (epoch ms)."""
        return 0 <= last_ms - self.first_ms <= _TOGETHER_MS and self.messages.num_rows < _TOGETHER


class RecentlyReleased:
    """The messages of the transactions that were committed in the last two minutes. Thread-safe."""

    def __init__(self, dead_letter: str = "", most: int = _MOST_MESSAGES) -> None:
        """Know no message. `dead_letter` is that topic; of more than `most` messages the oldest go."""
        self._dead_letter = dead_letter
        self._most = most
        self._lock = threading.Lock()
        # What was added since the last `settle`, the oldest first.
        self._fresh: list[tuple[pa.Table, _Transaction, int]] = []
        self._newest_first: deque[_Block] = deque()

    def add(self, messages: pa.Table, replaced: Mapping[bytes, str], offsets: Offsets, released_ms: int) -> None:
        """Add the messages of a transaction that was committed at `released_ms` (epoch ms).

        `replaced` has those that became dead letters while they were written, by message id; `offsets` the first and
        the last offset of the records, by topic and partition.
        """
        kept = messages.select(_KEPT)
        with self._lock:
            self._fresh.append((kept, _Transaction(frozenset(replaced), offsets), released_ms))

    def settle(self, now_ms: int) -> None:
        """Make a block of what was added since the last call, and forget what is too old at `now_ms` (epoch ms).

        A call a second is enough: until then, what was added keeps all memory of the chunks that it was in.
        """
        with self._lock:
            if self._fresh:
                block, self._fresh = self._block_of_fresh(), []
                if self._newest_first and self._newest_first[0].may_grow(block.last_ms):
                    block = _joined(block, self._newest_first.popleft())
                self._newest_first.appendleft(block)
            count = sum(block.messages.num_rows for block in self._newest_first)
            # Also what is far ahead: the clock was.
            while self._newest_first and (
                abs(now_ms - (oldest := self._newest_first[-1]).last_ms) > _KEPT_MS
                or count - oldest.messages.num_rows >= self._most
            ):
                count -= self._newest_first.pop().messages.num_rows

    def find(self, asked: pa.Table, now_ms: int) -> Sequence[Output | None]:
        """Return for each message of `asked`, which has the columns `ID`, where it went; None if it is not known."""
        outputs: list[Output | None] = [None] * asked.num_rows
        with self._lock:
            blocks = [*([self._block_of_fresh()] if self._fresh else []), *self._newest_first]
        for block in blocks:
            if abs(now_ms - block.last_ms) > _KEPT_MS:
                continue
            places = places_in(block.messages, asked)
            found = np.flatnonzero(places >= 0)
            rows = block.messages.take(pa.array(places[found]))
            for at, number, identity, topic, partition, is_dead in zip(
                found.tolist(),
                block.numbers[places[found]].tolist(),
                _ids(rows),
                rows.column("output_topic").to_pylist(),
                rows.column("output_partition").to_pylist(),
                (kinds_of(rows) == DEAD_LETTER).tolist(),
                strict=True,
            ):
                if outputs[at] is not None:
                    continue
                transaction = block.transactions[number]
                # The client has chosen the partition of a dead letter.
                if identity in transaction.dead:
                    outputs[at] = Output(self._dead_letter)
                elif is_dead:
                    outputs[at] = Output(topic)
                else:
                    outputs[at] = Output(topic, partition, transaction.offsets.get((topic, partition)))
        return outputs

    def _block_of_fresh(self) -> _Block:
        tables, transactions, released_ms = zip(*reversed(self._fresh), strict=True)
        every = pa.concat_tables(tables)
        numbers = np.repeat(np.arange(len(tables)), [table.num_rows for table in tables])
        # The request of a replacement has the id of the replacement.
        own = np.flatnonzero(kinds_of(every) != ANSWER)
        return _Block(every.take(pa.array(own)), numbers[own], transactions, min(released_ms), max(released_ms))


def _joined(newer: _Block, older: _Block) -> _Block:
    messages = pa.concat_tables([newer.messages, older.messages]).combine_chunks()
    numbers = np.concatenate([newer.numbers, older.numbers + len(newer.transactions)])
    return _Block(messages, numbers, [*newer.transactions, *older.transactions], older.first_ms, newer.last_ms)


def _ids(messages: pa.Table) -> list[bytes]:
    return [identity for batch in messages.to_batches() for identity in message_ids(batch).to_pylist()]
