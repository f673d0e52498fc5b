"""Merging chunks that overlap in due time into one ordered stream, in memory that the overlap bounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from state.order import OrderKey, in_order, up_to

# Sorting a few rows costs as much as sorting a thousand, and a larger piece only delays the first message:
# about 20,000 messages of 100 bytes.
_PIECE_BYTES = 4 * 1024 * 1024


def merge(chunks: Iterable[tuple[OrderKey | None, pa.Table]]) -> Iterator[pa.Table]:
    """Give the messages of all `chunks` in the contract's order, as consecutive tables.

    A chunk's key is its first message's place. The chunks come in order of their keys, those without one before all
    others. What lies below the next chunk's key can go out, so that no more is held than overlaps.
    """
    pending: list[pa.Table] = []
    held, enough = 0, _PIECE_BYTES
    for key, messages in chunks:
        if key is not None and held >= enough:
            ordered = _sorted(pending)
            ready = _count_before(ordered, key)
            if ready:
                yield ordered.slice(0, ready)
            pending = [ordered.slice(ready)]
            held = pending[0].nbytes
            # Twice what stays: so every message is sorted a few times at most, however deep the overlap.
            enough = max(_PIECE_BYTES, 2 * held)
        pending.append(messages)
        held += messages.nbytes
    if any(table.num_rows for table in pending):
        yield _sorted(pending)


def _sorted(pending: list[pa.Table]) -> pa.Table:
    return in_order(pa.concat_tables(pending).combine_chunks())


def _count_before(ordered: pa.Table, key: OrderKey) -> int:
    """Return how many messages at the head of `ordered` come before `key`."""
    dues = ordered.column("deliver_at_ms").to_numpy()
    below, same = (int(np.searchsorted(dues, key.deliver_at_ms, side=side)) for side in ("left", "right"))
    # Many messages can be due in one millisecond, and are in order among themselves.
    return below + int(up_to(ordered.slice(below, same - below), key, inclusive=False).sum())
