"""The watch over the running query, from its start to its end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from conf.errors import ApplicationHeld, ClockBehind, DelaylineError, QueryFailed, ServiceStopping
from conf.settings import Settings
from sinks.internal_topics.lease import HeldLease
from streaming.job.batch import BatchRunner
from streaming.job.gate import Gate
from streaming.job.query_failure import cause_of_end, failure_of
from streaming.job.watches.clock_watch import ClockWatch
from streaming.job.watches.executor_watch import ExecutorWatch, executors_of
from streaming.job.watches.outage_watch import OutageWatch
from streaming.job.watches.progress_watch import ProgressWatch
from streaming.job.watches.slow_batch_watch import SlowBatchWatch
from streaming.job.watches.unchanged_buckets import UnchangedBuckets
from streaming.monitor.job_metrics import JobCounts
from streaming.processes.supervisor import Processes

log = logging.getLogger(__name__)

_POLL_S = 0.5
# While the query ends.
_END_POLL_S = 0.02


@dataclass(frozen=True)
class RunningJob:
    """The parts of a running job.

    - `query`: Spark's query. Its batches pass `gate` on their way to `runner`
    - `lease`, `clock`, `processes`: checked while the query runs
    - `counts`, `unchanged`: for metrics and status
    """

    spark: SparkSession
    settings: Settings
    query: StreamingQuery
    gate: Gate
    runner: BatchRunner
    lease: HeldLease
    clock: ClockWatch
    processes: Processes
    counts: JobCounts
    unchanged: UnchangedBuckets


class QueryWatch:
    """Checks clock, lease, executors, processes, outages, each batch's progress and its steps while the query runs."""

    def __init__(self, job: RunningJob, now_s: Callable[[], float] = time.monotonic) -> None:
        """`now_s` is a monotonic clock, by which an outage is noticed."""
        self._job = job
        self._progress = ProgressWatch(job.query, job.counts)
        self._outage = OutageWatch(lambda: str(job.query.status["message"]), now_s)
        self._slow = SlowBatchWatch(lambda: job.counts.running)
        limit_s = job.settings.kafka.outage_limit / 1000
        self._executors = ExecutorWatch(executors_of(job.spark), lambda: job.counts.running, limit_s, now_s)

    def wait(self, stop: SimpleQueue[int]) -> None:
        """Wait until the query fails or a signal asks for the end; then end the query after the running batch.

        `stop` has an entry once a signal has come. Raises the error by which the query has ended, ClockBehind,
        ApplicationHeld, QueryFailed without executors, and the error of a process that fails again and again.
        """
        job = self._job
        while not _stop_requested(stop):
            self._check_batch()
            self._check_processes()
            self._is_outage()
            self._progress.check()
            self._slow.check()
            if job.settings.monitor.tells_of_job:
                job.unchanged.check()
            job.counts.lease_confirmed(job.lease.confirmed_ago_s)
            if not job.query.isActive:
                raise cause_of_end(job.query, job.settings, job.lease)
        log.info("stopping after the running batch")
        self._stop_query()
        self._progress.check()
        problem = job.query.exception()
        if problem is not None and ServiceStopping.code not in str(problem):
            raise failure_of(job.query, job.settings)

    def _stop_query(self) -> None:
        """End the query after the running batch. Raises the errors of `_check_batch`."""
        job = self._job
        # Spark would log the gate's refusal as a failure of the query.
        self._silence_spark()
        job.gate.close()
        job.runner.wake()
        # During an outage no batch runs, and Spark would ask the brokers for minutes.
        while self._is_in_batch() and not self._is_outage():
            self._check_batch()
            self._slow.check()
            time.sleep(_END_POLL_S)
        job.query.stop()

    def _check_processes(self) -> None:
        """End the query after the running batch if a release process fails again and again. Raises its error."""
        try:
            self._job.processes.check()
        except DelaylineError:
            self._stop_query()
            raise

    def _check_batch(self) -> None:
        """Cancel the running batch if the clock was set back, the lease was taken, or no executor comes.

        Raises ClockBehind, ApplicationHeld, QueryFailed.
        """
        try:
            self._job.clock.check(self._job.runner.planned)
            self._job.lease.check_not_taken()
            self._executors.check()
        except (ClockBehind, ApplicationHeld, QueryFailed):
            self._job.gate.close(cut_off=True)
            # Spark would log every task of the cancelled batch.
            self._silence_spark()
            self._job.query.stop()
            raise

    def _is_outage(self) -> bool:
        """Return whether Spark waits for brokers between batches, and log that."""
        return self._outage.check(self._job.runner.planned)

    def _is_in_batch(self) -> bool:
        return self._job.query.isActive and self._job.query.status["isTriggerActive"]

    def _silence_spark(self) -> None:
        self._job.spark.sparkContext.setLogLevel("OFF")


def _stop_requested(stop: SimpleQueue[int]) -> bool:
    """Wait for `_POLL_S` at most, and return whether a signal asked for the end."""
    try:
        stop.get(timeout=_POLL_S)
    except Empty:
        return False
    return True
