"""Cutting a shard's due messages into transactions: by count, by bytes, and by a slice of due time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sinks.delivery.records import bytes_at_most
from sinks.delivery.wall_clock import now_ms, wait_until
from state.order import OrderKey, key_of, up_to

# How long before its first message is due a transaction is opened, at the earliest: time enough to fill it.
_OPEN_AHEAD_MS = 1_000
# A transaction's messages are kept until it is committed, since it may have to be written again.
_MOST_BYTES = 64 * 1024 * 1024


@dataclass
class Transaction:
    """Consecutive due messages of one shard and batch, in order: from `start` of the batch's up to `end`.

    `largest_bytes` has, for each part, an upper bound of the bytes of its largest record. `last` is the order key of
    the last message.
    """

    start: int
    slice_end_ms: int
    parts: list[pa.RecordBatch] = field(default_factory=list)
    largest_bytes: list[int] = field(default_factory=list)
    count: int = 0
    bytes: int = 0

    @property
    def end(self) -> int:
        """The position of the first message after it."""
        return self.start + self.count

    @property
    def last(self) -> OrderKey:
        """The order key of its last message."""
        return key_of(self.parts[-1], -1)

    def cut(self, most_pieces: int) -> list[Transaction]:
        """Return it as several transactions, in order; one of a single message as it is."""
        messages = pa.Table.from_batches(self.parts)
        count = -(-self.count // most_pieces)
        pieces = []
        for at in range(0, self.count, count):
            parts = messages.slice(at, count).to_batches()
            each = [bytes_at_most(part) for part in parts]
            largest = [int(sizes.max()) for sizes in each]
            rows, total = sum(map(len, each)), int(sum(sizes.sum() for sizes in each))
            pieces.append(Transaction(self.start + at, self.slice_end_ms, parts, largest, rows, total))
        return pieces

    @property
    def topics(self) -> set[str]:
        """Where its messages go."""
        return {topic for part in self.parts for topic in part.column("output_topic").unique().to_pylist()}


def transactions(
    messages: Iterator[pa.Table], start: int, slice_ms: int, most_messages: int, longest_ms: int
) -> Iterator[Transaction]:
    """Cut `messages`, which begin at position `start` of the batch's.

    A transaction ends when it is full, or when the next message is due more than `slice_ms` later, so that nobody waits
    for the last message of the batch. It is yielded when its first message is nearly due, since the broker ends a
    transaction that is open for long; it covers at most `longest_ms` of due time.
    """
    ahead_ms, slice_ms = (min(ms, longest_ms) for ms in (_OPEN_AHEAD_MS, slice_ms))
    full: Transaction | None = None
    for batch in (batch for table in messages for batch in table.to_batches()):
        sizes = bytes_at_most(batch)
        dues = batch.column("deliver_at_ms").to_numpy()
        at = 0
        while at < len(dues):
            if full is None:
                wait_until(int(dues[at]) - ahead_ms)
                full = Transaction(start, max(now_ms(), int(dues[at])) + slice_ms)
            count = _fitting(full, dues[at:], sizes[at:], most_messages)
            if count:
                full.parts.append(batch.slice(at, count))
                full.largest_bytes.append(int(sizes[at : at + count].max()))
                full.count += count
                full.bytes += int(sizes[at : at + count].sum())
                at += count
            if at < len(dues):
                yield full
                start, full = full.end, None
    if full is not None:
        yield full


def _fitting(full: Transaction, dues: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], most: int) -> int:
    """Return how many of the next messages still fit; at least one if the transaction is empty."""
    in_slice = int(np.searchsorted(dues, full.slice_end_ms, side="right"))
    in_bytes = int(np.searchsorted(np.cumsum(sizes), _MOST_BYTES - full.bytes, side="right"))
    return max(min(in_slice, in_bytes, most - full.count), 0 if full.count else 1)


def behind(messages: Iterator[pa.Table], last: OrderKey, skipped: Callable[[int], None]) -> Iterator[pa.Table]:
    """Yield the messages after `last`, and call `skipped` with the number of the others.

    They are skipped by order key, not by number: input records deleted meanwhile are missing from a replayed batch.
    """
    count = 0
    for table in messages:
        known = int(up_to(table, last).sum()) if table.num_rows else 0
        count += known
        if known < table.num_rows:
            skipped(count)
            yield table.slice(known)
            yield from messages
            return
    skipped(count)
