"""Which occurrences wait when a checkpoint is lost: the first ones that are not staged."""

from __future__ import annotations

from itertools import islice

import pyarrow as pa

from state.checkpoint.progress import BatchSpan
from state.message_ids import ID
from state.order import OrderKey
from state.repeats.occurrences import as_waiting, waiting_in


def left_of_staged(messages: pa.Table, span: BatchSpan, last: OrderKey, below_ms: int | None) -> pa.Table:
    """Return the occurrences that wait if the batch of `span`, which has taken the repeating `messages`, was cut off.

    The messages belong to one shard. For this shard the batch has staged everything up to `last`, and no occurrence at
    `below_ms` or later (epoch ms). It has not stored the following occurrences.
    """
    end_ms = span.cutoff_ms if below_ms is None else below_ms
    waiting, left = waiting_in(messages), []
    ids = zip(*(messages.column(name).to_pylist() for name in ID), strict=True)
    for row, (each, own) in enumerate(zip(waiting, ids, strict=True)):
        waits = (one for one in each.coming(span) if one.at_ms >= end_ms or OrderKey(one.at_ms, *own) > last)
        left += [(row, one) for one in islice(waits, 1)]
    return as_waiting(messages, waiting, left)


def left_of_lost(messages: pa.Table, last: OrderKey) -> pa.Table:
    """Return the waiting occurrences of `messages` if everything up to `last` is staged, and following ones are lost.

    Which occurrences were missed is not known. Each gets the number that it has if none was missed. That is not lower
    than its number before.
    """
    waiting, left = waiting_in(messages), []
    ids = zip(*(messages.column(name).to_pylist() for name in ID), strict=True)
    for row, (each, own) in enumerate(zip(waiting, ids, strict=True)):
        later = each.schedule.later(each.occurrence, last.deliver_at_ms)
        left += [(row, one) for one in islice((one for one in later if OrderKey(one.at_ms, *own) > last), 1)]
    return as_waiting(messages, waiting, left)
