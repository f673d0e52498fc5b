"""One batch, from the output of the state stage to the last commit. `BatchRunner.run` lists the steps."""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace

import pyarrow as pa
from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame

from conf.failpoints import failpoint
from conf.settings import Settings
from sinks.internal_topics.lease import HeldLease
from sinks.ready_log.task import Cancels
from state.buckets.operator import BOUND, KEPT
from state.buckets.reach import Reach
from state.checkpoint.planned_batch import PlannedBatch
from state.checkpoint.progress import BatchSpan
from streaming.checkpoint.recovery import Recovered
from streaming.job.inputs.admission import Admission
from streaming.job.lanes.claim_watch import ClaimWatch
from streaming.job.lanes.old_claims import OldClaims
from streaming.job.occurring import names_in, occurrence_rows
from streaming.job.plan import BatchPlan
from streaming.job.requests.decision import Decision
from streaming.job.requests.desk import RequestDesk
from streaming.job.requests.moved_rows import check_moved, with_moves
from streaming.job.sealed.look_ahead import LookAhead
from streaming.job.sealed.prefetch_window import PrefetchWindow
from streaming.job.steps.checks import OutputCheck, check_cutoffs
from streaming.job.steps.earlier_try import earlier_try
from streaming.job.steps.output import BatchOutput
from streaming.job.steps.pace import Pace
from streaming.job.steps.planning import Planner
from streaming.job.steps.report import BatchReport
from streaming.job.steps.sealing import Sealing
from streaming.job.steps.staging import Staging
from streaming.maintenance.failures import Failures
from streaming.maintenance.maintenance import Maintenance, TableContents
from streaming.maintenance.merge_plan import MergeRules
from streaming.monitor.job_metrics import JobCounts

log = logging.getLogger(__name__)


