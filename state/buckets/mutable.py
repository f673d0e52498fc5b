"""The mutable bucket: a shard's messages that are not sealed yet. A pure function advances it by one batch.

Modelled on Pulsar's `MutableBucket`, which is sealed into an immutable bucket when it is full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from conf.errors import InvariantViolated
from state.checkpoint.batch_settings import BatchSettings
from state.kinds import is_message, repeats
from state.message import empty_messages
from state.message_ids import NO_IDS, Ids, contains_mask
from state.order import in_order


@dataclass(frozen=True)
class BucketAdvance:
    """The effect of one batch on a mutable bucket. Each table is in delivery order.

    - `due`: messages to deliver now, and every dead letter and request
    - `sealed`: messages for an immutable bucket
    - `kept`: messages that stay in the mutable bucket

    Every message that went in is in exactly one of the three (invariant 1).
    """

    due: pa.Table
    sealed: pa.Table
    kept: pa.Table

    @property
    def next_due_ms(self) -> int | None:
        """The earliest due time in `kept`, epoch ms; None if `kept` is empty."""
        return self.kept.column("deliver_at_ms")[0].as_py() if self.kept.num_rows else None


def advance(
    waiting: pa.Table,
    arrivals: list[pa.Table],
    cutoff_ms: int,
    batch_settings: BatchSettings,
    replacements: Ids = NO_IDS,
    undecided: Sequence[pa.Table] = (),
) -> BucketAdvance:
    """Add `arrivals`, split off what is due, and seal the far part if the bucket is over a threshold.

    Messages with one of the ids `replacements` are not kept: the batch may refuse them, and a kept message cannot be
    removed. Messages in `undecided`, which were taken out of the bucket or the arrivals, are not kept either.
    Neither are messages that repeat: the batch that stages them finds them in the table.
    """
    arrivals, apart = _divided(arrivals, replacements)
    apart += undecided
    due, rest = _split([waiting, *arrivals], cutoff_ms)
    keep = rest.num_rows
    if keep > batch_settings.bucket_max_messages or rest.nbytes > batch_settings.bucket_max_bytes:
        keep = _rows_to_keep(rest, batch_settings)
    sealed, kept = rest.slice(keep), rest.slice(0, keep)
    if apart:
        passed = pass_by(apart, cutoff_ms)
        due, sealed = (_together(*pair) for pair in ((due, passed.due), (sealed, passed.sealed)))
    return BucketAdvance(due, sealed, kept)


def pass_by(arrivals: list[pa.Table], cutoff_ms: int) -> BucketAdvance:
    """Divide `arrivals` that no mutable bucket takes in. Messages that are not due are sealed, and nothing is kept."""
    due, rest = _split(arrivals, cutoff_ms)
    return BucketAdvance(due, rest, rest.slice(0, 0))


@dataclass(frozen=True)
class TakenOut:
    """The tables that are `left` without the requested messages, and the messages `found` (`MESSAGE_SCHEMA`).

    Dead letters stay in `left`, and so do requests, because their publishers wait for an answer.
    """

    left: list[pa.Table]
    found: pa.Table

    def found_among(self, ids: Ids) -> list[pa.Table]:
        """Return the messages found that have one of `ids`, as a list of one table, or of none."""
        own = self.found.filter(pa.array(contains_mask(self.found, ids)))
        return [own] if own.num_rows else []


def take_out(tables: list[pa.Table], ids: Ids) -> TakenOut:
    """Take the messages that have one of `ids` out of `tables`."""
    left, found = [], [empty_messages()]
    for table in tables:
        named = contains_mask(table, ids)
        if named.any():
            named &= is_message(table)
            found.append(table.filter(pa.array(named)))
            table = table.filter(pa.array(~named))  # noqa: PLW2901
        left.append(table)
    return TakenOut(left, pa.concat_tables(found))


def _divided(tables: list[pa.Table], ids: Ids) -> tuple[list[pa.Table], list[pa.Table]]:
    """Return the messages that have none of `ids` and do not repeat, and the others."""
    named = [contains_mask(table, ids) | repeats(table) for table in tables]
    rows = list(zip(tables, named, strict=True))
    apart = [table.filter(pa.array(own)) for table, own in rows if own.any()]
    return [table.filter(pa.array(~own)) for table, own in rows], apart


def _together(*tables: pa.Table) -> pa.Table:
    return in_order(pa.concat_tables(tables).combine_chunks())


def _split(tables: list[pa.Table], cutoff_ms: int) -> tuple[pa.Table, pa.Table]:
    """Return the messages to deliver now, and all others, each in delivery order."""
    messages = _together(*tables)
    is_due = ~is_message(messages) | (messages.column("deliver_at_ms").to_numpy() < cutoff_ms)
    due, rest = messages.filter(pa.array(is_due)), messages.filter(pa.array(~is_due))
    if due.num_rows + rest.num_rows != sum(table.num_rows for table in tables):
        raise InvariantViolated("a mutable bucket lost or duplicated a message")
    return due, rest


def _rows_to_keep(rest: pa.Table, batch_settings: BatchSettings) -> int:
    """Return how many rows stay: those due first, up to a quarter of each threshold.

    With the rest of it free, the next batches need not seal again. The nearest messages stay even if they are far away.
    So sealed messages are due after the kept ones, and are seldom due in the time that the prefetch window has loaded.
    """
    by_count = batch_settings.bucket_max_messages // 4
    by_bytes = rest.num_rows * (batch_settings.bucket_max_bytes // 4) // max(1, rest.nbytes)
    keep: int = min(by_count, by_bytes)
    # `by_bytes` assumes messages of equal size, but the near ones can be the large ones.
    while keep and rest.slice(0, keep).nbytes > batch_settings.bucket_max_bytes:
        keep //= 2
    return keep
