"""Finds the messages that the requests of a batch are for: in its state stage, in the table, or in neither.

The state stage has already taken out the messages that it found. This module looks for messages that pass through
overflow groups, and for sealed messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row
from pyspark.sql.functions import expr

from sinks.buckets.bucket_table import BucketTable
from state.buckets.cancelled import CANCELLED_SCHEMA, NEVER_MS, NONE_CANCELLED, CancelledIds
from state.buckets.operator import ASKED, DUE, KEPT, NAMED, SEALED, TAKEN_OUT
from state.cancel import MessageId, in_vain, own_ids, undecided_ids
from state.checkpoint.progress import BatchSpan
from state.kinds import repeats
from state.message import decode_chunk
from state.message_ids import ID, NO_IDS, Ids, contains_mask, ids_in, ids_of, to_set, union, without
from state.reasons import Reason
from state.repeats.waiting import Predecessor
from streaming.job.requests.chunk_reading import found_in, repeating_in, still_there
from streaming.job.requests.names import LookedUp
from streaming.job.requests.outcomes import Outcomes
from streaming.job.requests.sealed_ids import SealedIds
from streaming.job.requests.stored_ids import StoredIds
from streaming.job.requests.waiting import NOTHING_WAITS, Waiting


def driver_rows(shard_output: DataFrame) -> list[Row]:
    """Return the rows of a batch's state stage, without chunks of messages, which the driver does not read."""
    kinds = f"'{ASKED}', '{TAKEN_OUT}', '{KEPT}', '{NAMED}'"
    return shard_output.withColumn("chunk", expr(f"IF(kind IN ({kinds}), chunk, NULL)")).collect()


class BatchRequests(NamedTuple):
    """The requests of a batch (`REQUEST_SCHEMA`), and the messages that its state stage has found (`CANCELLED_SCHEMA`).

    The state stage has removed the `taken_out` messages. The `undecided` messages (`state.cancel.is_undecided`) are in
    rows of the batch. `repeating` are the messages that repeat: those found, and those that came with the requests.
    """

    requests: pa.Table
    taken_out: pa.Table
    undecided: pa.Table
    repeating: Ids


def read_requests(rows: Iterable[Row]) -> BatchRequests:
    """Return the requests in the rows of a batch, and the messages found for them."""
    tables = [(row["kind"], decode_chunk(bytes(row["chunk"]))) for row in rows if row["kind"] in (ASKED, TAKEN_OUT)]
    requests = pa.concat_tables([table for kind, table in tables if kind == ASKED])
    found = [table for kind, table in tables if kind == TAKEN_OUT]
    comes_again = ids_in(own_ids(requests.filter(requests.column("repeats").fill_null(False))))
    if not found:
        return BatchRequests(requests, CANCELLED_SCHEMA.empty_table(), CANCELLED_SCHEMA.empty_table(), comes_again)
    # Two messages have the same id if an input topic was created again.
    by_id = pa.concat_tables(found).group_by(list(ID)).aggregate([("deliver_at_ms", "max")])
    dues, is_undecided = by_id.column("deliver_at_ms_max"), pa.array(contains_mask(by_id, undecided_ids(requests)))
    froms = pc.if_else(is_undecided, dues, pa.scalar(NEVER_MS))
    messages = pa.table([*(by_id.column(name) for name in ID), froms, dues], schema=CANCELLED_SCHEMA)
    repeating = pa.concat_tables(found)
    repeating = repeating.filter(pa.array(repeats(repeating)))
    comes_again = union([comes_again, ids_in(repeating)])
    taken_out, undecided = messages.filter(pc.invert(is_undecided)), messages.filter(is_undecided)
    return BatchRequests(requests, taken_out, undecided, comes_again)


