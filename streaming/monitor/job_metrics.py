"""The metrics and the health of the job: what its batches have done, and what waits in its state and its buckets."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from conf.instants import instant
from conf.sections import ClockSettings
from conf.settings import Settings
from state.buckets.catalog import metadata_bytes
from state.buckets.segments import Segment
from state.checkpoint.origin import Offsets
from state.checkpoint.planned_batch import PlannedBatch
from streaming.monitor.estimate import MutableDues, WaitingEstimate
from streaming.monitor.held_input import HeldInput, PartitionEnds
from streaming.monitor.job_status import JobStatus, Merges
from streaming.monitor.look_door import LookDoor, Reply
from streaming.monitor.monitored import monitored
from streaming.monitor.server import Health

# Spans from now on, by their ends in seconds: what is due within one is due within the longer ones too.
WITHIN_S = {
    "1m": 60, "10m": 600, "1h": 3_600, "6h": 21_600, "1d": 86_400, "7d": 604_800, "30d": 2_592_000, "90d": 7_776_000,
    "366d": 31_622_400,
}  # fmt: skip
# Spark reports a batch a moment after it was done.
_TOLD = 100
# A batch may wait for brokers as long as `kafka.outage_limit`, and then ends the job; without an outage, none of its
# tasks takes so much longer.
_TASK_S = 600.0
# A batch that lasts longer is looked at. Most take a second.
_LONG_BATCH_S = 60.0
# A batch hands over up to `clock.horizon` after the one before began. With a horizon of a second or two that comes to
# lie before the clock at times: by `clock.trigger`, and by the time that a batch takes.
_BATCH_S = 2.0


@dataclass(frozen=True)
class StepFailures:
    """Steps of maintenance of one kind: how many have failed since the start, and how many items are set aside."""

    failed: int
    set_aside: int


@dataclass(frozen=True)
class TableState:
    """What the table of sealed buckets has, and what was merged of them.

    - `segments`: of all `buckets`
    - `size`: bytes and files of the table, if they are known
    - `failures`: of maintenance, by kind of step
    """

    segments: Sequence[Segment] = ()
    buckets: int = 0
    merges: Merges = field(default_factory=Merges)
    size: tuple[int, int] | None = None
    failures: Mapping[str, StepFailures] = field(default_factory=dict)


class JobCounts(Collector):
    """Counts what batches have done. The query's thread writes it, and the server's threads read it.

    Instants are epoch s. What counts messages begins at zero with each start of the job.
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
        """Take a function whose result differs once a task of the running batch is done; several threads call it."""
        self._done_tasks = done_tasks

    def look_for_progress(self) -> float:
        """Return when what this process does was first seen to be as far as it is now, epoch s.

        So it needs two calls to see that nothing goes on. Each may take as long as `watch_tasks` allows.
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

        A batch tells only of the buckets that it changed. After a start, others are known to be empty when as many
        buckets have told of messages as there are, or by what is read of the state (`state_read`).
        """
        with self._lock:
            self._knows_mutable |= self._told.get(batch_id) == mutable_buckets
            # Of several batches the newest is reported first.
            self._reported = max(batch_id, self._reported or 0)
            self._lag = dict(lag)

    @property
    def batch_of_unknown_state(self) -> int | None:
        """The last batch that Spark has committed, if it is not known what all mutable buckets hold; else None."""
        with self._lock:
            return None if self._knows_mutable else self._reported

    def state_read(self, mutable: Mapping[int, MutableDues]) -> None:
        """Take what mutable buckets held after a batch since the start: it holds for those of which none has told."""
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
        """Up to when the last batch has handed over, or None before the first one is done."""
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
            yield _gauge(
                "delayline_lease_confirmed_timestamp_seconds",
                "When the broker last confirmed that this process holds the lease.",
                self._lease_s,
            )
        if self.batch_done_s is not None and self._done is not None:
            yield _gauge(
                "delayline_batch_done_timestamp_seconds",
                "When the last batch ended. More than 30 s ago, the job is down or stuck.",
                self.batch_done_s,
            )
            yield _gauge(
                "delayline_handed_over_until_timestamp_seconds",
                "Messages due before this instant are staged. Normally clock.horizon ahead of now.",
                self._done.cutoff_ms / 1000,
            )

    def _what_waits(self) -> Iterable[Metric]:
        if self._done is None or self._table is None:
            return
        table, all_waiting = self._table, self._waiting(self._done, self._table)
        yield _gauge("delayline_sealed_buckets", "Sealed buckets.", table.buckets)
        yield _gauge("delayline_sealed_segments", "Segments of sealed buckets.", len(table.segments))
        yield _gauge(
            "delayline_metadata_bytes", "Memory of segment metadata in the driver.", metadata_bytes(table.segments)
        )
        yield _gauge(
            "delayline_sealed_bytes",
            "Bytes of the sealed messages, uncompressed, approximately.",
            all_waiting.sealed_bytes,
        )
        if table.size is not None:
            size, files = table.size
            yield _gauge("delayline_table_bytes", "Bytes of the table's files, without replaced ones.", size)
            yield _gauge("delayline_table_files", "Files of the table, without replaced ones.", files)
        yield _gauge("delayline_merges_running", "Running merges of sealed buckets.", table.merges.running)
        yield CounterMetricFamily("delayline_merges", "Finished merges of sealed buckets.", table.merges.finished)
        yield CounterMetricFamily("delayline_merging_seconds", "Duration of finished merges.", table.merges.seconds)
        yield from _failures(table.failures)
        waiting = GaugeMetricFamily(
            "delayline_waiting_messages", "Waiting messages that are not staged, approximately.", labels=["place"]
        )
        waiting.add_metric(["sealed"], all_waiting.sealed)
        if self._knows_mutable:
            waiting.add_metric(["mutable"], all_waiting.mutable)
            yield from _when_due(all_waiting, self._now_s())
        yield waiting


