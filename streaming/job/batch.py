"""One batch, from the output of the state stage to the last commit. `BatchRunner.run` lists the steps."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import reduce

import pyarrow as pa
from pyspark import TaskContext, inheritable_thread_target
from pyspark.sql import DataFrame, Row
from pyspark.sql.functions import expr
from pyspark.sql.pandas.types import from_arrow_schema

from conf.errors import CutoffMismatch
from conf.failpoints import failpoint
from conf.instants import instant_and_ms
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.internal_topics.lease import HeldLease
from sinks.ready_log.chunk import most_deliveries
from sinks.ready_log.task import REPORT_SCHEMA, Cancels, hand_over_chunks
from sinks.ready_log.writer import HandOverPlan
from state.buckets.cancelled import cancelled_rows
from state.buckets.operator import DUE, KEPT, SEALED
from state.buckets.parts import IdRows, sealed_part
from state.buckets.segments import Segment
from state.buckets.table_rows import STORED_SCHEMA, ArrowFunction, stored_rows
from state.checkpoint.batch_settings import BatchSettings
from state.checkpoint.planned_batch import PlannedBatch
from state.checkpoint.progress import BatchSpan
from state.due_spans import decode_runs
from state.group_keys import state_partitions
from state.names import name_rows
from state.order import ORDER
from streaming.checkpoint.handover import writer_of_following
from streaming.checkpoint.recovery import Recovered
from streaming.job.inputs.admission import Admission
from streaming.job.inputs.arrivals import ArrivalWatch, reads_to_limit
from streaming.job.inputs.batch_size import BatchSize, record_bytes
from streaming.job.inputs.input_loss import read_bounds, warn_of_input_loss
from streaming.job.inputs.input_watch import InputWatch
from streaming.job.lanes.claim_watch import ClaimWatch
from streaming.job.lanes.old_claims import OldClaims
from streaming.job.occurring import names_in, occurrence_rows
from streaming.job.query import limit_next_batch, tell_tasks
from streaming.job.requests.decision import Decision
from streaming.job.requests.desk import RequestDesk
from streaming.job.requests.moved_rows import check_moved, with_moves
from streaming.job.requests.search import driver_rows
from streaming.job.sealed.look_ahead import LookAhead
from streaming.job.sealed.prefetch_window import PrefetchWindow
from streaming.job.sealed.replayed_seal import SealedBatch
from streaming.job.watches.clock_watch import check_not_ahead, now_ms
from streaming.maintenance.failures import Failures
from streaming.maintenance.maintenance import Maintenance
from streaming.monitor.estimate import MutableDues
from streaming.monitor.job_metrics import JobCounts
from streaming.monitor.table_state import TableState

log = logging.getLogger(__name__)

# What one task stores in little time: each task costs a seal more than few rows, also one without any.
_SEAL_TASK_BYTES = 8 * 1024 * 1024
_REPORT, _STORED = (from_arrow_schema(schema) for schema in (REPORT_SCHEMA, STORED_SCHEMA))


class BatchRunner:
    """Runs batches one after the other, in the query's thread."""

    def __init__(
        self, state: Recovered, settings: Settings, lease: HeldLease, claims: ClaimWatch, counts: JobCounts
    ) -> None:
        self._lease = lease
        self._claims, self._old_claims = claims, OldClaims(settings)
        self._counts = counts
        self._catalog = state.catalog
        self._checkpoint = state.checkpoint
        self._settings_history = state.settings_history
        self._store = state.store
        self._guard = state.guard
        failures = Failures(state.store.path, time.monotonic)
        self._window = PrefetchWindow(
            state.store,
            state.catalog,
            state.handed_over_before_ms,
            state.overdue,
            # A load may take as long as a batch may before messages are late.
            settings.clock.horizon,
            settings.window.max_bytes,
            settings.bucket.shards,
            failures,
        )
        self._cancels = RequestDesk(
            state.store,
            settings,
            epoch=state.checkpoint.origin.epoch,
            has_run=state.handed_over_before_ms > 0,
            # Where nobody cancels anything, a copy of the index would be of no use.
            is_expected=any(state.id_rows.values()),
        )
        self._admission = Admission(state.checkpoint, state.store, settings)
        self._maintenance = Maintenance(
            state.store,
            state.catalog,
            state.parts,
            state.abandoned,
            state.settings_history.newest,
            state.merge_token,
            settings.bucket.fan_in,
            # A merge is one task at a time, and leaves most cores to the batches.
            threads=max(1, state.store.spark.sparkContext.defaultParallelism // 4),
            id_rows=state.id_rows,
            forgettable=self._cancels.forgettable,
            failures=failures,
        )
        self._settings = settings
        self._origin = state.checkpoint.origin
        # The newest batch in the offset log: the running or the last one. The thread that watches the clock reads it.
        self.planned = state.planned
        sealed = state.store.newest_of(self._origin.checkpoint)
        own = () if sealed is None else state.catalog.buckets.get(self._origin.bucket_of(sealed), ())
        # Before a merge may replace them.
        self._sealed_before = SealedBatch(sealed, tuple(each for each in own if each.part == sealed_part(each.bucket)))
        # The newest batch that has stored occurrences which follow those that it has handed over.
        self._followed = state.store.newest_of(writer_of_following(self._origin.checkpoint))
        self._last: PlannedBatch | None = None
        self._last_writers: dict[int, str] = {}
        # Of one batch the hand-over and the seal, and the two that follow the seal before.
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="batch")
        self._ahead = LookAhead(state.store, self._cancels, self._start, failures)
        self._arrivals = ArrivalWatch(settings)
        batch_settings = state.settings_history.newest
        # What the shards' own groups of the state stage take together.
        self._size = BatchSize(settings.limits, batch_settings.shards * batch_settings.group_bytes)
        self._input = InputWatch(settings)

    def run(self, shard_output: DataFrame, batch_id: int) -> None:
        """Run batch `batch_id`, whose state stage gives `shard_output` (`SHARD_OUTPUT_SCHEMA`).

        Spark calls this (`foreachBatch`), and commits the batch when it returns. The steps:

        1. Check that this process still holds the lease.
        2. Read from the offset log which records the batch reads, its clock and its cutoff. Check the clock against the
           broker's.
        3. Start what runs beside the batch: the notes of the batch before, and the maintenance that is due. Wait for
           merges if they are far behind.
        4. Wait for the claims about what the batch reads. Decide which records are refused because too many messages of
           their topics wait, and record it. Choose the cutoff of the next batch, by the present clock: a replayed batch
           has the clock of its first try, and the one after it must not be as far behind.
        5. Run the state stage. Check its rows against the cutoff.
        6. Check that the input topics are those that the job knows, and have what claims have decided. Warn if records
           of the batch were deleted unread.
        7. Decide the requests that it reads, and let what shall be due at once be due. Check what it seals against what
           it has sealed if it is replayed. Work out which occurrences of messages that repeat it stages. Store what it
           cancels, if step 8 would show it.
        8. Hand over the due messages and seal the far ones, both at the same time. Then store what follows occurrences
           of messages that repeat.
        9. Pass on what was stored: to the cancels, and the sealed segments to the prefetch window and to maintenance.
        10. Choose how many records the next batch may read. Move the prefetch window on to the cutoff.
        11. Wait until the next batch should begin: Spark plans it as soon as this one returns.

        If a step fails, the batch fails, and is replayed whole. Each step either leaves nothing behind, or recognises
        in the replay that it is done.
        """
        failpoint("batch-begun")
        # 1. Check the lease.
        self._lease.check()
        started_s = time.monotonic()
        # 2. Read the offset log. Nothing runs by a clock that is far ahead: a start can forget such a batch.
        self.planned = planned = self._checkpoint.planned(batch_id)
        check_not_ahead(
            planned.clock_ms, f"the clock of batch {batch_id}", self._lease, self._settings.clock.skew_limit
        )
        present_ms = self._present_ms(planned)
        self._counts.batch_begun(planned)
        span = self._span(planned)
        # 3. Start what runs beside the batch. Maintenance now, and not at the end of a batch: the catalog still has
        #    every segment that this batch reads, and a merge must keep their messages. Not with the first batch: it
        #    finds its overdue messages by their bucket's number, which a merge may change.
        self._cancels.before_batch()
        self._old_claims.before_batch(span)
        if batch_id:
            committed = self._origin.bucket_of(batch_id - 1), span.previous_ms
            self._maintenance.before_batch(*committed)
            # No longer than an idle job waits: what is handed over lasts for that.
            waited_s = self._maintenance.catch_up(*committed, self._arrivals.idle_s)
            if waited_s:
                log.info("batch %d: waited %.1f s for merges to catch up", batch_id, waited_s)
        # 4. Find out what forwarders have taken. Decide what is refused, and how much the next batch hands over.
        with self._counts.timed("claims"):
            taken = self._claims.wait(span)
        refusal = self._admission.refusal(self._settings_history.at(batch_id), span, planned.clock_ms, taken)
        next_cutoff_ms = self._next_cutoff(planned, present_ms)
        tell_tasks(self._store.spark, span, planned.clock_ms, refusal, taken, next_cutoff_ms)
        frames = [shard_output.persist()]
        begun_s = time.monotonic()
        try:
            # 5. Run the state stage. The chunks stay in Spark's cache.
            with self._counts.timed("state"):
                rows = driver_rows(shard_output)
            _check_cutoffs(rows, span.cutoff_ms)
            # 6. Check the input. Warn of input loss: without `skip_expired`, Spark has ended the query instead.
            self._input.check(span)
            if self._settings.topics.skip_expired and span.starts != span.ends:
                bounds = read_bounds(self._settings, batch_id)
                # Not of a topic that was created again: a replay reads nothing of it.
                ends = {source: bounds[source][1] for source in span.ranges() if source in bounds}
                self._claims.check_ends(ends, span.input_ids)
                warn_of_input_loss(bounds, span)
            failpoint("state-held")
            # 7. Decide requests. One commit stores what they cancel, what has names, and what is sealed.
            with self._counts.timed("cancels"):
                taken_before_ms = self._claims.due_before_ms
                decision = self._cancels.decide(
                    shard_output, rows, span, planned.clock_ms, taken_before_ms, self._catalog.may_repeat
                )
                if decision.moves.num_rows:
                    shard_output, rows = self._with_moves(shard_output, rows, span, decision, frames)
            sealed = [row for row in rows if row["kind"] == SEALED]
            segments = _segments(sealed)
            self._sealed_before.check(batch_id, segments)
            loaded = self._window.take(span.previous_ms, span.cutoff_ms)
            self._window.cancel(decision.cancelled)
            cancels = Cancels(
                cancelled=self._window.cancelled(span.previous_ms, span.cutoff_ms),
                left_out=decision.left_out,
                answers=decision.answers,
            )
            occurring, occurring_rows = self._occurring(shard_output, rows, cancels, span, planned.clock_ms, frames)
            due = shard_output if occurring is None else shard_output.union(occurring)
            hand_over = self._plan_hand_over(
                due, [*rows, *occurring_rows], loaded, span, planned.clock_ms, cancels, is_spread=len(frames) > 1
            )
            stores = bool(sealed or decision.cancelled.num_rows or decision.names.num_rows)
            stores_first = decision.shows(span.cutoff_ms)
            if stores_first:
                self._seal(shard_output, sealed, batch_id, decision)
                failpoint("cancelled")
            # 8. Hand over and seal. What is handed over was loaded by now, from a log that nobody has changed.
            self._guard.check()
            running: list[Future[None]] = []
            if hand_over is not None:
                running.append(self._start(self._hand_over, hand_over))
            if stores and not stores_first:
                running.append(self._start(self._seal, shard_output, sealed, batch_id, decision))
            for step in running:
                step.result()
            if occurring is not None:
                named = names_in(occurring_rows)
                segments += self._follow(occurring, occurring_rows, named, batch_id)
                decision = replace(decision, names=pa.concat_tables([decision.names, named]))
                rows += occurring_rows
            # 9. Pass on what was stored.
            self._cancels.stored(decision, span, planned.clock_ms)
            self._window.add(segments)
            self._maintenance.sealed(segments)
            self._maintenance.stored(IdRows.CANCELLED, span.bucket, decision.cancelled.num_rows)
            self._maintenance.stored(IdRows.NAMED, span.bucket, decision.names.num_rows)
        finally:
            for frame in frames:
                frame.unpersist()
        # 10. Choose the next batch's size, and move the window on.
        has_more = self._choose_size(rows, span, time.monotonic() - begun_s)
        self._window.advance(span.cutoff_ms)
        self._admission.done(rows)
        self._last = planned
        took_s, sealed_messages = time.monotonic() - started_s, sum(row["count"] for row in sealed)
        if hand_over is not None or sealed:
            log.info(
                "batch %d: staged messages due before %s, sealed %d messages in %d segments, took %.2f s",
                batch_id, instant_and_ms(span.cutoff_ms), sealed_messages, len(sealed), took_s,
            )  # fmt: skip
        self._counts.took("whole", took_s)
        self._count(rows, span, planned, sealed_messages, decision)
        failpoint("batch-done")
        # 11. Wait, but not for long if this batch left due messages or records behind: a replayed batch has the cutoff
        #     of its first try, and after a time without batches the next ones follow in steps.
        is_behind = planned.cutoff_ms < present_ms
        self._arrivals.wait(
            started_s,
            planned.offsets,
            is_urgent=is_behind or has_more,
            is_forwarded=self._claims.is_forwarded,
            look_for_urgent=self._claims.look_for_urgent,
            is_empty=not self._catalog and not any(row["count"] for row in rows if row["kind"] == KEPT),
        )

    def catch_up(self) -> None:
        """Let the first batch have a cutoff by the present clock, unless it is planned already. Spark must not run.

        Spark has recorded the cutoff that the last committed batch has chosen for it, before the time without batches.
        A batch that is planned already is replayed as it was planned, and catches up for the one after it. The first
        batch of a checkpoint has the cutoff of the origin.

        Raises ClockAhead, ApplicationHeld.
        """
        planned = self.planned
        if planned is None or self._checkpoint.last_committed() != planned.batch_id:
            return
        cutoff_ms = self._next_cutoff(planned, self._present_ms(planned))
        self._lease.check_now()
        self._checkpoint.raise_next_cutoff(planned.batch_id, cutoff_ms)

    def _present_ms(self, planned: PlannedBatch) -> int:
        """Return what this host's clock shows (epoch ms), or showed to `planned` if it was set back since.

        Raises ClockAhead.
        """
        present_ms = max(planned.clock_ms, now_ms())
        check_not_ahead(present_ms, "this host's clock", self._lease, self._settings.clock.skew_limit)
        return present_ms

    def _next_cutoff(self, planned: PlannedBatch, present_ms: int) -> int:
        """Choose the cutoff of the batch after `planned`. A replay may choose another: Spark records the last one."""
        return self._window.next_cutoff(planned.cutoff_ms, present_ms + self._settings.clock.horizon)

    def _choose_size(self, rows: Iterable[Row], span: BatchSpan, took_s: float) -> bool:
        """Choose how many records the next batch may read. Return whether this one has read all that it might."""
        most, read = self._size.records, sum(span.read_by_topic.values())
        self._size.done(read, record_bytes(rows, read), took_s)
        if self._size.records != most:
            limit_next_batch(self._store.spark, self._settings.application_id, self._size.records)
        return reads_to_limit(span, most)

    def _count(
        self, rows: Iterable[Row], span: BatchSpan, planned: PlannedBatch, sealed: int, decision: Decision
    ) -> None:
        cancelled = decision.cancelled.num_rows - decision.moves.num_rows
        kept: dict[int, MutableDues] = {}
        accepted: Counter[str] = Counter()
        for row in rows:
            if row["kind"] == KEPT:
                accepted.update(json.loads(row["accepted"]))
            # Beside the group of a shard, its overflow groups keep nothing.
            if row["kind"] == KEPT and (row["count"] or row["shard"] not in kept):
                kept[row["shard"]] = MutableDues(decode_runs(row["chunk"]), row["bytes"])
        self._counts.lanes_now(self._claims.taken_over)
        self._counts.batch_done(planned, span.read_by_topic, accepted, sealed, cancelled, kept)
        # There may be many segments, and nobody can ask.
        if self._settings.monitor.tells_of_job:
            buckets = self._catalog.buckets
            self._counts.table_now(
                TableState(
                    segments=[segment for own in buckets.values() for segment in own],
                    buckets=len(buckets),
                    merges=self._maintenance.merges,
                    size=self._ahead.size(),
                    failures=self._maintenance.failures,
                )
            )

    def wake(self) -> None:
        """Let no batch wait for the next one any more, since there will be none."""
        self._arrivals.wake()
        self._maintenance.wake()

    def close(self) -> None:
        """Stop the loads and the maintenance that run beside the batches."""
        self._arrivals.close()
        self._claims.close()
        self._old_claims.close()
        self._cancels.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._window.close()
        self._maintenance.close()

    def _start(self, step, *arguments) -> Future[None]:  # type: ignore[no-untyped-def]
        # The tasks of either step need Spark's local properties, such as the batch id.
        return self._threads.submit(inheritable_thread_target(self._store.spark)(step), *arguments)

    def _span(self, planned: PlannedBatch) -> BatchSpan:
        """Return what the batch reads and its cutoffs, from the offset log alone: a replay finds the same there."""
        ids = self._settings_history.at(planned.batch_id).input_ids
        if not planned.batch_id:
            # Spark has written them before it planned the batch.
            starts = self._checkpoint.first_offsets()
            cutoff_ms, clock_ms = planned.cutoff_ms, planned.clock_ms
            return BatchSpan(self._origin, 0, 0, cutoff_ms, starts, planned.offsets, ids, clock_ms=clock_ms)
        before = self._last
        if before is None or before.batch_id != planned.batch_id - 1:
            before = self._checkpoint.planned(planned.batch_id - 1)
        if planned.cutoff_ms < before.cutoff_ms:
            raise CutoffMismatch(
                f"batch {planned.batch_id} has cutoff {planned.cutoff_ms}, but the batch before it has "
                f"{before.cutoff_ms}"
            )
        cutoffs = (before.cutoff_ms, planned.cutoff_ms)
        offsets = (before.offsets, planned.offsets)
        return BatchSpan(self._origin, planned.batch_id, *cutoffs, *offsets, ids, before.clock_ms, planned.clock_ms)

    def _with_moves(
        self, shard_output: DataFrame, rows: list[Row], span: BatchSpan, decision: Decision, frames: list[DataFrame]
    ) -> tuple[DataFrame, list[Row]]:
        """Return what the batch has once messages are moved, and its rows. Adds it to the cached `frames`."""
        stored = self._cancels.places_of(decision.moves)
        batch_settings = self._settings_history.at(span.batch_id)
        moved = with_moves(shard_output, self._store, stored, decision.moves, span, batch_settings).persist()
        frames.append(moved)
        rows_now = driver_rows(moved)
        check_moved(rows, rows_now, stored)
        return moved, rows_now

    def _occurring(
        self,
        shard_output: DataFrame,
        rows: list[Row],
        cancels: Cancels,
        span: BatchSpan,
        clock_ms: int,
        frames: list[DataFrame],
    ) -> tuple[DataFrame | None, list[Row]]:
        """Return the rows that the batch makes of messages that repeat, if any are due. Adds them to `frames`."""
        loaded = self._window.take_repeating(span.previous_ms, span.cutoff_ms)
        batch_settings = self._settings_history.at(span.batch_id)
        occurring = occurrence_rows(shard_output, rows, loaded, cancels, span, clock_ms, batch_settings)
        if occurring is None:
            return None, []
        frames.append(occurring.persist())
        with self._counts.timed("occurrences"):
            own = driver_rows(occurring)
        _check_cutoffs(own, span.cutoff_ms)
        return occurring, own

    def _follow(self, occurring: DataFrame, rows: list[Row], named: pa.Table, batch_id: int) -> list[Segment]:
        """Store the occurrences that wait from now on, and their names. Return the segments, as far as they are new.

        After all is handed over that the batch stages: a rebuild, which finds them, takes that for granted. A replay
        stores nothing if its first try has: by other time zones it may find other instants.
        """
        sealed = [row for row in rows if row["kind"] == SEALED]
        if self._followed is not None and self._followed >= batch_id:
            return []
        if not sealed and not named.num_rows:
            return []
        failpoint("following")
        writer_id = writer_of_following(self._origin.checkpoint)
        self._append("follow", occurring, sealed, Decision(names=named), writer_id, batch_id)
        failpoint("followed")
        return _segments(sealed)

    def _plan_hand_over(
        self,
        shard_output: DataFrame,
        rows: list[Row],
        loaded: list[DataFrame],
        batch: BatchSpan,
        clock_ms: int,
        cancels: Cancels,
        is_spread: bool,
    ) -> DataFrame | None:
        """Return the plan that hands the batch over, or None if nothing is due. One task has all rows of a shard.

        Chunks from the state stage are handed over whole. Chunks `loaded` by the window are cut to the range between
        the batch's cutoffs. Each task merges both kinds, leaves out what is cancelled, and answers what is asked. The
        rows of the state stage may be `is_spread` over partitions.
        """
        if not loaded and not any(row["kind"] == DUE for row in rows):
            return None
        # Expressions as text: each column that is built in Python costs a dozen calls to Java.
        key = ("min_deliver_at_ms AS deliver_at_ms", *ORDER[1:])
        whole = ("CAST(NULL AS bigint) AS from_ms", "CAST(NULL AS bigint) AS until_ms")
        due = shard_output.where(f"kind = '{DUE}'").selectExpr("shard", *key, *whole, "chunk")
        if loaded:
            from_ms = f"{batch.previous_ms}L AS from_ms"
            sealed = (piece.selectExpr("shard", *ORDER, from_ms, "until_ms", "chunk") for piece in loaded)
            due = reduce(DataFrame.union, sealed, due)
        if loaded or is_spread:
            due = _by_shard(due, self._settings_history.at(batch.batch_id))
        # Otherwise each partition has all rows of its shards already: those of its state.
        ordered = due.sortWithinPartitions("shard", *ORDER)
        return ordered.mapInArrow(hand_over_chunks(self._hand_over_plan(batch, clock_ms), cancels), _REPORT)

    def _hand_over_plan(self, batch: BatchSpan, clock_ms: int) -> HandOverPlan:
        return HandOverPlan(
            application_id=self._settings.application_id,
            batch=batch,
            clock_ms=clock_ms,
            progress_topic=self._settings.progress_topic,
            ready_topic=self._settings.ready_topic,
            lease_topic=self._settings.lease_topic,
            fencing_token=self._lease.fencing_token,
            transaction_timeout_ms=self._settings.release.transaction_timeout,
            outage_limit_ms=self._settings.kafka.outage_limit,
            tolerates_input_loss=self._settings.topics.skip_expired,
            options=librdkafka_options(self._settings.kafka),
            last_writers=self._last_writers,
            most_deliveries=most_deliveries(self._settings.limits.max_message_bytes),
        )

    def _hand_over(self, tasks: DataFrame) -> None:
        with self._counts.timed("hand-over"):
            writers = {report["shard"]: report["writer"] for report in tasks.collect()}
        if opened := sorted(shard for shard, writer in writers.items() if self._last_writers.get(shard) != writer):
            log.info("opened writers for shards %s of the %d that staged messages", opened, len(writers))
        self._last_writers.update(writers)
        failpoint("handed-over")

    def _seal(self, shard_output: DataFrame, sealed: list[Row], batch_id: int, decision: Decision) -> None:
        self._append("seal", shard_output, sealed, decision, self._origin.checkpoint, batch_id)
        failpoint("sealed")

    def _append(
        self, step: str, output: DataFrame, sealed: list[Row], decision: Decision, writer_id: str, batch_id: int
    ) -> None:
        """Store what is sealed of `output`, whose rows without chunks are `sealed`, and the ids of the decision."""
        as_stored = stored_rows(self._settings_history.at(batch_id).index_precision_bits)
        tasks = 1 + sum(row["bytes"] for row in sealed) // _SEAL_TASK_BYTES
        rows = output.where(f"kind = '{SEALED}'").coalesce(tasks)
        if decision.cancelled.num_rows or decision.names.num_rows:
            as_stored = _with_ids(as_stored, decision, self._origin.bucket_of(batch_id))
        rows = rows.mapInArrow(as_stored, _STORED)
        with self._counts.timed(step):
            self._ahead.wait()
            self._store.append(rows, writer_id, batch_id)
        self._ahead.begin()


