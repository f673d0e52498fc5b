"""The counters and metrics of the job: the work of its batches, and the waiting messages."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from state.checkpoint.origin import Offsets
from state.checkpoint.planned_batch import PlannedBatch
from streaming.monitor.estimate import MutableDues, WaitingEstimate
from streaming.monitor.held_input import HeldInput
from streaming.monitor.job_status import JobStatus
from streaming.monitor.table_state import TableState
from streaming.monitor.waiting_metrics import gauge, waiting_metrics

# Spark reports a batch a moment after it was done.
_TOLD = 100


class JobCounts(Collector):
    """Counts what batches have done. The query's thread writes it, and the server's threads read it.

    Instants are epoch s. Counters of messages begin at zero with each start of the job. Each figure that the monitor
    reports has an attribute, and one lock guards them all.
    """

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._read: Counter[str] = Counter()
        self._accepted: Counter[str] = Counter()
        self._sealed = self._cancelled = 0
        self._step_counts: Counter[str] = Counter()
        self._step_seconds: defaultdict[str, float] = defaultdict(float)
        # When each step began that is running, by the monotonic clock.
        self._running: dict[str, float] = {}
        self._mutable: dict[int, MutableDues] = {}
        # How many mutable buckets have told of messages, by the last batches.
        self._told: dict[int, int] = {}
        self._knows_mutable = False
        # The last batch that Spark has reported, and so has committed.
        self._reported: int | None = None
        self._table: TableState | None = None
        self._checkpoint = ""
        self._lag: dict[str, int] = {}
        self._taken_over: Mapping[int, bool] = {}
        self._lease_s: float | None = None
        self._begun: PlannedBatch | None = None
        self._done: PlannedBatch | None = None
        self.batch_done_s: float | None = None
        self.started_s = now_s()
        # How far the running batch was, and when it was first seen to be so far.
        self._done_tasks: Callable[[], object] = lambda: None
        self._progress: object = None
        self._progressed_s = self.started_s

    def recovered(self, checkpoint: str) -> None:
        """Take the path of the checkpoint from which the job goes on."""
        with self._lock:
            self._checkpoint = checkpoint

    def took(self, step: str, seconds: float) -> None:
        """Add the time that one step of a batch took."""
        with self._lock:
            self._step_counts[step] += 1
            self._step_seconds[step] += seconds

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Add the time that the block takes, if it raises nothing."""
        begun_s = time.monotonic()
        with self._lock:
            self._running[step] = begun_s
        try:
            yield
        finally:
            with self._lock:
                del self._running[step]
        self.took(step, time.monotonic() - begun_s)

    @property
    def running(self) -> dict[str, float]:
        """When each step began that is running, by the monotonic clock."""
        with self._lock:
            return dict(self._running)

    def watch_tasks(self, done_tasks: Callable[[], object]) -> None:
        """Take a function. Its result changes when a task of the running batch is done. Several threads call it."""
        self._done_tasks = done_tasks

    def look_for_progress(self) -> float:
        """Return when this process was first seen at its present progress, epoch s.

        So it takes two calls to see that nothing progresses. Each may take as long as the function of `watch_tasks`.
        """
        done_tasks = self._done_tasks()
        with self._lock:
            steps = frozenset(self._step_counts.items()), frozenset(self._running)
            progress = self._begun, self._done, steps, self._checkpoint, done_tasks
            if progress != self._progress:
                self._progress, self._progressed_s = progress, self._now_s()
            return self._progressed_s

    def batch_begun(self, batch: PlannedBatch) -> None:
        """Take the batch that is running from now on."""
        with self._lock:
            self._begun = batch

    def batch_done(
        self,
        batch: PlannedBatch,
        read: Mapping[str, int],
        accepted: Mapping[str, int],
        sealed: int,
        cancelled: int,
        mutable: Mapping[int, MutableDues],
    ) -> None:
        """Add a batch: records read and messages accepted by topic, and how many messages it sealed and cancelled.

        `mutable` has what is left in the mutable buckets of the shards that it changed.
        """
        with self._lock:
            self._read.update(read)
            self._accepted.update(accepted)
            self._sealed += sealed
            self._cancelled += cancelled
            self._mutable |= mutable
            self._told[batch.batch_id] = sum(bool(dues.runs) for dues in self._mutable.values())
            self._told.pop(batch.batch_id - _TOLD, None)
            self._done = batch
            self.batch_done_s = self._now_s()

    def lanes_now(self, taken_over: Mapping[int, bool]) -> None:
        """Take for each lane that is open to forwarders whether the job has taken it over."""
        with self._lock:
            self._taken_over = taken_over

    def table_now(self, table: TableState) -> None:
        """Take what the table has."""
        with self._lock:
            self._table = table

    def reported(self, batch_id: int, mutable_buckets: int, lag: Mapping[str, int]) -> None:
        """Take what Spark reports of batch `batch_id`: mutable buckets in its state, and unread offsets by topic.

        A batch reports only the buckets that it changed. After a start, the other buckets are known to be empty once
        the number of reported, non-empty buckets equals `mutable_buckets`, or once the state is read (`state_read`).
        """
        with self._lock:
            self._knows_mutable |= self._told.get(batch_id) == mutable_buckets
            # If several batches are reported at once, the newest comes first.
            self._reported = max(batch_id, self._reported or 0)
            self._lag = dict(lag)

    @property
    def batch_of_unknown_state(self) -> int | None:
        """The last batch that Spark has committed, if it is not known what all mutable buckets hold; else None."""
        with self._lock:
            return None if self._knows_mutable else self._reported

    def state_read(self, mutable: Mapping[int, MutableDues]) -> None:
        """Take the contents of mutable buckets after a batch since the start. Reports of batches take precedence."""
        with self._lock:
            self._mutable = {**mutable, **self._mutable}
            self._knows_mutable = True

    def lease_confirmed(self, ago_s: float) -> None:
        """Take how long ago the broker last confirmed that this process holds the lease."""
        self._lease_s = self._now_s() - ago_s

    @property
    def read_offsets(self) -> Offsets:
        """Up to where the last batch has read each input partition; empty before the first one is done."""
        done = self._done
        return {} if done is None else done.offsets

    @property
    def cutoff_ms(self) -> int | None:
        """The cutoff of the last batch: it has staged the messages due before. None before the first one is done."""
        done = self._done
        return None if done is None else done.cutoff_ms

    def status(self, application_id: str, shards: int) -> JobStatus | None:
        """Return what the job knows of itself, or None as long as it does not know what all mutable buckets hold."""
        with self._lock:
            begun, done, table, checkpoint = self._begun, self._done, self._table, self._checkpoint
            if done is None or not self._knows_mutable or table is None:
                return None
            waiting = self._waiting(done, table)
        now_ms = int(self._now_s() * 1000)
        return JobStatus(
            application_id=application_id,
            checkpoint=checkpoint,
            now_ms=now_ms,
            done=done,
            running=begun if begun != done else None,
            shards=waiting.by_shard(shards),
            merged=waiting.merged,
            mutable_bytes=waiting.mutable_bytes,
            sealed_bytes=waiting.sealed_bytes,
            next_due_ms=waiting.next_due_ms,
            buckets=table.buckets,
            segments=len(table.segments),
            due=waiting.due(now_ms),
            merges=table.merges,
        )

    def _waiting(self, done: PlannedBatch, table: TableState) -> WaitingEstimate:
        return WaitingEstimate(self._mutable, table.segments, done.cutoff_ms)

    def collect(self) -> Iterator[Metric]:
        """Return the metrics of now."""
        with self._lock:
            return iter([*self._batches(), *self._what_waits()])

    def _batches(self) -> Iterable[Metric]:
        read = CounterMetricFamily(
            "delayline_read_records", "Records of an input topic that batches read.", labels=["topic"]
        )
        for topic, count in sorted(self._read.items()):
            read.add_metric([topic], count)
        accepted = CounterMetricFamily(
            "delayline_accepted_messages",
            "Records of an input topic that batches accepted as messages.",
            labels=["topic"],
        )
        for topic, count in sorted(self._accepted.items()):
            accepted.add_metric([topic], count)
        sealed = CounterMetricFamily("delayline_sealed_messages", "Messages written to sealed buckets.")
        sealed.add_metric([], self._sealed)
        cancelled = CounterMetricFamily("delayline_cancelled_messages", "Messages cancelled by batches.")
        cancelled.add_metric([], self._cancelled)
        seconds = SummaryMetricFamily(
            "delayline_batch_seconds", "Duration of batches, by step; claims is the wait for claims.", labels=["step"]
        )
        for step, count in sorted(self._step_counts.items()):
            seconds.add_metric([step], count, self._step_seconds[step])
        lag = GaugeMetricFamily(
            "delayline_input_lag_records", "Offsets of an input topic that no batch has read.", labels=["topic"]
        )
        for topic, offsets in sorted(self._lag.items()):
            lag.add_metric([topic], offsets)
        taken_over = GaugeMetricFamily(
            "delayline_lane_taken_over",
            "1 from the time when the job takes a lane over until a forwarder claims records of it again.",
            labels=["lane"],
        )
        for lane, is_taken in sorted(self._taken_over.items()):
            taken_over.add_metric([str(lane)], is_taken)
        yield from (read, accepted, lag, sealed, cancelled, seconds, taken_over)
        if self._lease_s is not None:
            yield gauge(
                "delayline_lease_confirmed_timestamp_seconds",
                "When the broker last confirmed that this process holds the lease.",
                self._lease_s,
            )
        if self.batch_done_s is not None and self._done is not None:
            yield gauge(
                "delayline_batch_done_timestamp_seconds",
                "When the last batch ended. More than a minute ago, the job is down or stuck.",
                self.batch_done_s,
            )
            yield gauge(
                "delayline_staged_until_timestamp_seconds",
                "Messages due before this instant are staged. Normally clock.horizon ahead of now.",
                self._done.cutoff_ms / 1000,
            )

    def _what_waits(self) -> Iterable[Metric]:
        if self._done is None or self._table is None:
            return ()
        waiting = self._waiting(self._done, self._table)
        return waiting_metrics(self._table, waiting, self._knows_mutable, self._now_s())


class JobMetrics(Collector):
    """Collects what the batches have done, and what open transactions hold back of the input."""

    def __init__(self, counts: JobCounts, held: HeldInput) -> None:
        self._counts = counts
        self._held = held

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of now."""
        yield from self._counts.collect()
        yield from self._held.collect()
