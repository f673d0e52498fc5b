"""Takes the asks of each batch, finds out what is known of their messages, and keeps what the batches decide.

`streaming.job.requests.decision` has the cases.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row

from conf.errors import BrokerUnreachable
from conf.settings import Settings
from sinks.buckets.bucket_table import BucketTable
from sinks.internal_topics.progress import read_markers
from state.answers import Undecided
from state.buckets.cancelled import (
    CANCELLED_SCHEMA,
    NONE_CANCELLED,
    NOTHING_FORGETTABLE,
    CancelledIds,
    Forgettable,
)
from state.buckets.moves import due_at_once_ms
from state.buckets.operator import ASKED
from state.cancel import WAITING, MessageId, delivering_ids, own_ids
from state.checkpoint.handed_over import newest_checkpoint
from state.checkpoint.progress import BatchSpan
from state.message_ids import NO_IDS, Ids, among, each_of, ids_in, ids_of, united, without
from state.reasons import Reason
from streaming.job.requests.decision import Decision, Facts, decide
from streaming.job.requests.names import LookedUp, look_up, useful_from_ms
from streaming.job.requests.outcomes import Outcomes
from streaming.job.requests.recalled import RecalledMessages
from streaming.job.requests.sealed_ids import SealedIds
from streaming.job.requests.search import Waiting, passed_by, read_asks, waiting
from streaming.job.requests.stored_ids import StoredIds
from streaming.spark.pools import MAINTENANCE, use_pool

log = logging.getLogger(__name__)

_FORGET_EVERY_S = 60.0
# How long the markers are taken for the present ones. There is one to read for each shard.
_MARKERS_S = 600.0
_CLOSE_S = 5.0


class RequestDesk:
    """Decides the asks of one batch after the other. Only the query's thread may use it.

    What a batch has stored is noted beside the batches after it. Only one that is asked for something waits for that.
    """

    def __init__(
        self,
        store: BucketTable,
        settings: Settings,
        epoch: int = 1,
        has_run: bool = False,
        is_expected: bool = False,
    ) -> None:
        """Take the table of sealed buckets, and the checkpoint's `epoch`.

        `has_run` says whether earlier processes have handed messages over, and `is_expected` that somebody will ask:
        then the ids are read beside the first batches, and not when somebody does.
        """
        self._store = store
        self._settings = settings
        self._recalled = RecalledMessages(settings, epoch, has_run)
        self._stored_ids = StoredIds(store)
        self._sealed_ids = SealedIds(store)
        # Whether the batch that decides first has stored something before; None before that.
        self._is_replay: bool | None = None
        # Of the newest decision: the messages that repeat, and the number of the occurrence that waited.
        self._numbers: dict[MessageId, int] = {}
        self._notes = ThreadPoolExecutor(max_workers=1, thread_name_prefix="notes")
        # In the order in which they are taken.
        self._running: list[Future[None]] = []
        self._unnoted: Callable[[], None] | None = None
        self._is_expected = is_expected
        # When ids were forgotten last, by the monotonic clock.
        self._forgot_s = -math.inf
        # The newest batch by the markers, before whose previous cutoff all is handed over, and when they were read, by
        # the monotonic clock.
        self._shown: BatchSpan | None = None
        self._markers_s = -math.inf
        # What the batch that was decided last has found in the table.
        self._waits: Waiting | None = None

    def close(self) -> None:
        """Close the consumers of the recalled topic, and the files of ids.

        They stay open if they are read for so long that the process had better end.
        """
        self._notes.shutdown(wait=False, cancel_futures=True)
        if not wait([note for note in self._running if not note.cancelled()], _CLOSE_S).not_done:
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
            self._read_early(span)
        if time.monotonic() > self._forgot_s + _FORGET_EVERY_S:
            self._forgot_s = time.monotonic()
            # Not what is handed over and not due: it has its name, and who cancels it again is answered as before.
            before_ms = useful_from_ms(span, clock_ms)
            self._recalled.forget(span.handed_over_below_ms, before_ms)
            self._stored_ids.forget(before_ms, self._recalled.known_from)

    def _read_early(self, span: BatchSpan) -> None:
        """Read the ids as the batch after that of `span` would, if it were asked for something."""
        use_pool(self._store.spark, MAINTENANCE)
        try:
            self._stored_ids.open(span.origin.bucket_of(span.batch_id + 1), span.origin)
            self._sealed_ids.look_ahead(is_expected=True)
        # Whatever it is, a batch that needs the ids reads them again, and fails by it.
        except Exception:
            log.warning("the ids of cancelled and sealed messages could not be read ahead", exc_info=True)
            self._stored_ids.close()

    def decide(
        self,
        shard_output: DataFrame,
        rows: Iterable[Row],
        span: BatchSpan,
        clock_ms: int,
        taken_before_ms: int = 0,
        may_repeat: bool = False,
    ) -> Decision:
        """Return the decision about the asks of a batch.

        Args:
            shard_output: what the state stage gives.
            rows: the same (`driver_rows`).
            span: the batch.
            clock_ms: its clock, epoch ms.
            taken_before_ms: all that forwarders have taken by now is due before (epoch ms).
            may_repeat: whether any message that waits in the table repeats.
        """
        if not any(row["kind"] == ASKED for row in rows):
            return Decision()
        self.before_batch()
        self._wait_for([*self._running])
        asked_ms = time.time_ns() // 1_000_000
        asked = read_asks(rows)
        self._open(span)
        # Names become ids.
        has_name = pc.is_valid(asked.asks.column("name"))
        by_id, by_name = asked.asks.filter(pc.invert(has_name)), asked.asks.filter(has_name)
        first = ids_in(own_ids(asked.asks.filter(asked.asks.column("repeats").fill_null(False))))
        repeating = united([first, self._repeating(delivering_ids(by_id), span)]) if may_repeat else first
        in_vain = np.asarray(by_id.column("delivers")) & among(by_id, repeating)
        named = look_up(
            by_name,
            ids_in(by_id.filter(pa.array(~in_vain))),
            self._stored_ids,
            span,
            clock_ms,
            lambda ids: self._waiting(span, ids).messages,
        )
        asks = pa.concat_tables([by_id, named.asks])
        self._numbers = dict.fromkeys(each_of(united([asked.repeating, first])), 1)
        # What is known of each id.
        outcomes = Outcomes(ids_in(asks.filter(pc.greater_equal(asks.column("offset"), 0))), span.ends)
        undecided = self._taken_of(asked.undecided, asks)
        for found in (asked.taken_out, undecided, named.superseded):
            outcomes.take(found)
        found_due = self._look_for(outcomes, named, asks, shard_output, rows, span, may_repeat)
        due_now = pa.concat_tables([undecided, found_due])
        recalled = self._recalled_among(outcomes.open_ids(), span)
        # A lost batch may have taken out what a replacement names that is read again.
        conditional = asks.filter(pc.equal(asks.column("condition"), WAITING))
        facts = Facts(
            outcomes, named.dropped, named.superseded, named.retimed, named.names, due_now, recalled,
            self._recalled.known_from, self._stored_ids.replaced_by(conditional), self._numbers,
            due_at_once_ms(clock_ms, span.cutoff_ms),
        )  # fmt: skip
        # What is decided.
        shards = span.origin.shards
        known_ms = asked_ms if self._recalled.knows_all else 0
        due_before_ms = max(span.cutoff_ms, taken_before_ms)
        terms = Undecided(due_before_ms, known_ms, shards, shards - 1, epoch=span.origin.epoch)
        decision = decide(asks, facts, terms)
        log.info(
            "batch %d: decided %d requests, cancelled %d messages (%d because their name is taken), made %d due now",
            span.batch_id, asks.num_rows, decision.cancels, named.dropped.num_rows, decision.made_due,
        )  # fmt: skip
        return decision

    def _repeating(self, ids: Ids, span: BatchSpan) -> Ids:
        """Return which of `ids` keep their names, wait in the table, and repeat."""
        keeping = ids_in(self._stored_ids.keeping_among(ids))
        waits = self._waiting(span, keeping, self._stored_ids.cancelled_among(keeping))
        return ids_of(numbers_of(waits, self._store))

    def places_of(self, moves: pa.Table) -> Waiting | None:
        """Return where those of `moves`, of the newest decision, wait in the table; None if none of them does.

        Only messages that are made due at once do. All others came with the batch.
        """
        at_once = moves.filter(moves.column("at_once"))
        return None if self._waits is None else self._waits.among(ids_in(at_once))

    def _open(self, span: BatchSpan) -> None:
        """Read what earlier batches have stored, and find out whether this one has, before it was cut off."""
        if self._is_replay is None:
            stored = self._store.newest_of(span.origin.checkpoint)
            self._is_replay = stored is not None and stored >= span.batch_id
        self._stored_ids.open(span.bucket, span.origin)

    def _look_for(
        self,
        outcomes: Outcomes,
        named: LookedUp,
        asks: pa.Table,
        shard_output: DataFrame,
        rows: Iterable[Row],
        span: BatchSpan,
        may_repeat: bool,
    ) -> pa.Table:
        """Take what waits, wherever that is, and `asks` ask for.

        Returns what this batch would seal or hand over otherwise (`CANCELLED_SCHEMA`).
        """
        self._waits = None
        if not (not_found := outcomes.open_ids()):
            return CANCELLED_SCHEMA.empty_table()
        known = self._stored_ids.cancelled_among(not_found)
        outcomes.set(known.ids, Reason.WITHDRAWN)
        outcomes.set(self._stored_ids.moved_among(known.ids), Reason.MADE_DUE)
        # What shall be due at once must be found where it is, and so must what repeats.
        if not may_repeat:
            held = among(named.held, outcomes.open_ids(but=delivering_ids(asks)))
            outcomes.take(named.held.filter(pa.array(held)))

        def wanted(but: Ids = NO_IDS) -> Ids:
            # Of an input topic that was made anew, another message may have the id of one that was cancelled.
            return united([outcomes.open_ids(but), known.ids])

        # The first batch finds there what an earlier checkpoint has left, however long it is due.
        handed_over = ids_in(named.handed_over) if span.batch_id else NO_IDS
        self._waits = self._waiting(span, wanted(but=handed_over), known, may_repeat)
        self._numbers |= self._waits.numbers
        outcomes.take(self._taken_of(self._waits.messages, asks))
        passed, numbers = passed_by(wanted(), shard_output, rows)
        self._numbers |= numbers
        found = self._taken_of(passed, asks)
        outcomes.take(found)
        return found

    def _taken_of(self, found: pa.Table, asks: pa.Table) -> pa.Table:
        """Return those of the `found` messages that `asks` take: not what repeats, if they only want it to be due."""
        delivers = np.asarray(asks.column("delivers"))
        if not (self._numbers and delivers.any()):
            return found
        stays = without(ids_of(self._numbers), ids_in(asks.filter(pa.array(~delivers))))
        return found.filter(pa.array(~among(found, stays)))

    def _waiting(
        self, span: BatchSpan, ids: Ids, cancelled: CancelledIds = NONE_CANCELLED, may_repeat: bool = False
    ) -> Waiting:
        return waiting(ids, self._store, self._sealed_ids, span, cancelled, may_repeat)

    def _recalled_among(self, ids: Ids, span: BatchSpan) -> Ids:
        """Return which of `ids` release processes have recalled by now."""
        if not ids:
            return NO_IDS
        self._recalled.read(span.handed_over_below_ms)
        return self._recalled.among(ids)