def _with_ids(as_stored: ArrowFunction, decision: Decision, bucket: int) -> ArrowFunction:
    """Return a `mapInArrow` function whose first task adds to `as_stored` the rows of ids that a batch stores.

    Spark makes rows of a table in the driver one by one, in the thread of the query.
    """
    cancelled, replaced, names = decision.cancelled, decision.replaced, decision.names

    def run(sealed: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from as_stored(sealed)
        context = TaskContext.get()
        if context is not None and context.partitionId() == 0:
            yield from cancelled_rows(cancelled, bucket, replaced).to_batches()
            yield from name_rows(names, bucket).to_batches()

    return run


def _by_shard(due: DataFrame, batch_settings: BatchSettings) -> DataFrame:
    """Return the rows of `due`, with those of each shard in one partition, as in the state stage."""
    keys = ", ".join(map(str, batch_settings.shard_keys))
    return due.repartition(state_partitions(batch_settings.shards), expr(f"array({keys})[shard]"))


def _check_cutoffs(rows: Iterable[Row], cutoff_ms: int) -> None:
    """Raise CutoffMismatch if the rows of the state stage violate invariant 2 or 3."""
    for row in rows:
        if row["cutoff_ms"] != cutoff_ms:
            raise CutoffMismatch(
                f"shard {row['shard']} ran with cutoff {row['cutoff_ms']}, but its batch has {cutoff_ms}"
            )
        if row["kind"] in (SEALED, KEPT) and row["count"] and row["min_deliver_at_ms"] < cutoff_ms:
            raise CutoffMismatch(f"shard {row['shard']} kept a message that was due at {row['min_deliver_at_ms']}")


def _segments(sealed: Iterable[Row]) -> list[Segment]:
    return [Segment(**{name: row[name] for name in Segment.__dataclass_fields__}) for row in sealed]
