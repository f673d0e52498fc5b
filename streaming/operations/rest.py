"""The rest: messages that a lost job has accepted, neither staged nor in the table. They are accepted again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.setting_types import HOUR
from sources.intake.accept import accept
from sources.intake.accepted import Accepted
from state.answers import answered, answers_to, no_answers
from state.buckets.reseal import left_rows
from state.buckets.retimed import RETIMED_SCHEMA, due_times
from state.buckets.table_rows import ArrowFunction
from state.cancel import WAITING, MessageId, comes_with_message, own_ids, requests_of, without_cancelled
from state.checkpoint.batch_settings import BatchSettings
from state.checkpoint.staged import StagedMessages
from state.index.offset_bitmaps import OffsetBitmaps, in_bitmaps
from state.kinds import is_message, is_request, repeats, requests_in
from state.message import with_due_times
from state.message_ids import ID, contains_mask, ids_in, ids_of, places_in
from state.name_holders import HOLDER_SCHEMA
from state.names import KEEP, KEEP_TIME
from state.reasons import Reason, reasons_for
from streaming.operations.moved import Moved
from streaming.operations.schedules import left_of_input

# How long after its timestamp the lost job read a record, at the most.
_MOST_LAG_MS = HOUR


@dataclass(frozen=True)
class Rest:
    """Accepts the records that are neither staged nor in the table, in tasks of Spark.

    Asks for a cancel that have no answer yet get it here. Nothing is cancelled that the lost job did not cancel, but
    for messages that another one takes the name from (`state.name_holders`).

    `recalled` is what release processes have recalled, which is not left either, and `moved` what batches have moved.
    `now_ms` is the time at which the rest is accepted, epoch ms. `retimed` are messages that have taken over a due time
    (`RETIMED_SCHEMA`). `is_older` says whether the table lacks what followed messages that repeat.
    """

    staged: StagedMessages
    in_table: OffsetBitmaps
    cancelled: OffsetBitmaps
    recalled: OffsetBitmaps
    batch_settings: BatchSettings
    now_ms: int
    moved: Moved
    retimed: pa.Table = field(default_factory=RETIMED_SCHEMA.empty_table)
    is_older: bool = False

    def messages(self) -> ArrowFunction:
        """Return the function for `mapInArrow` that gives the messages, as rows of `LEFT_SCHEMA`."""

        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for rest, requests, refused in self._accepted(batches):
                answers = _answers(requests, (self.cancelled, self.recalled), self.moved.ids, refused)
                yield from left_rows(self._overdue(answered(rest, answers)), self.batch_settings.shards)

        return run

    def names(self, bucket: int) -> ArrowFunction:
        """Return the function that gives all messages that got a name, as rows of `name_holders.HOLDER_SCHEMA`.

        A message that is not left may have taken over the name of one that is. The rest is sealed in `bucket`.
        """

        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for accepted, rest in self._read(batches):
                # All requests: the message of a request may be left while the request itself is staged.
                requests = accepted.requests
                has_name = np.asarray(pc.is_valid(requests.column("name")))
                own = requests.filter(pa.array(has_name & comes_with_message(requests)))
                ids = own_ids(own)
                waiting = rest.filter(pa.array(~is_request(rest)))
                left = ids_in(waiting)
                times = ids.append_column("deliver_at_ms", own.column("deliver_at_ms"))
                # For a message that repeats, another occurrence may wait.
                places = places_in(waiting, ids)
                due = pc.coalesce(
                    waiting.column("deliver_at_ms").take(pa.array(places, mask=places < 0)),
                    pa.array(due_times(times, self.retimed)),
                )
                buckets = pa.repeat(pa.scalar(bucket), own.num_rows)
                keeps = pc.is_in(own.column("condition"), pa.array([KEEP, KEEP_TIME]))
                waits = pa.array(contains_mask(ids, left))
                columns = [own.column("name"), *ids.columns, due, due, keeps, buckets, waits]
                yield from pa.table(columns, names=HOLDER_SCHEMA.names).cast(HOLDER_SCHEMA).to_batches()

        return run

    def _accepted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.Table, pa.Table, set[MessageId]]]:
        """Yield messages that are left, with the requests among them, and which replacements are refused."""
        for accepted, rest in self._read(batches):
            is_left = contains_mask(own_ids(accepted.requests), ids_in(requests_in(rest)))
            requests = accepted.requests.filter(pa.array(is_left))
            refused = _refused(requests, self.cancelled)
            yield without_cancelled(rest, ids_of(refused)), requests, refused

    def _overdue(self, messages: pa.Table) -> pa.Table:
        """Return `messages` with dead letters and answers that the first batch stages, as any batch does.

        They are due by the clock, and the cutoff may be of long ago. Left for later batches, in a bucket that merges
        renumber, they would be found there as messages that wait.
        """
        dues = _dues(messages)
        overdue = np.minimum(dues, self.staged.overdue_ms)
        return with_due_times(messages, np.where(is_message(messages), dues, overdue))

    def _read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Accepted, pa.Table]]:
        """Yield what the records are accepted as, and the messages that are left of it."""
        for batch in batches:
            if batch.num_rows:
                records = pa.Table.from_batches([batch])
                accepted = accept(records, self.batch_settings, self.now_ms)
                messages = self._at_their_times(accepted.messages)
                # Buckets contain no requests. If the id of a request is in a bucket, its replacement is there.
                stored = in_bitmaps(messages, self.in_table) & ~is_request(messages)
                are_staged = self._is_staged(records, messages)
                left = self.moved.left_of(messages.filter(pa.array(~(are_staged | stored))))
                taken = are_staged & ~stored & repeats(messages)
                if taken.any():
                    following = left_of_input(messages.filter(pa.array(taken)), self.staged, self.is_older)
                    left = pa.concat_tables([left, following]).combine_chunks()
                yield accepted, left

    def _is_staged(self, records: pa.Table, messages: pa.Table) -> np.ndarray:
        """Return which of `messages`, accepted from `records`, the lost job has staged."""
        staged, newest = self.staged.of_input(messages), self.staged.newest
        before, up_to_newest = self.staged.before_newest(messages), self.staged.up_to_newest(messages)
        if newest.clock_ms and (up_to_newest & ~before).any():
            then = self._at_their_times(self._accepted_at(newest.clock_ms, records, messages))
            staged = np.where(up_to_newest, self.staged.of_input(then), staged)
        if before.any():
            staged = np.where(before, self.staged.of_input(self._as_lost(records, messages)), staged)
        return staged

    def _accepted_at(self, clock_ms: int, records: pa.Table, messages: pa.Table) -> pa.Table:
        """Return `messages` as a batch of the lost job has accepted them by this clock, epoch ms.

        A message that the publisher stamped ahead of it, a dead letter and a request are due then, and an instant that
        is too far away is shortened to the longest delay after it.
        """
        lost = accept(records, self.batch_settings, clock_ms).messages
        # The requests that come with the records follow the messages. There may be others, if the clock decides whether
        # a record is accepted.
        lost, own = lost.slice(0, records.num_rows), lost.slice(records.num_rows)
        requests = messages.slice(records.num_rows)
        if not own.select(ID).equals(requests.select(ID)):
            own = with_due_times(requests, np.minimum(_dues(requests), clock_ms))
        return pa.concat_tables([lost, own]).combine_chunks()

    def _as_lost(self, records: pa.Table, messages: pa.Table) -> pa.Table:
        """Return `messages` as the lost job can have accepted them before its newest batch: due then, or later."""
        lost = self._accepted_at(self.staged.newest.previous_clock_ms, records, messages)
        dues, topics = _dues(lost).copy(), lost.column("topic")
        latest = lost.column("timestamp_ms").to_numpy() + _MOST_LAG_MS
        for topic in topics.unique().to_pylist():
            policy = self.batch_settings.policy_of(topic)
            if policy.clamps:
                own = np.asarray(pc.equal(topics, topic))
                dues[own] = np.minimum(dues, latest + policy.most_ms)[own]
        return self._at_their_times(with_due_times(lost, dues))

    def _at_their_times(self, messages: pa.Table) -> pa.Table:
        """Return `messages`, each due at the time that it has taken over, if it has."""
        if not self.retimed.num_rows:
            return messages
        dues = np.where(is_message(messages), due_times(messages, self.retimed), _dues(messages))
        return with_due_times(messages, dues)


def _refused(requests: pa.Table, cancelled: OffsetBitmaps) -> set[MessageId]:
    """Return which replacements among `requests`, all without an answer yet, the new checkpoint does not accept.

    The lost job stored what it refused, and what it cancelled for those that it accepted. Others are not decided.
    """
    was_refused = in_bitmaps(own_ids(requests), cancelled).tolist()
    has_cancelled = in_bitmaps(requests, cancelled).tolist()
    return {
        request.id
        for request, refused, done in zip(requests_of(requests), was_refused, has_cancelled, strict=True)
        if refused or (request.condition == WAITING and not done)
    }


def _answers(
    requests: pa.Table, cancelled: Iterable[OffsetBitmaps], moved: OffsetBitmaps, refused: Collection[MessageId]
) -> pa.Table:
    """Return the answer to each of `requests` (`state.answers.ANSWER_SCHEMA`).

    `cancelled` has the cancelled messages, in several sets, and `moved` the messages that were moved and staged.
    """
    has_message = comes_with_message(requests)
    # The outcome of these messages is decided later.
    is_named = has_message & np.asarray(pc.is_valid(requests.column("name")))
    is_unwanted = is_named & ~np.asarray(requests.column("wants_answer").fill_null(False))
    were_cancelled = np.logical_or.reduce([in_bitmaps(requests, each) for each in cancelled]) & ~is_named
    were_moved = in_bitmaps(requests, moved) & ~were_cancelled & ~is_named
    is_replacement, delivers = has_message & ~is_named, np.asarray(requests.column("delivers"))
    is_refused = is_replacement & contains_mask(own_ids(requests), ids_of(refused))
    reasons = np.full(requests.num_rows, Reason.CHECKPOINT_LOST, dtype=object)
    reasons[were_cancelled] = Reason.WITHDRAWN
    reasons[were_moved] = Reason.MADE_DUE
    reasons = reasons_for(reasons, delivers, is_refused)
    wanted = pa.array(~is_unwanted)
    accepted = pa.array(~is_refused, mask=~is_replacement).filter(wanted)
    return pa.concat_tables(
        [
            answers_to(requests.filter(wanted), reasons[~is_unwanted], accepted),
            no_answers(requests.filter(pa.array(is_unwanted))),
        ]
    )


def _dues(messages: pa.Table) -> np.ndarray:
    return np.asarray(messages.column("deliver_at_ms").to_numpy())
