"""Where the messages went that a shard has released last: an ask that comes too late for one is told.

The shard that has released a message knows it for certain, so such an ask need not go through the other shards.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sinks.release.records import message_ids
from sinks.release.reports import Offsets
from state.cancel import Output, is_ask
from state.message_ids import ID, places_in

# About as many as come out in a minute of a busy hour, in 2 MB.
_MOST_MESSAGES = 20_000
_KEPT = [*ID, "output_topic", "output_partition", "error_code"]


@dataclass(frozen=True)
class _Transaction:
    """`messages` has the columns `_KEPT`, `dead` the ids of those that became dead letters while they were written."""

    messages: pa.Table
    dead: Collection[bytes]
    offsets: Offsets


class RecentlyReleased:
    """The messages of the last transactions that were committed. Thread-safe."""

    def __init__(self, results: str = "", dead_letter: str = "", most: int = _MOST_MESSAGES) -> None:
        """Know no message. `results` and `dead_letter` are these topics.

        About `most` messages are kept: those of whole transactions, the oldest of which has the last one of these.
        """
        self._results = results
        self._dead_letter = dead_letter
        self._most = most
        self._lock = threading.Lock()
        self._newest_first: deque[_Transaction] = deque()
        self._count = 0
        # How many of the newest are not copied.
        self._fresh = 0

    def add(self, messages: pa.Table, replaced: Mapping[bytes, str], offsets: Offsets) -> None:
        """Add the messages of a transaction that was committed.

        `replaced` has those that became dead letters while they were written, by message id; `offsets` the first and
        the last offset of the records, by topic and partition.
        """
        kept = messages.select(_KEPT)
        with self._lock:
            self._newest_first.appendleft(_Transaction(kept, frozenset(replaced), offsets))
            self._fresh += 1
            self._count += kept.num_rows
            while self._count - self._newest_first[-1].messages.num_rows >= self._most:
                self._count -= self._newest_first.pop().messages.num_rows

    def settle(self) -> None:
        """Copy what was added since the last call: it keeps all memory of the chunks that it was in."""
        with self._lock:
            fresh = [self._newest_first.popleft() for _ in range(min(self._fresh, len(self._newest_first)))]
            self._fresh = 0
            if not fresh:
                return
            every = pa.concat_tables([each.messages for each in fresh])
            copied = every.take(pa.array(np.arange(every.num_rows)))
            end = copied.num_rows
            for each in reversed(fresh):
                start = end - each.messages.num_rows
                self._newest_first.appendleft(replace(each, messages=copied.slice(start, end - start)))
                end = start

    def find(self, asked: pa.Table) -> Sequence[Output | None]:
        """Return for each message of `asked`, which has the columns `ID`, where it went; None if it is not known."""
        with self._lock:
            transactions = list(self._newest_first)
        if not transactions or not asked.num_rows:
            return [None] * asked.num_rows
        messages = pa.concat_tables([each.messages for each in transactions])
        numbers = np.repeat(np.arange(len(transactions)), [each.messages.num_rows for each in transactions])
        # The ask of a replacement has the id of the replacement.
        own = ~np.asarray(is_ask(messages, self._results))
        messages, numbers = messages.filter(pa.array(own)), numbers[own]
        places = places_in(messages, asked)
        found = np.flatnonzero(places >= 0)
        rows = messages.take(pa.array(places[found]))
        outputs: list[Output | None] = [None] * asked.num_rows
        for at, number, identity, topic, partition, is_dead in zip(
            found.tolist(),
            numbers[places[found]].tolist(),
            _ids(rows),
            rows.column("output_topic").to_pylist(),
            rows.column("output_partition").to_pylist(),
            pc.is_valid(rows.column("error_code")).to_pylist(),
            strict=True,
        ):
            transaction = transactions[number]
            if is_dead or identity in transaction.dead:
                # The client has chosen its partition.
                outputs[at] = Output(self._dead_letter)
            else:
                outputs[at] = Output(topic, partition, transaction.offsets.get((topic, partition)))
        return outputs


def _ids(messages: pa.Table) -> list[bytes]:
    return [identity for batch in messages.to_batches() for identity in message_ids(batch).to_pylist()]
