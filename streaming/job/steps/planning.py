"""Planning: which records a batch reads, which of them it leaves out, its cutoff, and the next cutoff."""

from __future__ import annotations

from conf.errors import CutoffMismatch
from conf.settings import Settings
from sinks.internal_topics.lease import HeldLease
from state.checkpoint.planned_batch import PlannedBatch
from state.checkpoint.progress import BatchSpan
from streaming.checkpoint.recovery import Recovered
from streaming.job.inputs.admission import Admission
from streaming.job.lanes.claim_watch import ClaimWatch
from streaming.job.plan import BatchPlan
from streaming.job.sealed.prefetch_window import PrefetchWindow
from streaming.job.watches.clock_watch import check_not_ahead, now_ms
from streaming.monitor.job_metrics import JobCounts


class Planner:
    """Makes the plan of one batch after the other. Only the query's thread may use it, except for `planned`.

    `planned` is the newest batch in the offset log: the running or the last one. Any thread may read it.
    """

    def __init__(
        self,
        state: Recovered,
        settings: Settings,
        lease: HeldLease,
        claims: ClaimWatch,
        admission: Admission,
        window: PrefetchWindow,
        counts: JobCounts,
    ) -> None:
        """Continue the plans of `state`, with the objects that a plan consults."""
        self.planned = state.planned
        self._checkpoint = state.checkpoint
        self._origin = state.checkpoint.origin
        self._settings_history = state.settings_history
        self._settings = settings
        self._lease, self._claims, self._admission, self._window = lease, claims, admission, window
        self._counts = counts
        # The last batch that began here. The log may have changed since the start.
        self._begun: PlannedBatch | None = None
        # The time by this host's clock when the batch's plan was made, epoch ms.
        self._present_ms = 0

    def begin(self, batch_id: int) -> tuple[PlannedBatch, BatchSpan]:
        """Return the entry of the offset log for a batch, and the batch's span.

        No step runs by a clock that is far ahead, so a start can forget such a batch. Raises ClockAhead,
        CutoffMismatch.
        """
        self.planned = planned = self._checkpoint.planned(batch_id)
        check_not_ahead(
            planned.clock_ms, f"the clock of batch {batch_id}", self._lease, self._settings.clock.skew_limit
        )
        before, self._begun = self._begun, planned
        return planned, self._span(planned, before)

    def plan(self, span: BatchSpan) -> BatchPlan:
        """Return the plan of the batch of `span`. Waits for the claims about its records, and records its refusals.

        The next cutoff is chosen by the present clock: a replayed batch has the clock of its first try, and any batch
        may have waited for long. The next batch must not be as far behind. Another process may also hold the lease by
        then. Raises the errors of `ClaimWatch.wait` and `Admission.refusal`, ClockAhead, and ApplicationHeld.
        """
        batch_settings = self._settings_history.at(span.batch_id)
        with self._counts.timed("claims"):
            taken = self._claims.wait(span)
        refusal = self._admission.refusal(batch_settings, span, span.clock_ms, taken)
        self._present_ms = self._present(span.clock_ms)
        next_cutoff_ms = self._next_cutoff(span.cutoff_ms, self._present_ms)
        self._lease.check()
        return BatchPlan(span, batch_settings, taken, refusal, next_cutoff_ms)

    def is_behind(self, span: BatchSpan) -> bool:
        """Return whether the batch of `span` leaves due messages to the next one."""
        return span.cutoff_ms < self._present_ms

    def catch_up(self) -> None:
        """Let the first batch have a cutoff by the present clock, unless it is planned already. Spark must not run.

        Spark has recorded the cutoff that the last committed batch chose for it, before the time without batches. A
        batch that is planned already is replayed as it was planned, and catches up for the one after it. The first
        batch of a checkpoint has the cutoff of the origin.

        Raises ClockAhead, ApplicationHeld.
        """
        planned = self.planned
        if planned is None or self._checkpoint.last_committed() != planned.batch_id:
            return
        cutoff_ms = self._next_cutoff(planned.cutoff_ms, self._present(planned.clock_ms))
        self._checkpoint.raise_next_cutoff(planned.batch_id, cutoff_ms)

    def _present(self, shown_ms: int) -> int:
        """Return the time by this host's clock (epoch ms), or the later `shown_ms` if the clock was set back since.

        Raises ClockAhead.
        """
        present_ms = max(shown_ms, now_ms())
        check_not_ahead(present_ms, "this host's clock", self._lease, self._settings.clock.skew_limit)
        return present_ms

    def _next_cutoff(self, cutoff_ms: int, present_ms: int) -> int:
        return self._window.next_cutoff(cutoff_ms, present_ms + self._settings.clock.horizon)

    def _span(self, planned: PlannedBatch, before: PlannedBatch | None) -> BatchSpan:
        """Return the offsets and cutoffs of the batch, from the offset log alone: a replay finds the same there.

        `before` is the batch that ran before it, if one did.
        """
        batch_settings = self._settings_history.at(planned.batch_id)
        ids, clock_ms = batch_settings.input_ids, planned.clock_ms
        missed_before_ms = clock_ms - batch_settings.horizon
        if not planned.batch_id:
            # Spark has written them before it planned the batch.
            offsets, cutoffs = (self._checkpoint.first_offsets(), planned.offsets), (0, planned.cutoff_ms)
            return BatchSpan(self._origin, 0, *cutoffs, *offsets, ids, 0, clock_ms, missed_before_ms)
        if before is None or before.batch_id != planned.batch_id - 1:
            before = self._checkpoint.planned(planned.batch_id - 1)
        if planned.cutoff_ms < before.cutoff_ms:
            raise CutoffMismatch(
                f"batch {planned.batch_id} has cutoff {planned.cutoff_ms}, but the batch before it has "
                f"{before.cutoff_ms}"
            )
        cutoffs = (before.cutoff_ms, planned.cutoff_ms)
        offsets = (before.offsets, planned.offsets)
        clocks = (before.clock_ms, clock_ms)
        return BatchSpan(self._origin, planned.batch_id, *cutoffs, *offsets, ids, *clocks, missed_before_ms)
