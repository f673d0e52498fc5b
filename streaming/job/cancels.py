"""Deciding cancels: where each message is that a batch's asks ask for, and what that means.

| the message | the answer |
| --- | --- |
| is in the mutable bucket of its shard, or came in the same batch | `cancelled`: the state stage has taken it out |
| is sealed, and not handed over | `cancelled`: its id is stored, and takes it out of each window and merge |
| was cancelled before, by a batch or by a release process | `cancelled`, with what waits and has the same id |
| is a replacement that was refused | `cancelled`: its id is stored like that of a cancelled message |
| is none of these | the release processes answer (`sinks.release.recall`): it is handed over, or was a dead letter |
| is not read yet, or of no input topic | `unknown` |

An ask by a name asks for the message that has the name (`streaming.job.names`). Nobody waits for an answer if that
came with a message; then it is passed on only if the message before is handed over, and dropped otherwise.

A replacement that is accepted is handed over or sealed like any message. One that is refused counts as cancelled: if
its batch has sealed it, each window and merge leaves it out.

A replay decides the same. What earlier batches cancelled and sealed is known by the numbers of their buckets. A message
that waits in a bucket stays there until it is handed over or cancelled, whatever is merged. And what this batch cancels
is stored before any of its answers is handed over: a rebuild, which has no replay, finds it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row
from pyspark.sql.functions import expr
from pyspark.sql.pandas.types import from_arrow_schema

from conf.errors import BrokerUnreachable
from conf.settings import Settings
from sinks.bucket_table import BucketTable
from sinks.internal_topics.broker_retry import BrokerRetry
from sinks.topics.topics import input_offsets_at
from state.buckets.cancelled import (
    CANCELLED_SCHEMA,
    NEVER_MS,
    NONE_CANCELLED,
    NOTHING_FORGETTABLE,
    CancelledIds,
    Forgettable,
    in_no_bucket,
)
from state.buckets.operator import ASKED, DUE, KEPT, SEALED
from state.buckets.parts import part_of
from state.cancel import (
    ANSWER_SCHEMA,
    ASK_SCHEMA,
    WAITING,
    MessageId,
    Undecided,
    replacement_ids,
)
from state.checkpoint.handed_over import newest_checkpoint
from state.checkpoint.progress import BatchSpan
from state.kinds import is_message
from state.message import decode_chunk
from state.message_ids import ID, NO_IDS, Ids, among, each_of, ids_in, ids_of, is_below, united
from state.names import NAMED_SCHEMA
from streaming.checkpoint.recovery import read_markers
from streaming.job.answers import Replacements, answers_by, answers_for_nothing
from streaming.job.names import LookedUp, look_up, useful_from_ms
from streaming.job.outcomes import Mask, Outcomes
from streaming.job.recalled import RecalledMessages
from streaming.job.sealed_ids import SealedIds
from streaming.job.stored_ids import StoredIds

log = logging.getLogger(__name__)

# How long the offsets below which messages are old are taken for the present ones.
_OLD_BELOW_S = 60.0
_FORGET_EVERY_S = 60.0
# How long the markers are taken for the present ones. There is one to read for each shard.
_MARKERS_S = 600.0
# How many answers lie in the results topic before what release processes have answered is read back, asked for or not:
# a batch that must know it reads so many, and not those of days.
_MOST_ANSWERS_UNREAD = 10_000
# How long they lie there before that at most: far shorter than the topic keeps them.
_UNREAD_S = 3_600.0
_CLOSE_S = 5.0


@dataclass(frozen=True)
class Decision:
    """What a batch decides: its answers, the messages that it cancels, and what it does not hand over.

    `answers` has the columns of `ANSWER_SCHEMA`, `cancelled` those of `CANCELLED_SCHEMA`. `left_out` are messages that
    came with the batch, and are not handed over if they are due now: replacements that it refuses, and others that are
    cancelled. They are among the cancelled messages. `names` are the messages that got a name in the batch
    (`state.names.NAMED_SCHEMA`). `replaced` has the replacement of each cancelled message that one has cancelled.
    """

    answers: pa.Table = field(default_factory=ANSWER_SCHEMA.empty_table)
    cancelled: pa.Table = field(default_factory=CANCELLED_SCHEMA.empty_table)
    left_out: Ids = field(default_factory=dict)
    names: pa.Table = field(default_factory=NAMED_SCHEMA.empty_table)
    replaced: Mapping[MessageId, MessageId] = field(default_factory=dict)

    def shows(self, cutoff_ms: int) -> bool:
        """Return whether anybody can tell, by what is handed over below `cutoff_ms` (epoch ms), what is cancelled.

        By an answer, or by the message in whose favour something is cancelled. Then it must be stored before: a rebuild
        would not know it, and deliver the cancelled message as well.
        """
        if not self.cancelled.num_rows:
            return False
        is_told = pc.any(pc.is_valid(self.answers.column("value"))).as_py()
        return bool(is_told or pc.any(pc.less(self.names.column("deliver_at_ms"), cutoff_ms)).as_py())


class CancelDesk:
    """Decides the asks of one batch after the other. Only the query's thread may use it.

    What a batch has stored is noted beside the next one, whose state stage takes longer.
    """

    def __init__(self, store: BucketTable, settings: Settings, ran_until_ms: int = 0) -> None:
        """Take the table of sealed buckets.

        `ran_until_ms` is the cutoff (epoch ms) up to which earlier processes have handed messages over, 0 if none has.
        """
        self._store = store
        self._settings = settings
        self._recalled = RecalledMessages(settings, ran_until_ms)
        self._stored_ids = StoredIds(store)
        self._sealed_ids = SealedIds(store)
        # Whether the batch that decides first has stored something before; None before that.
        self._is_replay: bool | None = None
        # How many asks were answered since the results topic was read back, and when that was, by the monotonic clock.
        self._answers_unread, self._recalled_s = 0, time.monotonic()
        self._notes = ThreadPoolExecutor(max_workers=1, thread_name_prefix="notes")
        self._note = Future[None]()
        self._note.set_result(None)
        self._unnoted: Callable[[], None] | None = None
        # When ids were forgotten last, by the monotonic clock.
        self._forgot_s = time.monotonic()
        # Below which offset of each input partition messages are old, and when that was read, by the monotonic clock.
        self._old_below: dict[tuple[str, int], int] = {}
        self._read_s = -math.inf
        self._reading = threading.Lock()
        # The cutoff before the newest batch that was asked for something, or whose ids are joined, epoch ms.
        self._cutoff_ms = 0
        # The newest batch by the markers, before whose previous cutoff all is handed over, and when they were read, by
        # the monotonic clock.
        self._shown: BatchSpan | None = None
        self._markers_s = -math.inf

    def close(self) -> None:
        """Close the consumers of answers, and the files of ids, unless they are read for so long that the process had
        better end.
        """
        self._notes.shutdown(wait=False, cancel_futures=True)
        if wait([self._note], _CLOSE_S).done:
            self._recalled.close()
            self._stored_ids.close()
        self._sealed_ids.close()

    def look_ahead(self) -> None:
        """Read of the table what the next batch must know if it is asked for as much as this one. Any thread may."""
        self._sealed_ids.look_ahead()

    def forgettable(self, cutoff_ms: int) -> Forgettable:
        """Return which cancelled ids are of no use any more. Any thread may call it.

        Such a message is due before `cutoff_ms` (epoch ms), below which everything is handed over, and old: its input
        topic has deleted the record, or it is older than `cancels.known_for`. Whoever asks for it again gets `unknown`.

        The markers must show it too, and be newer than the batch that cancelled it: otherwise a rebuild would not know
        why it was not handed over, and if its record is there would accept it again. While nothing is handed over, no
        marker is written. And a later process must know for how long this one knows messages.
        """
        if not self._recalled.has_noted:
            return NOTHING_FORGETTABLE
        with suppress(BrokerUnreachable):
            self._read_old_below(cutoff_ms)
        newest = self._newest_shown()
        if newest is None:
            return NOTHING_FORGETTABLE
        return Forgettable(min(cutoff_ms, newest.previous_ms), newest.bucket, self._old_below)

    def _newest_shown(self) -> BatchSpan | None:
        """Return the newest batch by the markers, as they were not long ago; None if they show none."""
        if time.monotonic() > self._markers_s + _MARKERS_S:
            with suppress(BrokerUnreachable):
                handed_over = newest_checkpoint(read_markers(self._settings))
                self._shown = None if handed_over is None else handed_over.newest
                self._markers_s = time.monotonic()
        return self._shown

    def stored(self, decision: Decision, span: BatchSpan, clock_ms: int) -> None:
        """Take note that the batch of `span` has stored `decision`. `clock_ms` is its clock, epoch ms."""
        self.before_batch()
        self._unnoted = partial(self._take_note, decision, span, clock_ms)

    def before_batch(self) -> None:
        """Start to note what the last batch has stored, which Spark has committed by now: it will not be replayed."""
        self._note.result()
        if self._unnoted is not None:
            self._note, self._unnoted = self._notes.submit(self._unnoted), None

    def _take_note(self, decision: Decision, span: BatchSpan, clock_ms: int) -> None:
        if self._is_replay:
            # What it had stored before may be less.
            self._stored_ids.close()
        elif decision.cancelled.num_rows or decision.names.num_rows:
            self._stored_ids.add(decision.cancelled, decision.names, span.bucket, decision.replaced)
        self._is_replay = False
        forgets = time.monotonic() > self._forgot_s + _FORGET_EVERY_S
        is_long_ago = time.monotonic() > self._recalled_s + _UNREAD_S
        # A note that is missing keeps all from being forgotten.
        is_missing = forgets and not self._recalled.has_noted
        if self._answers_unread > _MOST_ANSWERS_UNREAD or is_long_ago or is_missing:
            self._answers_unread, self._recalled_s = 0, time.monotonic()
            self._recalled.look_ahead()
        if forgets:
            self._forgot_s = time.monotonic()
            # Not what is handed over and not due: it has its name, and who cancels it again is answered as before.
            self._stored_ids.forget(useful_from_ms(span, clock_ms), self._old_below)

    def decide(
        self,
        shard_output: DataFrame,
        rows: Iterable[Row],
        span: BatchSpan,
        clock_ms: int,
        taken_before_ms: int = 0,
    ) -> Decision:
        """Return the decision about the asks of a batch.

        Args:
            shard_output: what the state stage gives.
            rows: the same (`driver_rows`).
            span: the batch.
            clock_ms: its clock, epoch ms.
            taken_before_ms: all that forwarders have taken by now is due before (epoch ms).
        """
        if not any(row["kind"] == ASKED for row in rows):
            return Decision()
        self.before_batch()
        self._note.result()
        due_before_ms = max(span.cutoff_ms, taken_before_ms)
        every_ask, found = _asks(rows)
        asked_ms = time.time_ns() // 1_000_000
        self._open(span)
        asks, for_nothing, named = self._by_id(every_ask, span, clock_ms)
        outcomes = Outcomes(ids_in(asks), span.ends)
        outcomes.cancel(found)
        outcomes.cancel(named.superseded)
        due_now = self._look_for(outcomes, named, shard_output, rows, span)
        not_waiting = outcomes.open_ids()
        self._answers_unread += asks.num_rows
        recalled = self._recall(outcomes, not_waiting, due_before_ms)
        # A lost batch may have taken out what a replacement names that is read again.
        conditional = ids_in(asks.filter(pc.equal(asks.column("condition"), WAITING)))
        replacements = Replacements.of(asks, outcomes.cancelled, self._stored_ids.replaced_among(conditional))
        outcomes.cancel(replacements.refused)
        outcomes.close(partial(self._is_old, span=span), self._recalled.unsure_below)
        cancelled = pa.concat_tables([outcomes.cancelled, recalled])
        log.info(
            "batch %d: answers %d asks, cancels %d messages, and refuses %d replacements",
            span.batch_id, asks.num_rows, cancelled.num_rows - replacements.refused.num_rows,
            replacements.refused.num_rows,
        )  # fmt: skip
        shards = span.origin.shards
        undecided = Undecided(due_before_ms, asked_ms if self._recalled.knows_all else 0, shards, shards - 1)
        answers = [
            answers_by(outcomes, asks, not_waiting, replacements.accepted, undecided),
            answers_for_nothing(for_nothing),
        ]
        refused = ids_of(each for each in each_of(replacement_ids(asks)) if each not in replacements.accepted)
        left_out = united([refused, ids_in(due_now), ids_in(named.superseded)])
        return Decision(pa.concat_tables(answers), cancelled, left_out, named.names, replacements.replaced)

    def _open(self, span: BatchSpan) -> None:
        """Read what earlier batches have stored, and find out whether this one has, before it was cut off."""
        if self._is_replay is None:
            stored = self._store.newest_of(span.origin.checkpoint)
            self._is_replay = stored is not None and stored >= span.batch_id
        self._stored_ids.open(span.bucket, span.starts)

    def _by_id(self, asks: pa.Table, span: BatchSpan, clock_ms: int) -> tuple[pa.Table, pa.Table, LookedUp]:
        """Look up the names that `asks` ask by.

        Returns the asks, by the id of a message now; those by a name that nothing has, which need no decision; and what
        was found.
        """
        has_name = pc.is_valid(asks.column("name"))
        waiting = partial(self._waiting, span=span)
        named = look_up(asks.filter(has_name), self._stored_ids, span, clock_ms, waiting)
        every = pa.concat_tables([asks.filter(pc.invert(has_name)), named.asks])
        is_for_something = pc.greater_equal(every.column("offset"), 0)
        return every.filter(is_for_something), every.filter(pc.invert(is_for_something)), named

    def _look_for(
        self, outcomes: Outcomes, named: LookedUp, shard_output: DataFrame, rows: Iterable[Row], span: BatchSpan
    ) -> pa.Table:
        """Cancel what waits, wherever that is.

        Returns what this batch would hand over otherwise (`CANCELLED_SCHEMA`).
        """
        if not (not_found := outcomes.open_ids()):
            return CANCELLED_SCHEMA.empty_table()
        known = self._stored_ids.cancelled_among(not_found)
        outcomes.set_cancelled(known.ids)
        outcomes.cancel(named.held.filter(pa.array(among(named.held, outcomes.open_ids()))))

        def wanted(but: Ids = NO_IDS) -> Ids:
            # Of an input topic that was made anew, another message may have the id of one that was cancelled.
            return united([outcomes.open_ids(but), known.ids])

        # The first batch finds there what an earlier checkpoint has left, however long it is due.
        handed_over = ids_in(named.handed_over) if span.batch_id else NO_IDS
        outcomes.cancel(self._waiting(wanted(but=handed_over), span, known))
        outcomes.cancel(_passed_by(wanted(), SEALED, shard_output, rows))
        due_now = _passed_by(wanted(), DUE, shard_output, rows)
        outcomes.cancel(due_now)
        return due_now

    def _recall(self, outcomes: Outcomes, not_waiting: Ids, due_before_ms: int) -> pa.Table:
        """Read which messages release processes have cancelled, up to now if `not_waiting` has any.

        Returns what is not stored yet of what they have answered, which is stored with what this batch cancels
        (`CANCELLED_SCHEMA`).
        """
        if not_waiting:
            self._answers_unread, self._recalled_s = 0, time.monotonic()
            recalled = self._recalled.read()
        else:
            recalled = self._recalled.read_ahead()
        outcomes.set_cancelled(recalled)
        if self._is_replay:
            # A replay stores nothing more: the next batch reads it again.
            self._recalled.begin_again()
        # They were handed over, so they are due before. Until then they have their names.
        return in_no_bucket(recalled, due_before_ms - 1)

    def _is_old(self, asked: pa.Table, span: BatchSpan) -> Mask:
        """Return of which messages the record is deleted, or older than `cancels.known_for` at the batch of `span`.

        Waits through an outage if nothing is known yet: an earlier process may have forgotten any of them. Raises
        BrokerUnreachable after `kafka.outage_limit`.
        """
        cutoff_ms = max(span.previous_ms, span.origin.cutoff_ms)
        retry = BrokerRetry("the input topics", self._settings.kafka.outage_limit)
        while self._read_s == -math.inf:
            try:
                self._read_old_below(cutoff_ms)
            except BrokerUnreachable as problem:
                retry.wait(problem)
        if time.monotonic() > self._read_s + _OLD_BELOW_S:
            # In an outage what was read before holds: offsets only grow.
            with suppress(BrokerUnreachable):
                self._read_old_below(cutoff_ms)
        return is_below(asked, self._old_below)

    def _read_old_below(self, cutoff_ms: int) -> None:
        """Read which messages are old by now, if the cutoff before this batch or an earlier one is `cutoff_ms`.

        What is forgotten must be old for all that ask later, also after a restart: so the age counts by cutoffs, which
        never go back, and not by the clock. Raises BrokerUnreachable.
        """
        # One after the other: what is read first must not take the place of what is read next.
        with self._reading:
            self._cutoff_ms = max(self._cutoff_ms, cutoff_ms)
            self._old_below = input_offsets_at(self._settings, self._cutoff_ms - self._settings.cancels.known_for)
            self._read_s = time.monotonic()

    def _waiting(self, ids: Ids, span: BatchSpan, cancelled: CancelledIds = NONE_CANCELLED) -> pa.Table:
        """Return which of `ids` wait in an earlier bucket: not handed over before this batch, and not `cancelled`."""
        if not ids:
            return CANCELLED_SCHEMA.empty_table()
        # The index and chunks, of one version: a merge moves messages to other parts.
        version = self._store.version()
        previous_ms = max(span.previous_ms, span.origin.cutoff_ms)
        # The first batch hands over what an earlier checkpoint has left, however long it is due.
        first_ms = previous_ms if span.batch_id else 0
        located = self._sealed_ids.locate(ids, span.bucket, first_ms, version)
        if cancelled.ids:
            located = located.filter(pa.array(~cancelled.among(located, located.column("bucket").to_numpy())))
        from_ms, until_ms = (located.column(name).to_numpy() for name in ("from_ms", "until_ms"))
        waits = from_ms >= previous_ms
        if not span.batch_id:
            waits |= located.column("bucket").to_numpy() == span.origin.overdue_bucket
        doubtful = ~waits & (until_ms >= previous_ms)
        waiting = located.filter(pa.array(waits)).select(CANCELLED_SCHEMA.names).cast(CANCELLED_SCHEMA)
        still = self._still_waiting(located.filter(pa.array(doubtful)), previous_ms, version)
        return pa.concat_tables([waiting, still])

    def _still_waiting(self, doubtful: pa.Table, previous_ms: int, version: int) -> pa.Table:
        """Return those that are due at `previous_ms` or later, which the index does not know exactly."""
        if not doubtful.num_rows:
            return CANCELLED_SCHEMA.empty_table()
        parts = {part_of(metadata) for metadata in doubtful.column("part").unique().to_pylist()}
        end_ms = 1 + pc.max(doubtful.column("until_ms")).as_py()
        buckets = set(doubtful.column("bucket").unique().to_pylist())
        chunks = self._store.chunks(previous_ms, end_ms, parts, buckets, version)
        return _dues(chunks, ids_in(doubtful)).filter(pc.field("from_ms") >= previous_ms)


def driver_rows(shard_output: DataFrame) -> list[Row]:
    """Return the rows that the state stage of a batch gives, without chunks of messages, which no driver reads."""
    return shard_output.withColumn("chunk", expr(f"IF(kind IN ('{ASKED}', '{KEPT}'), chunk, NULL)")).collect()


def _asks(rows: Iterable[Row]) -> tuple[pa.Table, pa.Table]:
    """Return the asks of a batch, and the messages that the state stage has taken out (`CANCELLED_SCHEMA`)."""
    tables = [(row["shard"], decode_chunk(bytes(row["chunk"]))) for row in rows if row["kind"] == ASKED]
    asks = pa.concat_tables([table for shard, table in tables if shard == 0])
    found = pa.concat_tables([table for _, table in tables]).filter(pc.is_valid(pc.field("found_due_ms")))
    # Several asks may name one message.
    taken_out = found.group_by(list(ID)).aggregate([("found_due_ms", "max")])
    never = pa.repeat(pa.scalar(NEVER_MS), taken_out.num_rows)
    columns = [*(taken_out.column(name) for name in ID), never, taken_out.column("found_due_ms_max")]
    return asks.select(ASK_SCHEMA.names), pa.table(columns, schema=CANCELLED_SCHEMA)


def _passed_by(ids: Ids, kind: str, shard_output: DataFrame, rows: Iterable[Row]) -> pa.Table:
    """Return those of `ids` that this batch seals, or hands over, from overflow groups.

    These have no state, and take nothing out. `kind` is `SEALED` or `DUE`.
    """
    # Each group says what it keeps, and overflow groups come beside the group of their shard.
    groups = Counter(row["shard"] for row in rows if row["kind"] == KEPT)
    if not ids or max(groups.values(), default=0) < 2 or all(row["kind"] != kind for row in rows):
        return CANCELLED_SCHEMA.empty_table()
    return _dues(shard_output.where(f"kind = '{kind}'"), ids)


def _dues(chunks: DataFrame, ids: Ids) -> pa.Table:
    """Return those of `ids` that are in `chunks`, with their due times, as a table of `CANCELLED_SCHEMA`.

    Neither dead letters nor asks.
    """
    found = chunks.select("chunk").mapInArrow(_finding(ids), from_arrow_schema(CANCELLED_SCHEMA))
    return found.toArrow()


def _finding(ids: Ids) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for chunk in batch.column("chunk"):
                messages = decode_chunk(chunk.as_py())
                named = among(messages, ids) & is_message(messages)
                found = messages.filter(pa.array(named))
                due = found.column("deliver_at_ms")
                columns = [*(found.column(name) for name in ID), due, due]
                yield from pa.table(columns, names=CANCELLED_SCHEMA.names).cast(CANCELLED_SCHEMA).to_batches()

    return run
