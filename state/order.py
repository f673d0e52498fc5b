"""The delivery order: by due time, then input topic, input partition and offset."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


class OrderKey(NamedTuple):
    """The key by which messages are sorted. `deliver_at_ms` is epoch ms; the rest is the message id."""

    deliver_at_ms: int
    topic: str
    partition: int
    offset: int


# The columns to sort by, the most significant first.
ORDER = OrderKey._fields


def key_of(messages: pa.Table | pa.RecordBatch, row: int = 0) -> OrderKey:
    """Return the order key of one message, by default the first."""
    return OrderKey(*(messages.column(name)[row].as_py() for name in ORDER))


def keys_of(batch: pa.RecordBatch) -> list[OrderKey]:
    """Return the order key of each row of a batch that has the columns `ORDER`."""
    return list(map(OrderKey, *(batch.column(name).to_pylist() for name in ORDER)))


def just_after(key: OrderKey) -> OrderKey:
    """Return the smallest order key that is larger than `key`."""
    return key._replace(offset=key.offset + 1)


def request_due_ms(
    published_ms: npt.NDArray[np.int64] | int, clock_ms: int, message_due_ms: npt.NDArray[np.int64] | int
) -> npt.NDArray[np.int64]:
    """Return the due time of the request that comes with a message, or with each of several: at once. All are epoch ms.

    The request has the id of the message, which is due at `message_due_ms`, and must have another order key.
    """
    at_once = np.minimum(published_ms, clock_ms)
    return np.asarray(at_once + (at_once == message_due_ms))


def in_order(messages: pa.Table) -> pa.Table:
    """Return `messages` in delivery order."""
    if messages.num_rows < 2:
        return messages
    # Sorting by the topic costs more than by the three numbers together, and nearly every job has one input topic.
    several_topics = len(messages.column("topic").unique()) > 1
    names = [name for name in ORDER if several_topics or name != "topic"]
    return messages.sort_by([(name, "ascending") for name in names])


def up_to(messages: pa.Table, key: OrderKey, inclusive: bool = True) -> npt.NDArray[np.bool_]:
    """Return which of `messages`, in any order, come before `key` in delivery order, or at it if `inclusive`."""
    before = pa.array(np.full(messages.num_rows, inclusive))
    for name, value in reversed(list(zip(ORDER, key, strict=True))):
        column = messages.column(name).combine_chunks()
        before = pc.or_(pc.less(column, value), pc.and_(pc.equal(column, value), before))
    return np.asarray(before)


def count_before(ordered: pa.Table, key: OrderKey) -> int:
    """Return how many messages at the head of `ordered`, which is in delivery order, come before `key`."""
    dues = ordered.column("deliver_at_ms").to_numpy()
    below, same = (int(np.searchsorted(dues, key.deliver_at_ms, side=side)) for side in ("left", "right"))
    if below == same:
        return below
    # Many messages can be due in the same millisecond; the rest of the key orders them.
    return below + int(up_to(ordered.slice(below, same - below), key, inclusive=False).sum())
