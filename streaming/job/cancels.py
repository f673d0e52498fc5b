"""Deciding cancels: where each message is that a batch's asks ask for, and what that means.

| the message | the answer |
| --- | --- |
| is in the mutable bucket of its shard, or came in the same batch | `cancelled`: the state stage has taken it out |
| is sealed, and not handed over | `cancelled`: its id is stored, and takes it out of each window and merge |
| was cancelled before by a batch, or recalled by a release process | `cancelled`, with what waits and has the same id |
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
from state.buckets.cancelled import (
    CANCELLED_SCHEMA,
    NEVER_MS,
    NONE_CANCELLED,
    NOTHING_FORGETTABLE,
    CancelledIds,
    Forgettable,
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
from state.message_ids import ID, NO_IDS, Ids, among, each_of, ids_in, ids_of, united
from state.names import NAMED_SCHEMA
from streaming.checkpoint.recovery import read_markers
from streaming.job.answers import Replacements, answers_by, answers_for_nothing
from streaming.job.names import LookedUp, look_up, useful_from_ms
from streaming.job.outcomes import Outcomes
from streaming.job.recalled import RecalledMessages
from streaming.job.sealed_ids import SealedIds
from streaming.job.stored_ids import StoredIds

log = logging.getLogger(__name__)

_FORGET_EVERY_S = 60.0
# How long the markers are taken for the present ones. There is one to read for each shard.
_MARKERS_S = 600.0
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

    What a batch has stored is noted beside the batches after it. Only one that is asked for something waits for that.
    """

    def __init__(
        self, store: BucketTable, settings: Settings, has_run: bool = False, is_expected: bool = False
    ) -> None:
        """Take the table of sealed buckets.

        `has_run` says whether earlier processes have handed messages over, and `is_expected` that somebody will ask:
        then the ids are read beside the first batches, and not when somebody does.
        """
        self._store = store
        self._settings = settings
        self._recalled = RecalledMessages(settings, has_run)
        self._stored_ids = StoredIds(store)
        self._sealed_ids = SealedIds(store)
        # Whether the batch that decides first has stored something before; None before that.
        self._is_replay: bool | None = None
        self._notes = ThreadPoolExecutor(max_workers=1, thread_name_prefix="notes")
        # In the order in which they are taken.
        self._running: list[Future[None]] = []
        self._unnoted: Callable[[], None] | None = None
        self._is_expected = is_expected
        # When ids were forgotten last, by the monotonic clock.
        self._forgot_s = time.monotonic()
        # The newest batch by the markers, before whose previous cutoff all is handed over, and when they were read, by
        # the monotonic clock.
        self._shown: BatchSpan | None = None
        self._markers_s = -math.inf

    def close(self) -> None:
        """Close the consumers of the recalled topic, and the files of ids.

        They stay open if they are read for so long that the process had better end.
        """
        self._notes.shutdown(wait=False, cancel_futures=True)
        if not wait(self._running, _CLOSE_S).not_done:
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
        marker is written. And a later process must know which messages this one knows: so nothing is old before that is
        stored with the recalled topic.
        """
        newest = self._newest_shown()
        if newest is None:
            return NOTHING_FORGETTABLE
        return Forgettable(min(cutoff_ms, newest.previous_ms), newest.bucket, self._recalled.known_from)

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
        """Start to note what the last batch has stored, which Spark has committed by now: it will not be replayed.

        Raises what an earlier note has raised.
        """
        self._wait_for([note for note in self._running if note.done()])
        if self._unnoted is not None:
            self._running.append(self._notes.submit(self._unnoted))
            self._unnoted = None

    def _wait_for(self, notes: Iterable[Future[None]]) -> None:
        for note in notes:
            note.result()
            self._running.remove(note)

    def _take_note(self, decision: Decision, span: BatchSpan, clock_ms: int) -> None:
        if self._is_replay:
            # What it had stored before may be less.
            self._stored_ids.close()
        elif decision.cancelled.num_rows or decision.names.num_rows:
            self._stored_ids.add(decision.cancelled, decision.names, span.bucket, decision.replaced)
        self._is_replay = False
        if self._is_expected:
            self._is_expected = False
            self._stored_ids.open(span.origin.bucket_of(span.batch_id + 1), span.ends)
            self._sealed_ids.look_ahead(is_used=True)
        if time.monotonic() > self._forgot_s + _FORGET_EVERY_S:
            self._forgot_s = time.monotonic()
            # Not what is handed over and not due: it has its name, and who cancels it again is answered as before.
            before_ms = useful_from_ms(span, clock_ms)
            self._recalled.forget(_handed_over_below(span), before_ms)
            self._stored_ids.forget(before_ms, self._recalled.known_from)

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
        self._wait_for([*self._running])
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
        if not_waiting:
            self._recalled.read(_handed_over_below(span))
            outcomes.set_cancelled(self._recalled.among(not_waiting))
        # A lost batch may have taken out what a replacement names that is read again.
        conditional = ids_in(asks.filter(pc.equal(asks.column("condition"), WAITING)))
        replacements = Replacements.of(asks, outcomes.cancelled, self._stored_ids.replaced_among(conditional))
        outcomes.cancel(replacements.refused)
        outcomes.close(self._recalled.known_from)
        cancelled = outcomes.cancelled
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

    def _waiting(self, ids: Ids, span: BatchSpan, cancelled: CancelledIds = NONE_CANCELLED) -> pa.Table:
        """Return which of `ids` wait in an earlier bucket: not handed over before this batch, and not `cancelled`."""
        if not ids:
            return CANCELLED_SCHEMA.empty_table()
        # The index and chunks, of one version: a merge moves messages to other parts.
        version = self._store.version()
        previous_ms = _handed_over_below(span)
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


def _handed_over_below(span: BatchSpan) -> int:
    """Return the cutoff below which all was handed over before the batch of `span`, epoch ms."""
    return max(span.previous_ms, span.origin.cutoff_ms)


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
