"""Where a shard's last released messages went, for the answers to requests that come too late.

The shard that has released a message is certain of it. So such a request need not go through the other shards.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sinks.release.reports import Offsets
from state.answers import Output
from state.kinds import ANSWER, DEAD_LETTER, KIND, kinds_of
from state.message_ids import ID_SCHEMA, places_in

# Long enough for a user who has just seen that a message was released. After that, its id may belong to another
# message, in an input topic that was recreated.
_KEPT_MS = 120_000
# In 2 MB.
_MOST_MESSAGES = 20_000
_OUTPUT = [("output_topic", pa.string()), ("output_partition", pa.int32())]
_KEPT = pa.schema([*ID_SCHEMA, KIND, *_OUTPUT, ("is_replaced", pa.bool_()), ("transaction", pa.int64())])


@dataclass(frozen=True)
class _Transaction:
    """The offsets of its records. It was committed at `released_ms` (epoch ms)."""

    offsets: Offsets
    released_ms: int

    def is_recent(self, now_ms: int) -> bool:
        """Return whether it is not too old at `now_ms` (epoch ms), or far ahead: the clock was."""
        return abs(now_ms - self.released_ms) <= _KEPT_MS


class RecentlyReleased:
    """The messages of the transactions that were committed in the last two minutes. Thread-safe."""

    def __init__(self, dead_letter: str = "", most: int = _MOST_MESSAGES) -> None:
        """Begin empty. `dead_letter` is the dead-letter topic. Beyond `most` messages, the oldest are dropped."""
        self._dead_letter = dead_letter
        self._most = most
        self._lock = threading.Lock()
        self._numbers = count()
        self._transactions: dict[int, _Transaction] = {}
        # The messages of each transaction that was added since the last `settle`, the oldest first, and all others.
        self._fresh: list[pa.Table] = []
        self._settled = _KEPT.empty_table()

    def add(self, messages: pa.Table, replaced: Mapping[int, str], offsets: Offsets, released_ms: int) -> None:
        """Add the messages of a transaction that was committed at `released_ms` (epoch ms).

        `replaced` has the messages that became dead letters while they were written, by row. `offsets` has the first
        and the last offset of the records, by topic and partition.
        """
        is_dead = np.zeros(messages.num_rows, dtype=bool)
        is_dead[[*replaced]] = True
        kept = messages.select(_KEPT.names[:-2]).append_column("is_replaced", pa.array(is_dead))
        is_answer = kinds_of(messages) == ANSWER
        # The request of a replacement has the id of the replacement. To copy the others takes longer than to look.
        if is_answer.any():
            kept, is_dead = kept.filter(pa.array(~is_answer)), is_dead[~is_answer]
        if replaced:
            # The first one of several occurrences with one id is found. So those that were delivered come first.
            kept = kept.take(pa.array(np.argsort(is_dead, kind="stable")))
        with self._lock:
            number = next(self._numbers)
            self._transactions[number] = _Transaction(offsets, released_ms)
            self._fresh.append(kept.append_column("transaction", pa.repeat(pa.scalar(number), kept.num_rows)))

    def settle(self, now_ms: int) -> None:
        """Forget messages that are too old at `now_ms` (epoch ms), and the oldest of too many.

        One call a second is enough. Until then, added messages keep all memory of the chunks that they were in.
        """
        with self._lock:
            newest = self._newest_first().slice(0, self._most)
            numbers = newest.column("transaction").unique().to_pylist()
            self._transactions = {
                number: self._transactions[number] for number in numbers if self._transactions[number].is_recent(now_ms)
            }
            is_recent = pc.is_in(newest.column("transaction"), pa.array(list(self._transactions), pa.int64()))
            self._settled, self._fresh = newest.filter(is_recent).combine_chunks(), []

    def find(self, asked: pa.Table, now_ms: int) -> Sequence[Output | None]:
        """Return for each message of `asked`, which has the columns `ID`, where it went; None if it is not known."""
        with self._lock:
            # `settle` makes another mapping, and `add` takes nothing out of one.
            known, transactions = self._newest_first(), self._transactions
        outputs: list[Output | None] = [None] * asked.num_rows
        places = places_in(known, asked)
        found = np.flatnonzero(places >= 0)
        rows = known.take(pa.array(places[found]))
        for at, is_replaced, number, topic, partition, is_dead in zip(
            found.tolist(),
            rows.column("is_replaced").to_pylist(),
            rows.column("transaction").to_pylist(),
            rows.column("output_topic").to_pylist(),
            rows.column("output_partition").to_pylist(),
            (kinds_of(rows) == DEAD_LETTER).tolist(),
            strict=True,
        ):
            transaction = transactions[number]
            if not transaction.is_recent(now_ms):
                continue
            # The client has chosen the partition of a dead letter.
            if is_replaced:
                outputs[at] = Output(self._dead_letter)
            elif is_dead:
                outputs[at] = Output(topic)
            else:
                outputs[at] = Output(topic, partition, transaction.offsets.get((topic, partition)))
        return outputs

    def _newest_first(self) -> pa.Table:
        return pa.concat_tables([*reversed(self._fresh), self._settled])