class JobMetrics(Collector):
    """Collects what the batches have done, and what open transactions hold back of the input."""

    def __init__(self, counts: JobCounts, held: HeldInput) -> None:
        self._counts = counts
        self._held = held

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of now."""
        yield from self._counts.collect()
        yield from self._held.collect()


def _when_due(waiting: WaitingEstimate, now_s: float) -> Iterable[Metric]:
    due = GaugeMetricFamily(
        "delayline_due_messages",
        "Waiting messages that are not staged and are due within a span from now, approximately.",
        labels=["within"],
    )
    for name, span_s in WITHIN_S.items():
        due.add_metric([name], waiting.due_before(int((now_s + span_s) * 1000)))
    yield due
    if waiting.next_due_ms is not None:
        yield _gauge(
            "delayline_next_due_timestamp_seconds",
            "Due time of the first waiting message that is not staged.",
            waiting.next_due_ms / 1000,
        )
    if waiting.last_due_ms is not None:
        yield _gauge(
            "delayline_last_due_timestamp_seconds",
            "Due time of the last waiting message that is not staged.",
            waiting.last_due_ms / 1000,
        )


def _failures(by_step: Mapping[str, StepFailures]) -> Iterable[Metric]:
    failed = CounterMetricFamily(
        "delayline_maintenance_failures", "Failed steps of the maintenance of the table.", labels=["step"]
    )
    aside = GaugeMetricFamily(
        "delayline_maintenance_set_aside",
        "Parts of its work, such as buckets, that the step has set aside after a failure.",
        labels=["step"],
    )
    for step, failures in by_step.items():
        failed.add_metric([step], failures.failed)
        aside.add_metric([step], failures.set_aside)
    yield from (failed, aside)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def monitored_job(
    counts: JobCounts, settings: Settings, look: Callable[[bytes], Reply]
) -> AbstractContextManager[object]:
    """Return a context in which the job answers at `monitor.job`, if that is set, once no other process listens there.

    `look` answers requests for messages (`LookDoor`). Raises SettingError if nobody could ever listen there.
    """
    health = partial(job_health, counts, settings.clock, settings.kafka.outage_limit)
    status = partial(counts.status, settings.application_id, settings.bucket.shards)
    metrics = JobMetrics(counts, HeldInput(PartitionEnds(settings), lambda: counts.read_offsets))
    looks = LookDoor(settings.web.token, look)
    return monitored("job", settings, metrics, health, status, waits_for_address=True, looks=looks)


def job_health(
    counts: JobCounts, clock: ClockSettings, outage_limit_ms: int, now_s: Callable[[], float] = time.time
) -> Health:
    """Return whether batches are done often enough, and hand over what is due by now.

    The job is not ready while messages leave late: without a batch for `clock.horizon`, or if the last one was
    replayed, and handed over what was due within the horizon of a time before the start. It is live as long as tasks
    end, however long a batch lasts: what was killed in the midst of a large one would begin it again, and again. If
    none ends for longer than the time between batches, an outage and a task take, it is not.
    """
    done_s, cutoff_ms, at_s = counts.batch_done_s, counts.cutoff_ms, now_s()
    silent_s = at_s - (counts.started_s if done_s is None else done_s)
    still_s = 0.0 if silent_s <= _LONG_BATCH_S else min(silent_s, at_s - counts.look_for_progress())
    live = still_s <= (clock.trigger + outage_limit_ms) / 1000 + _TASK_S
    reasons = [] if live else [f"no task finished for {still_s:.0f} s"]
    if done_s is None or cutoff_ms is None:
        return Health(live, ready=False, reasons=[f"no batch finished since the start, {silent_s:.0f} s ago", *reasons])
    spare_s = clock.trigger / 1000 + _BATCH_S
    if silent_s > clock.horizon / 1000 + spare_s:
        reasons.append(f"no batch finished for {silent_s:.0f} s")
    if at_s - cutoff_ms / 1000 > spare_s:
        reasons.append(f"messages due from {instant(cutoff_ms)} on are not staged")
    return Health(live, not reasons, reasons)
