"""Takes the requests of each batch, collects the facts about their messages, and keeps the decisions.

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
from state.buckets.cancelled import NOTHING_FORGETTABLE, Forgettable
from state.buckets.moves import due_at_once_ms
from state.buckets.operator import ASKED
from state.cancel import WAITING
from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.planned_batch import TOLERANCE_MS
from state.checkpoint.progress import BatchSpan
from state.checkpoint.staged import newest_checkpoint
from state.message_ids import NO_IDS, Ids, ids_in
from streaming.job.requests.decision import Decision, Facts, decide
from streaming.job.requests.names import look_up, useful_from_ms
from streaming.job.requests.outcomes import Outcomes
from streaming.job.requests.recalled import RecalledMessages
from streaming.job.requests.sealed_ids import SealedIds
from streaming.job.requests.search import Search, read_requests
from streaming.job.requests.stored_ids import StoredIds
from streaming.spark.pools import MAINTENANCE, use_pool

log = logging.getLogger(__name__)

_FORGET_EVERY_S = 60.0
# How long markers count as current after they were read. There is one to read for each shard.
_MARKERS_S = 600.0
_CLOSE_S = 5.0


class RequestDesk:
    """Decides the requests of one batch after the other. Only the query's thread may use it.

    The ids that a batch has stored are noted in the background, during the next batches. Only a batch with requests
    waits for that. The desk holds the sources of all facts, and the state of these notes.
    """

    def __init__(
        self,
        store: BucketTable,
        settings: Settings,
        epoch: int = 1,
        has_run: bool = False,
        forget_every_s: float = _FORGET_EVERY_S,
    ) -> None:
        """Take the table of sealed buckets, and the checkpoint's `epoch`.

        `has_run` says whether earlier processes have staged messages.
        """
        self._store = store
        self._settings = settings
        self._recalled = RecalledMessages(settings, epoch, has_run)
        self._stored_ids = StoredIds(store)
        self._sealed_ids = SealedIds(store)
        # Whether an earlier try of the first batch with requests has stored something; None before that batch.
        self._is_replay: bool | None = None
        self._notes = ThreadPoolExecutor(max_workers=1, thread_name_prefix="notes")
        # In the order in which they were submitted.
        self._running: list[Future[None]] = []
        self._unnoted: Callable[[], None] | None = None
        # When ids were forgotten last, by the monotonic clock.
        self._forgot_s, self._forget_every_s = -math.inf, forget_every_s
        # The newest batch by the markers, and when these were read, by the monotonic clock. All messages before the
        # previous cutoff of that batch are staged.
        self._shown: BatchSpan | None = None
        self._markers_s = -math.inf

    def close(self) -> None:
        """Close the consumers of the recalled topic, and the files of ids.

        They stay open if reading takes so long that the process should rather end.
        """
        self._notes.shutdown(wait=False, cancel_futures=True)
        if not wait([note for note in self._running if not note.cancelled()], _CLOSE_S).not_done:
            self._recalled.close()
            self._stored_ids.close()
        self._sealed_ids.close()

    def read_ahead(self, before_bucket: int, origin: CheckpointOrigin) -> None:
        """Read the ids in the background that batches before the one of `before_bucket` have stored.

        A batch with requests waits for that. Without this call, the first one with requests reads them.
        """
        self._running.append(self._notes.submit(self._read_early, before_bucket, origin))

    def look_ahead(self) -> None:
        """Read the new ids of the table ahead, if requests use them. Any thread may call it."""
        self._sealed_ids.look_ahead()

    def forgettable(self, cutoff_ms: int) -> Forgettable:
        """Return which cancelled ids are no longer needed. Any thread may call it.

        Such a message is due before `cutoff_ms` (epoch ms), below which everything is staged. It is also old: its input
        topic has deleted the record, or it is older than `cancels.known_for`. The answer to another request for it is
        `unknown`.

        The markers must show that too, and be newer than the batch that cancelled the message. Otherwise a rebuild
        would not know why it was not staged, and would accept it again if its record still exists. While nothing is
        staged, no marker is written. A later process must also know which messages this one knows. So no message counts
        as old before that is stored with the recalled topic.
        """
        newest = self._newest_shown()
        if newest is None:
            return NOTHING_FORGETTABLE
        return Forgettable(min(cutoff_ms, newest.previous_ms), newest.bucket, self._recalled.known_from)

    def _newest_shown(self) -> BatchSpan | None:
        """Return the newest batch by recently read markers, or None if they show no batch."""
        if time.monotonic() > self._markers_s + _MARKERS_S:
            with suppress(BrokerUnreachable):
                staged = newest_checkpoint(read_markers(self._settings))
                self._shown = None if staged is None else staged.newest
                self._markers_s = time.monotonic()
        return self._shown

    def stored(self, decision: Decision, span: BatchSpan, clock_ms: int) -> None:
        """Take note that the batch of `span` has stored `decision`. `clock_ms` is its clock, epoch ms."""
        self.before_batch()
        self._unnoted = partial(self._take_note, decision, span, clock_ms)

    def before_batch(self) -> None:
        """Start to note the ids that the last batch has stored. Spark has committed that batch, so no replay follows.

        Raises the error of an earlier note.
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
            # The earlier try may have stored less than this decision.
            self._stored_ids.close()
        elif decision.cancelled.num_rows or decision.names.num_rows:
            self._stored_ids.add(decision.cancelled, decision.names, span.bucket, decision.replaced)
        self._is_replay = False
        if time.monotonic() > self._forgot_s + self._forget_every_s:
            self._forgot_s = time.monotonic()
            # Keep messages that are staged and not yet due. They have their names, and a repeated cancel gets the same
            # answer.
            # The clock may go back so far, and a replay reads the ids from the table, which has them for hours.
            before_ms = useful_from_ms(span, clock_ms) - TOLERANCE_MS
            self._recalled.forget(span.staged_below_ms, before_ms)
            self._stored_ids.forget(before_ms, self._recalled.known_from)

    def _read_early(self, before_bucket: int, origin: CheckpointOrigin) -> None:
        use_pool(self._store.spark, MAINTENANCE)
        try:
            self._stored_ids.open(before_bucket, origin)
            self._sealed_ids.look_ahead(is_expected=True)
        # After any error, a batch that needs the ids reads them again, and fails if that fails.
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
        """Return the decision about the requests of a batch.

        Args:
            shard_output: the output of the state stage.
            rows: its rows (`driver_rows`).
            span: the batch.
            clock_ms: its clock, epoch ms.
            taken_before_ms: the instant (epoch ms) before which all messages are due that forwarders have taken by now.
            may_repeat: whether any message that waits in the table repeats.
        """
        if not any(row["kind"] == ASKED for row in rows):
            return Decision()
        self.before_batch()
        self._wait_for([*self._running])
        asked_ms = time.time_ns() // 1_000_000
        asked = read_requests(rows)
        self._open(span)
        # Names become ids.
        search = Search(self._store, self._stored_ids, self._sealed_ids, shard_output, rows, span, may_repeat)
        has_name = pc.is_valid(asked.requests.column("name"))
        by_id, by_name = asked.requests.filter(pc.invert(has_name)), asked.requests.filter(has_name)
        named = look_up(
            by_name, search.asked_for(by_id, asked.repeating), self._stored_ids, span, clock_ms,
            lambda ids: search.waiting(ids).messages,
        )  # fmt: skip
        requests = pa.concat_tables([by_id, named.requests])
        # Collect the facts about each id.
        outcomes = Outcomes(ids_in(requests.filter(pc.field("offset") >= 0)), span.ends)
        due_now = search.take(outcomes, asked, named, requests)
        recalled = self._recalled_among(outcomes.open_ids(), span)
        # A lost batch may have taken out the message that a replacement names. The replacement is then read again.
        conditional = requests.filter(pc.equal(requests.column("condition"), WAITING))
        facts = Facts(
            outcomes, named, due_now, recalled, self._recalled.known_from,
            self._stored_ids.replaced_by(conditional), search.numbers,
            search.waits, due_at_once_ms(clock_ms, span.cutoff_ms),
        )  # fmt: skip
        # Decide.
        shards = span.origin.shards
        known_ms = asked_ms if self._recalled.knows_all else 0
        due_before_ms = max(span.cutoff_ms, taken_before_ms)
        terms = Undecided(due_before_ms, known_ms, shards, shards - 1, epoch=span.origin.epoch)
        decision = decide(requests, facts, terms)
        log.info(
            "batch %d: decided %d requests, cancelled %d messages (%d because their name is taken), made %d due now",
            span.batch_id, requests.num_rows, decision.cancels, named.dropped.num_rows, decision.made_due,
        )  # fmt: skip
        return decision

    def _open(self, span: BatchSpan) -> None:
        """Read the ids that earlier batches have stored, and find whether an earlier try of this one has stored any."""
        if self._is_replay is None:
            stored = self._store.newest_of(span.origin.checkpoint)
            self._is_replay = stored is not None and stored >= span.batch_id
        self._stored_ids.open(span.bucket, span.origin)

    def _recalled_among(self, ids: Ids, span: BatchSpan) -> Ids:
        """Return which of `ids` release processes have recalled by now."""
        if not ids:
            return NO_IDS
        self._recalled.read(span.staged_below_ms)
        return self._recalled.only(ids)
