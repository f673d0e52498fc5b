"""Merging chunks that overlap in due time into one ordered stream. The overlap bounds the memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from state.order import OrderKey, count_before, in_order

# About 20,000 messages of 100 bytes. Sorting a few rows costs as much as sorting a thousand; a larger piece would only
# delay the first message.
PIECE_BYTES = 4 * 1024 * 1024


def merge(chunks: Iterable[tuple[OrderKey, pa.Table | None]], piece_bytes: int = PIECE_BYTES) -> Iterator[pa.Table]:
    """Yield the messages of all `chunks` in delivery order, as consecutive tables.

    A chunk's key is the order key of its first message. Chunks come in order of their keys. Everything below the next
    chunk's key can be yielded, so only chunks that overlap stay in memory. At a key without a chunk it is yielded at
    once, and otherwise when there are about `piece_bytes`.
    """
    pending: list[pa.Table] = []
    pending_bytes, sort_at_bytes = 0, piece_bytes
    for key, messages in chunks:
        if pending and (messages is None or pending_bytes >= sort_at_bytes):
            ordered = _sorted(pending)
            ready = count_before(ordered, key)
            if ready:
                yield ordered.slice(0, ready)
            pending = [ordered.slice(ready)]
            pending_bytes = pending[0].nbytes
            # Twice what stays, so that each message is sorted a few times at most, however deep the overlap.
            sort_at_bytes = max(piece_bytes, 2 * pending_bytes)
        if messages is not None:
            pending.append(messages)
            pending_bytes += messages.nbytes
    if any(table.num_rows for table in pending):
        yield _sorted(pending)


def _sorted(pending: list[pa.Table]) -> pa.Table:
    return in_order(pa.concat_tables(pending).combine_chunks())