class BatchRunner:
    """Runs batches one after the other, in the query's thread. Its attributes are the steps, and what several use."""

    def __init__(
        self,
        state: Recovered,
        settings: Settings,
        lease: HeldLease,
        claims: ClaimWatch,
        counts: JobCounts,
        maintains: bool = True,
    ) -> None:
        """Continue from `state`. Without `maintains`, a later runner of the same process maintains the table."""
        self._lease, self._counts = lease, counts
        self._maintains = maintains
        self._store, self._catalog, self._guard = state.store, state.catalog, state.guard
        self._origin = state.checkpoint.origin
        # Read what an earlier try has left before a merge may replace it.
        self._earlier = earlier_try(state)
        # The data that batches use.
        failures = Failures(state.store.path, time.monotonic)
        self._window = PrefetchWindow(
            state.store,
            # A load may take as long as a batch may before messages are late.
            Reach(state.catalog, settings.clock.horizon, settings.window.max_bytes),
            state.staged_before_ms,
            state.overdue,
            settings.bucket.shards,
            failures,
        )
        self._cancels = RequestDesk(
            state.store,
            settings,
            epoch=self._origin.epoch,
            has_run=state.staged_before_ms > 0,
        )
        # Without requests so far, a copy of the index would be useless.
        if maintains and any(state.id_rows.values()):
            committed = state.checkpoint.last_committed()
            following = 0 if committed is None else committed + 1
            self._cancels.read_ahead(self._origin.bucket_of(following), self._origin)
        self._claims, self._old_claims = claims, OldClaims(settings)
        self._admission = Admission(state.checkpoint, state.store, settings, self._earlier.batch_id, state.has_left)
        batch_settings = state.settings_history.newest
        self._pace = Pace(state.store.spark, settings, batch_settings, claims)
        # The background work.
        self._maintenance = Maintenance(
            state.store,
            state.catalog,
            TableContents(state.parts, state.abandoned, state.id_rows),
            MergeRules(
                batch_settings,
                state.merge_token,
                settings.bucket.fan_in,
                # A merge is one task at a time, and leaves most cores to the batches.
                threads=max(1, state.store.spark.sparkContext.defaultParallelism // 4),
            ),
            self._cancels.forgettable,
            failures=failures,
        )
        # Staging and sealing of one batch, and the two reads that follow the previous seal (`LookAhead`).
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="batch")
        ahead = LookAhead(state.store, self._cancels, self._start, failures)
        # The steps of a batch.
        self._planner = Planner(state, settings, lease, claims, self._admission, self._window, counts)
        self._check = OutputCheck(settings, claims)
        self._sealing = Sealing(state.store, ahead, counts, self._origin.checkpoint)
        self._staging = Staging(settings, lease, counts)
        self._report = BatchReport(settings, counts, state.catalog, self._maintenance, ahead)

    @property
    def planned(self) -> PlannedBatch | None:
        """The newest batch in the offset log: the running or the last one. Any thread may read it."""
        return self._planner.planned

    def run(self, shard_output: DataFrame, batch_id: int) -> None:
        """Run batch `batch_id` with the output of its state stage, `shard_output` (`SHARD_OUTPUT_SCHEMA`).

        Spark calls this (`foreachBatch`), and commits the batch when it returns. The steps:

        1. Check that this process still holds the lease.
        2. Read from the offset log which records the batch reads, its clock and its cutoff. Check the clock against the
           broker's.
        3. Start the background work: note what the previous batch has stored, and run the maintenance that is due. Wait
           for merges if they are far behind.
        4. Make the plan: wait for the claims about the records of the batch. Decide which records are refused because
           too many messages of their topics wait, and record the refusal. Choose the cutoff of the next batch. Check
           the lease again after these waits. Tell the tasks the plan.
        5. Run the state stage.
        6. Check its rows against the cutoff. Check the input topics against the topics that the job knows, and against
           the claims. Warn if records of the batch were deleted unread.
        7. Decide the requests of the batch, and move the messages that become due at once. Check the sealed messages
           against those that an earlier try has sealed. Work out which occurrences of messages that repeat the batch
           stages. Store the cancelled ids now if step 8 would reveal a cancel.
        8. Stage the due messages and seal the far ones, both at the same time. Then store the following occurrences of
           messages that repeat.
        9. Pass the stored decision to the request desk, and the sealed segments to the prefetch window and to
           maintenance.
        10. Choose how many records the next batch may read. Move the prefetch window on to the cutoff.
        11. Wait until the next batch should begin: Spark plans it as soon as this one returns.

        If a step fails, the batch fails, and is replayed whole. Each step either leaves nothing behind, or recognizes
        in the replay that it is done.
        """
        failpoint("batch-begun")
        # 1. Check the lease.
        self._lease.check()
        started_s = time.monotonic()
        # 2. Read the offset log.
        planned, span = self._planner.begin(batch_id)
        self._counts.batch_begun(planned)
        # 3. Start the background work.
        self._begin_beside(span)
        # 4. Make the plan.
        plan = self._planner.plan(span)
        plan.tell_tasks(self._store.spark)
        with ExitStack() as held:
            output = held.enter_context(closing(BatchOutput(shard_output)))
            begun_s = time.monotonic()
            # 5. Run the state stage. The chunks stay in Spark's cache.
            with self._counts.timed("state"):
                output.compute()
            # 6. Check its output.
            self._check.check(span, output.rows)
            failpoint("state-held")
            # 7. Decide requests. One commit stores cancelled ids, names and sealed messages.
            with self._counts.timed("cancels"):
                decision = self._cancels.decide(
                    output.frame, output.rows, span, span.clock_ms, self._claims.due_before_ms, self._window.may_repeat
                )
                if decision.moves.num_rows:
                    output = self._with_moves(plan, output, decision, held)
            segments = output.segments
            self._earlier.check_sealed(batch_id, segments)
            with self._counts.timed("load"):
                loaded = self._window.take(span.previous_ms, span.cutoff_ms)
            self._window.cancel(decision.cancelled)
            cancels = Cancels(
                cancelled=self._window.cancelled(span.previous_ms, span.cutoff_ms),
                left_out=decision.left_out,
                answers=decision.answers,
            )
            occurring = self._occurring(plan, output, cancels, decision, held)
            stage = self._staging.tasks(plan, output, occurring, loaded, cancels, self._sealing.in_table)
            stores = self._sealing.has_work(output, decision)
            stores_first = decision.shows(span.cutoff_ms)
            if stores_first:
                self._sealing.seal(plan, output, decision)
                failpoint("cancelled")
            # 8. Stage and seal, if nobody has changed the log of the table.
            self._guard.check()
            running: list[Future[None]] = []
            if stage is not None:
                running.append(self._start(self._staging.run, stage))
            if stores and not stores_first:
                running.append(self._start(self._sealing.seal, plan, output, decision))
            for step in running:
                step.result()
            rows = output.rows
            if occurring is not None:
                named = names_in(occurring.rows)
                segments += self._sealing.follow(plan, occurring, named)
                decision = replace(decision, names=pa.concat_tables([decision.names, named]))
                rows = [*rows, *occurring.rows]
            # 9. Pass on the stored decision and segments.
            self._cancels.stored(decision, span, span.clock_ms)
            self._window.add(segments)
            self._maintenance.sealed(segments)
            for kind, count in decision.stored.items():
                self._maintenance.stored(kind, span.bucket, count)
        # 10. Choose the next batch's size, and move the window on.
        has_more = self._pace.choose_size(span, rows, time.monotonic() - begun_s)
        has_more |= any(row["kind"] == BOUND for row in rows)
        self._window.advance(span.cutoff_ms)
        self._admission.done(rows)
        took_s, has_staged = time.monotonic() - started_s, stage is not None
        self._report.batch_done(
            planned, span, rows, output.sealed, decision, self._claims.taken_over, took_s, has_staged
        )
        failpoint("batch-done")
        # 11. Wait, but not for long if this batch left due messages or records behind: a replayed batch has the cutoff
        #     of its first try, and after a time without batches the next ones follow in steps.
        # This is an estimate: a shard without arrivals has no row for its kept messages. The horizon covers either
        # wait.
        is_empty = not self._catalog and not any(row["count"] for row in rows if row["kind"] == KEPT)
        self._pace.wait(started_s, span, self._planner.is_behind(span) or has_more, is_empty)

    def catch_up(self) -> None:
        """Let the first batch have a cutoff by the present clock (`Planner.catch_up`)."""
        self._planner.catch_up()

    def wake(self) -> None:
        """Let no batch wait for the next one any more, since there will be none."""
        self._pace.wake()
        self._maintenance.wake()

    def close(self) -> None:
        """Stop background loads and maintenance."""
        self._pace.close()
        self._claims.close()
        self._old_claims.close()
        self._cancels.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._window.close()
        self._maintenance.close()

    def _start(self, step, *arguments) -> Future[None]:  # type: ignore[no-untyped-def]
        # The tasks of either step need Spark's local properties, such as the batch id.
        return self._threads.submit(inheritable_thread_target(self._store.spark)(step), *arguments)

    def _begin_beside(self, span: BatchSpan) -> None:
        """Start to note what the previous batch has stored, and start maintenance. Wait for merges that are far behind.

        Maintenance starts now and not at the end of a batch: the catalog still has every segment that this batch reads,
        and a merge must keep their messages. The first batch starts none: it finds its overdue messages by their
        bucket's number, which a merge may change.
        """
        self._cancels.before_batch()
        self._old_claims.before_batch(span)
        if not span.batch_id or not self._maintains:
            return
        committed = self._origin.bucket_of(span.batch_id - 1), span.previous_ms
        self._maintenance.before_batch(*committed)
        # Wait no longer than an idle job does. The staged messages last for that time.
        waited_s = self._maintenance.catch_up(*committed, self._pace.idle_s)
        if waited_s:
            log.info("batch %d: waited %.1f s for merges to catch up", span.batch_id, waited_s)

    def _with_moves(self, plan: BatchPlan, output: BatchOutput, decision: Decision, held: ExitStack) -> BatchOutput:
        """Return the output of the batch after messages are moved."""
        frame = with_moves(output.frame, self._store, decision.places, decision.moves, plan.span, plan.settings)
        moved = held.enter_context(closing(BatchOutput(frame, is_spread=True)))
        moved.compute()
        check_moved(output.rows, moved.rows, decision.places)
        return moved

    def _occurring(
        self, plan: BatchPlan, output: BatchOutput, cancels: Cancels, decision: Decision, held: ExitStack
    ) -> BatchOutput | None:
        """Return the rows that the batch makes of messages that repeat, or None if none are due."""
        loaded = self._window.take_repeating(plan.span.previous_ms, plan.span.cutoff_ms)
        frame = occurrence_rows(
            output.frame, output.rows, loaded, cancels, decision.predecessors, plan.span, plan.settings
        )
        if frame is None:
            return None
        occurring = held.enter_context(closing(BatchOutput(frame)))
        with self._counts.timed("occurrences"):
            occurring.compute()
        check_cutoffs(occurring.rows, plan.span.cutoff_ms)
        return occurring
