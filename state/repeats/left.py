"""Which occurrences wait when a checkpoint is lost: the first ones that are not staged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import pyarrow as pa

from state.checkpoint.progress import BatchSpan
from state.message_ids import ID
from state.order import OrderKey
from state.repeats.occurrences import as_waiting
from state.repeats.schedule import Occurrence
from state.repeats.waiting import Waiting, waiting_in


def left_of_staged(messages: pa.Table, span: BatchSpan, last: OrderKey, below_ms: int | None) -> pa.Table:
    """Return the occurrences that wait if the batch of `span`, which has taken the repeating `messages`, was cut off.

    The messages belong to one shard. For this shard the batch has staged everything up to `last`, and no occurrence at
    `below_ms` or later (epoch ms). It has not stored the following occurrences.
    """
    end_ms = span.cutoff_ms if below_ms is None else below_ms
    return _first_left(messages, lambda each: each.coming(span), min(last, OrderKey(end_ms, "", 0, 0)))


def left_of_lost(messages: pa.Table, last: OrderKey) -> pa.Table:
    """Return the waiting occurrences of `messages` if everything up to `last` is staged, and following ones are lost.

    Which occurrences were missed is not known. Each gets the number that it has if none was missed. That is not lower
    than its number before.
    """
    return _first_left(messages, lambda each: each.schedule.later(each.occurrence, last.deliver_at_ms), last)


def _first_left(messages: pa.Table, coming: Callable[[Waiting], Iterator[Occurrence]], last: OrderKey) -> pa.Table:
    """Return the first occurrence of each message that comes after `last`."""
    waiting, left = waiting_in(messages), []
    ids = zip(*(messages.column(name).to_pylist() for name in ID), strict=True)
    for row, (each, own) in enumerate(zip(waiting, ids, strict=True)):
        later = (one for one in coming(each) if OrderKey(one.at_ms, *own) > last)
        left += [(row, one) for one in islice(later, 1)]
    return as_waiting(messages, waiting, left)
