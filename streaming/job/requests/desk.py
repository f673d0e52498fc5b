"""Takes the asks of each batch, finds out what is known of their messages, and keeps what the batches decide.

`streaming.job.requests.decision` has the cases.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row

from conf.errors import BrokerUnreachable
from conf.settings import Settings
from sinks.buckets.bucket_table import BucketTable
from sinks.internal_topics.progress import read_markers
from state.answers import Undecided
from state.buckets.cancelled import (
    NOTHING_FORGETTABLE,
    Forgettable,
)
from state.buckets.moves import due_at_once_ms
from state.buckets.operator import ASKED
from state.cancel import WAITING
from state.checkpoint.handed_over import newest_checkpoint
from state.checkpoint.progress import BatchSpan
from state.message_ids import NO_IDS, Ids, ids_in
from streaming.job.requests.decision import Decision, Facts, decide
from streaming.job.requests.names import look_up, useful_from_ms
from streaming.job.requests.outcomes import Outcomes
from streaming.job.requests.recalled import RecalledMessages
from streaming.job.requests.sealed_ids import SealedIds
from streaming.job.requests.search import Search, read_asks
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
        rows: Sequence[Row],
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
        search = Search(self._store, self._stored_ids, self._sealed_ids, shard_output, rows, span, may_repeat)
        has_name = pc.is_valid(asked.asks.column("name"))
        by_id, by_name = asked.asks.filter(pc.invert(has_name)), asked.asks.filter(has_name)
        named = look_up(
            by_name, search.asked_for(by_id, asked.repeating), self._stored_ids, span, clock_ms,
            lambda ids: search.waiting(ids).messages,
        )  # fmt: skip
        asks = pa.concat_tables([by_id, named.asks])
        # What is known of each id.
        outcomes = Outcomes(ids_in(asks.filter(pc.field("offset") >= 0)), span.ends)
        due_now = search.take(outcomes, asked, named, asks)
        recalled = self._recalled_among(outcomes.open_ids(), span)
        # A lost batch may have taken out what a replacement names that is read again.
        conditional = asks.filter(pc.equal(asks.column("condition"), WAITING))
        facts = Facts(
            outcomes, named, due_now, recalled, self._recalled.known_from,
            self._stored_ids.replaced_by(conditional), search.numbers,
            search.waits, due_at_once_ms(clock_ms, span.cutoff_ms),
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

    def _open(self, span: BatchSpan) -> None:
        """Read what earlier batches have stored, and find out whether this one has, before it was cut off."""
        if self._is_replay is None:
            stored = self._store.newest_of(span.origin.checkpoint)
            self._is_replay = stored is not None and stored >= span.batch_id
        self._stored_ids.open(span.bucket, span.origin)

    def _recalled_among(self, ids: Ids, span: BatchSpan) -> Ids:
        """Return which of `ids` release processes have recalled by now."""
        if not ids:
            return NO_IDS
        self._recalled.read(span.handed_over_below_ms)
        return self._recalled.among(ids)