@dataclass
class Search:
    """Looks for messages wherever they wait, for the requests of the batch of `span`.

    - `store`, `stored_ids`, `sealed_ids`: the table, and the copies of its ids
    - `shard_output`, `rows`: the output of its state stage, and its `driver_rows`
    - `may_repeat`: whether any message that waits in the table repeats
    - `numbers`: the number of the waiting occurrence of each message that repeats, once it is found
    - `waits`: the messages that wait in the table, once they are found
    """

    store: BucketTable
    stored_ids: StoredIds
    sealed_ids: SealedIds
    shard_output: DataFrame
    rows: Sequence[Row]
    span: BatchSpan
    may_repeat: bool
    numbers: dict[MessageId, int] = field(default_factory=dict)
    waits: Waiting = NOTHING_WAITS

    def asked_for(self, requests: pa.Table, repeating: Ids) -> Ids:
        """Return the ids in `requests` (`REQUEST_SCHEMA`), but not from deliver-now requests for messages that repeat.

        `repeating` are the messages that repeat and came with the batch.
        """
        if self.may_repeat:
            keeping = ids_in(self.stored_ids.keeping_among(undecided_ids(requests)))
            waits = self.waiting(keeping, self.stored_ids.cancelled_among(keeping))
            repeating = union([repeating, ids_of(waits.repeating)])
        return ids_in(requests.filter(pa.array(~in_vain(requests, repeating))))

    def take(self, outcomes: Outcomes, asked: BatchRequests, named: LookedUp, requests: pa.Table) -> pa.Table:
        """Let `outcomes` take the messages that `requests` are for (`REQUEST_SCHEMA`, by ids), wherever they wait.

        `asked` has the requests of the batch, and `named` the result of looking up their names. Returns the messages
        that this batch would otherwise seal or stage (`CANCELLED_SCHEMA`).
        """
        self.numbers |= dict.fromkeys(to_set(asked.repeating), 1)
        undecided = self._taken_of(asked.undecided, requests)
        for found in (asked.taken_out, undecided, named.superseded):
            outcomes.take(found)
        if not (not_found := outcomes.open_ids()):
            return undecided
        known = self.stored_ids.cancelled_among(not_found)
        outcomes.set(known.ids, Reason.WITHDRAWN)
        outcomes.set(self.stored_ids.moved_among(known.ids), Reason.MADE_DUE)
        is_held = pc.greater_equal(named.earlier.column("until_ms"), self.span.staged_below_ms)
        # Undecided messages, and messages that repeat, must be found in their places.
        if not self.may_repeat:
            held = named.earlier.filter(is_held)
            outcomes.take(held.filter(pa.array(contains_mask(held, outcomes.open_ids(but=undecided_ids(requests))))))

        def wanted(but: Ids = NO_IDS) -> Ids:
            # If an input topic was created again, a message may have the id of an older, cancelled one.
            return union([outcomes.open_ids(but), known.ids])

        # The first batch also finds the messages there that an earlier checkpoint has left, however overdue they are.
        staged = ids_in(named.earlier.filter(pc.invert(is_held))) if self.span.batch_id else NO_IDS
        self.waits = self.waiting(wanted(but=staged), known)
        self._know(self.waits.repeating)
        outcomes.take(self._taken_of(self.waits.messages, requests))
        passed = self._taken_of(self._passed_by(wanted()), requests)
        outcomes.take(passed)
        return pa.concat_tables([undecided, passed])

    def waiting(self, ids: Ids, cancelled: CancelledIds = NONE_CANCELLED) -> Waiting:
        """Return which of `ids` wait in a bucket of an earlier batch.

        They are not staged before this batch, and not `cancelled`. In a segment with messages that repeat, each message
        is read.
        """
        previous_ms = self.span.staged_below_ms
        # The first batch stages the messages that an earlier checkpoint has left, however overdue they are.
        overdue_bucket = None if self.span.batch_id else self.span.origin.overdue_bucket
        nothing = NOTHING_WAITS._replace(from_ms=previous_ms, overdue_bucket=overdue_bucket)
        if not ids:
            return nothing
        # Read the index and the chunks at one version: a merge moves messages to other parts.
        found = nothing._replace(version=self.store.version())
        from_ms = previous_ms if self.span.batch_id else 0
        located = self.sealed_ids.locate(ids, self.span.bucket, from_ms, found.version)
        if cancelled.ids:
            located = located.filter(pa.array(~cancelled.contains_mask(located, located.column("bucket").to_numpy())))
        froms, untils, buckets = (located.column(name).to_numpy() for name in ("from_ms", "until_ms", "bucket"))
        # A rebuild also seals dead letters and answers there, which have ids of messages. The first batch stages them.
        is_overdue = buckets == overdue_bucket
        waits = (froms >= previous_ms) & ~is_overdue
        certain = located.filter(pa.array(waits))
        doubtful = located.filter(pa.array(~waits & (is_overdue | (untils >= previous_ms))))
        looked_at = pa.concat_tables([certain.filter(pc.field("repeats")), doubtful])
        if not looked_at.num_rows:
            return found._replace(places=certain)
        there = found_in(self.store.chunks_at(looked_at, found.version), ids_in(looked_at))
        first_ms = pa.array([found.first_ms(each) for each in there.column("bucket").to_pylist()], pa.int64())
        there = there.filter(pc.greater_equal(there.column("deliver_at_ms"), first_ms))
        # Certain places keep their bounds, so that a replay decides the same although it may read other chunks.
        places = pa.concat_tables([certain, still_there(doubtful, there)])
        return found._replace(places=places, repeating=repeating_in(there))

    def _passed_by(self, ids: Ids) -> pa.Table:
        """Return the messages among `ids` that this batch seals or stages from overflow groups (`CANCELLED_SCHEMA`).

        Such groups have no state, and take nothing out.
        """
        # Each group has a row for its kept messages. Overflow groups come in addition to the group of their shard.
        groups = Counter(row["shard"] for row in self.rows if row["kind"] == KEPT)
        if not ids or max(groups.values(), default=0) < 2:
            return CANCELLED_SCHEMA.empty_table()
        found = found_in(self.shard_output.where(f"kind IN ('{SEALED}', '{DUE}')"), ids)
        self._know(repeating_in(found))
        due = found.column("deliver_at_ms")
        return pa.table([*(found.column(name) for name in ID), due, due], schema=CANCELLED_SCHEMA)

    def _know(self, repeating: Mapping[MessageId, Predecessor]) -> None:
        self.numbers |= {identity: each.number for identity, each in repeating.items()}

    def _taken_of(self, found: pa.Table, requests: pa.Table) -> pa.Table:
        """Return the `found` messages that `requests` take. A deliver-now request takes no message that repeats."""
        delivers = np.asarray(requests.column("delivers"))
        if not (self.numbers and delivers.any()):
            return found
        stays = without(ids_of(self.numbers), ids_in(requests.filter(pa.array(~delivers))))
        return found.filter(pa.array(~contains_mask(found, stays)))
