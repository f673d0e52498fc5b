"""The service: starts the query, watches it, and ends it after the running batch."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cache
from queue import Empty, SimpleQueue
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from conf import errors
from conf.errors import (
    ApplicationHeld,
    BrokerUnreachable,
    ClockBehind,
    DelaylineError,
    KafkaError,
    LateRowsDropped,
    QueryFailed,
    RecordUnreadable,
    ServiceStopping,
    TopicMissing,
)
from conf.failpoints import failpoint
from conf.kafka.options import librdkafka_options
from conf.kafka.rights import right_missing
from conf.settings import Settings
from sinks.internal_topics.lease import HeldLease, read_lease
from sinks.ready_log.writer import fence_writers
from sinks.topics.topics import check_topics
from sources.intake.stamp_check import unreadable_records
from state.message import LAST_MS
from streaming.checkpoint.checkpoint import Checkpoint
from streaming.checkpoint.recovery import Recovered, input_starts, recover
from streaming.checkpoint.recreated_inputs import read_from_beginning, read_nothing_of
from streaming.job.batch import BatchRunner
from streaming.job.clock_watch import check_host_clock, watch_from
from streaming.job.input_loss import check_input_loss
from streaming.job.lane_start import open_new_application, start_lanes
from streaming.job.outage_watch import OutageWatch
from streaming.job.query import shard_outputs, start_query
from streaming.job.slow_batch_watch import SlowBatchWatch
from streaming.job.start_wait import StartWait
from streaming.job.task_progress import TaskProgress
from streaming.job.unchanged_buckets import UnchangedBuckets, state_of
from streaming.monitor.job_metrics import JobCounts, monitored_job
from streaming.processes.kinds import Kind
from streaming.processes.supervisor import Processes
from streaming.spark.exclusive_session import exclusive_session
from streaming.storage.checks import check_storage
from streaming.storage.failures import innermost_cause, storage_failure, text_of_query, translate_storage_errors
from streaming.storage.paths import storage_path

log = logging.getLogger(__name__)

_POLL_S = 0.5
_NICE = 10
# How Spark's Kafka source begins the error for records that were deleted.
_DATA_LOSS = "Some data may have been lost"
# How it fails on a timestamp that overflows when it is converted to microseconds.
_OVERFLOW = "ArithmeticException: long overflow"
# How many unreadable records an error names.
_MOST_NAMED = 10


class Gate:
    """Lets batches run until it is closed. A later batch ends the query before anything of it is done.

    Such a batch is only planned in the offset log, and the next start replays it. If the gate let it pass without
    running it, Spark would commit it, and the records that it read would be lost.
    """

    def __init__(self) -> None:
        self._open = True
        self._cut_off = False

    def close(self, cut_off: bool = False) -> None:
        """Let no further batch begin. `cut_off` means that the running batch is about to be cancelled, and may fail."""
        self._open = False
        self._cut_off = cut_off

    def guard(self, run_batch: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
        """Return `run_batch` behind the gate."""

        def guarded(shard_output: DataFrame, batch_id: int) -> None:
            if not self._open:
                raise ServiceStopping(f"batch {batch_id} is left to the next start")
            try:
                run_batch(shard_output, batch_id)
            except Exception:
                if not self._cut_off:
                    raise
                # A short text: Spark searches it with a pattern that overflows the stack on a long trace.
                raise ServiceStopping(f"batch {batch_id} was cut off, and is left to the next start") from None

        return guarded


def run_service(settings: Settings, fresh: bool = False, on_started: Callable[[], None] = lambda: None) -> None:
    """Run the job until SIGTERM or SIGINT, or until the query fails.

    If a start of a job with a checkpoint finds no broker, it tries again for `kafka.outage_limit`. Release processes
    and forwarders that it has started, or found, go on meanwhile.

    `fresh` allows a new checkpoint although an earlier one has delivered. Raises a DelaylineError; for a failure of the
    query that Delayline does not know, QueryFailed with Spark's words.
    """
    check_storage(settings)
    # Not a threading.Event: a signal may interrupt the thread that holds the event's lock, which would then wait for
    # itself.
    stop: SimpleQueue[int] = SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: stop.put(number))
    counts = JobCounts()
    processes = Processes(
        settings, {Kind.RELEASE: settings.release.processes, Kind.FORWARD: settings.forward.processes}
    )
    started = SimpleQueue[bool]()

    def note_start() -> None:
        started.put(True)
        on_started()

    with ExitStack() as monitoring, processes:

        @cache
        def monitor() -> None:
            monitoring.enter_context(monitored_job(counts, settings))

        wait = StartWait(settings, monitor)
        while stop.empty():
            try:
                # A start whose settings are wrong takes no address, and says nothing of one.
                check_topics(settings)
                monitor()
                _run(settings, fresh, note_start, stop, processes, counts)
            except (BrokerUnreachable, TopicMissing) as problem:
                if not started.empty():
                    raise
                wait.wait(problem)
            else:
                return


def _run(
    settings: Settings,
    fresh: bool,
    on_started: Callable[[], None],
    stop: SimpleQueue[int],
    processes: Processes,
    counts: JobCounts,
) -> None:
    """Run the job once.

    1. Start release processes and forwarders, which go on until the end. If another process seems to hold the lease,
       wait for 2.
    2. Start Spark and claim the lease. After a crash, fence the writers of the process before.
    3. Check the host's clock against the broker's, and recover: read the checkpoint, the table's metadata and the
       progress topic.
    4. Check that the host's clock is not behind, and that the input topics have the records that the next batch needs.
    5. Open or close the lanes of forwarders. Let the first batch catch up with the clock. Start the query, and call
       `on_started`.
    6. Watch the query until it ends. Then find the cause in the input if Spark names none.
    """

    def open_lanes(lease: HeldLease) -> None:
        if not fresh:
            open_new_application(settings, lease.check_now)

    with ExitStack() as stack:
        # 1. Start release processes and forwarders. They need no Spark: what is handed over, or due soon, leaves on
        #    time from here on.
        if not _is_held(settings):
            processes.start()
        _give_way()
        # 2. Start Spark and claim the lease.
        spark, lease = stack.enter_context(exclusive_session(settings, "run", on_claimed=open_lanes))
        tasks = stack.enter_context(closing(TaskProgress(spark)))
        counts.watch_tasks(tasks.done_tasks)
        processes.start()
        if lease.after_a_crash:
            # The holder before may be paused, not dead, and have open transactions.
            fence_writers(settings, settings.bucket.shards)
        # 3. Check the host's clock, and recover.
        check_host_clock(lease, settings.clock.skew_limit)
        with translate_storage_errors(settings):
            state = recover(spark, settings, fresh, lease)
        counts.recovered(state.checkpoint.path)
        failpoint("recovering")
        # 4. Check clock and input.
        clock = watch_from(state.checkpoint, state.planned)
        if recreated := _check_input(settings, state):
            state = _begin_again(spark, settings, lease, state, recreated)
        # 5. Start the query.
        unchanged = UnchangedBuckets(state_of(spark, state.checkpoint, state.settings_history), counts)
        claims = start_lanes(settings, state, lease)
        with closing(BatchRunner(state, settings, lease, claims, counts)) as runner, closing(unchanged):
            with translate_storage_errors(settings):
                runner.catch_up()
            gate = Gate()
            shard_output = shard_outputs(
                spark, settings, state.settings_history, input_starts(settings, state.checkpoint.origin)
            )
            query = start_query(shard_output, settings, state.checkpoint.path, gate.guard(runner.run))
            on_started()
            # 6. Watch it.
            outage = OutageWatch(lambda: str(query.status["message"]))
            try:
                _watch(
                    spark, query, settings, gate, stop, lease, runner, processes, counts, unchanged,
                    lambda: clock.check(runner.planned), lambda: outage.check(runner.planned),
                )  # fmt: skip
            except QueryFailed:
                if _DATA_LOSS in str(query.exception()):
                    # Spark's error names one deleted range, or none; this one names all.
                    _check_input(settings, replace(state, unread=set()))
                if _OVERFLOW in str(query.exception()):
                    check_stamps(settings, state.checkpoint)
                raise


def _is_held(settings: Settings) -> bool:
    """Return whether another process seems to hold the lease, whose processes should not be disturbed.

    Whether it does, the claim finds out in seconds. Until then only a crash on this host is certain.
    """
    last = read_lease(librdkafka_options(settings.kafka), settings.lease_topic)
    if last is None or last.released:
        return False
    if last.host != socket.gethostname():
        return True
    try:
        os.kill(last.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return last.pid != os.getpid()


def _give_way() -> None:
    """Let what this process starts from here on, Java above all, give way to its processes without Spark.

    They take little time, and need it at once.
    """
    os.setpriority(os.PRIO_PROCESS, 0, max(_NICE, os.getpriority(os.PRIO_PROCESS, 0)))


def check_stamps(settings: Settings, checkpoint: Checkpoint) -> None:
    """Raise RecordUnreadable if the planned batch has records whose timestamps Spark cannot read.

    Raises nothing if the input cannot be read: the query's own error says more then.
    """
    planned = checkpoint.last_planned()
    if planned is None:
        return
    try:
        records = unreadable_records(settings, checkpoint.read_offsets(), checkpoint.planned(planned).offsets)
    except KafkaError as problem:
        log.warning("the input could not be searched for timestamps that Spark cannot read: %s", problem)
        return
    if records:
        named = "; ".join(map(str, records[:_MOST_NAMED]))
        count = f" (the first {_MOST_NAMED} of {len(records)} found)" if len(records) > _MOST_NAMED else ""
        raise RecordUnreadable(
            f"{named}{count}: Spark reads none later than {LAST_MS}, or as far before 1970 (was it "
            "stamped in nanoseconds?). Publish the unread records before it again, delete the partition's records up "
            "to it (kafka-delete-records.sh), and start with topics.skip_expired=true. With "
            "message.timestamp.after.max.ms and message.timestamp.before.max.ms the broker refuses such records"
        )


def finish_planned(spark: SparkSession, settings: Settings, checkpoint: Checkpoint, lease: HeldLease) -> None:
    """Replay the batch that was cut off, if there is one, and plan no other. No batch is then half done.

    With `topics.skip_expired`, it reads nothing of input topics that were created again. Raises QueryFailed,
    ClockAhead, ClockBehind, RecordsExpired, and the errors of `recover`.
    """
    planned = checkpoint.last_planned()
    if planned is None or checkpoint.last_committed() == planned:
        return
    check_host_clock(lease, settings.clock.skew_limit)
    state = recover(spark, settings, fresh=False, lease=lease)
    if checkpoint.last_planned() != planned:
        # It never ran.
        return
    watch_from(checkpoint, state.planned)
    if recreated := _check_input(settings, state):
        read_nothing_of(checkpoint, recreated, planned)
    claims = start_lanes(settings, state, lease)
    with closing(BatchRunner(state, settings, lease, claims, JobCounts())) as runner:
        shard_output = shard_outputs(spark, settings, state.settings_history, input_starts(settings, checkpoint.origin))
        runner.wake()
        query = start_query(shard_output, settings, checkpoint.path, runner.run, only_planned=True)
        while query.isActive:
            time.sleep(_POLL_S)
        if query.exception() is not None:
            raise _failure(query, settings)


def _check_input(settings: Settings, state: Recovered) -> list[str]:
    known = state.settings_history.newest.input_ids
    return check_input_loss(settings, state.checkpoint, state.store, known, state.unread)


def _begin_again(
    spark: SparkSession, settings: Settings, lease: HeldLease, before: Recovered, topics: Collection[str]
) -> Recovered:
    """Let the job read input topics that were created again from their beginning, and return what it goes on from.

    The batch that was cut off is replayed before, without the records of the old topics.
    """
    with translate_storage_errors(settings):
        finish_planned(spark, settings, before.checkpoint, lease)
        read_from_beginning(settings, before.checkpoint, topics, before.unread)
        return recover(spark, settings, fresh=False, lease=lease)


def _watch(
    spark: SparkSession,
    query: StreamingQuery,
    settings: Settings,
    gate: Gate,
    stop: SimpleQueue[int],
    lease: HeldLease,
    runner: BatchRunner,
    processes: Processes,
    counts: JobCounts,
    unchanged: UnchangedBuckets,
    check_clock: Callable[[], None],
    is_outage: Callable[[], bool],
) -> None:
    """Wait until the query fails or a signal asks for the end; then end the query after the running batch.

    Checks the clock, the lease, the release processes, outages, each batch's progress and its steps meanwhile.

    `stop` has an entry once a signal has come. `check_clock` raises ClockBehind. `is_outage` returns whether Spark
    waits for brokers between batches, and logs that.
    """
    progress = _ProgressWatch(query, counts)
    slow = SlowBatchWatch(lambda: counts.running)
    while not _stop_requested(stop):
        _check_clock_and_lease(spark, query, gate, lease, check_clock)
        _check_processes(spark, query, gate, runner, processes)
        is_outage()
        progress.check()
        slow.check()
        if settings.monitor.tells_of_job:
            unchanged.check()
        counts.lease_confirmed(lease.confirmed_ago_s)
        if not query.isActive:
            raise _cause_of_end(query, settings, lease)
    log.info("stopping after the running batch")
    # Spark would log the gate's refusal as a failure of the query.
    spark.sparkContext.setLogLevel("OFF")
    gate.close()
    runner.wake()
    # During an outage no batch runs, and Spark would ask the brokers for minutes.
    while query.isActive and query.status["isTriggerActive"] and not is_outage():
        _check_clock_and_lease(spark, query, gate, lease, check_clock)
        time.sleep(0.02)
    query.stop()
    progress.check()
    problem = query.exception()
    if problem is not None and ServiceStopping.code not in str(problem):
        raise _failure(query, settings)


def _stop_requested(stop: SimpleQueue[int]) -> bool:
    """Wait for `_POLL_S` at most, and return whether a signal asked for the end."""
    try:
        stop.get(timeout=_POLL_S)
    except Empty:
        return False
    return True


def _check_processes(
    spark: SparkSession, query: StreamingQuery, gate: Gate, runner: BatchRunner, processes: Processes
) -> None:
    """End the query after the running batch if a release process fails again and again. Raises its error."""
    try:
        processes.check()
    except DelaylineError:
        gate.close()
        runner.wake()
        spark.sparkContext.setLogLevel("OFF")
        while query.isActive and query.status["isTriggerActive"]:
            time.sleep(0.02)
        query.stop()
        raise


def _check_clock_and_lease(
    spark: SparkSession, query: StreamingQuery, gate: Gate, lease: HeldLease, check_clock: Callable[[], None]
) -> None:
    """Cancel the running batch if the clock was set back or the lease was taken.

    Raises ClockBehind, ApplicationHeld.
    """
    try:
        check_clock()
        lease.check_not_taken()
    except (ClockBehind, ApplicationHeld):
        gate.close(cut_off=True)
        # Spark would log every task of the cancelled batch.
        spark.sparkContext.setLogLevel("OFF")
        query.stop()
        raise


class _ProgressWatch:
    """Checks each batch's progress for dropped rows (invariant 6), and counts its mutable buckets."""

    def __init__(self, query: StreamingQuery, counts: JobCounts) -> None:
        self._query = query
        self._counts = counts
        self._checked = -1

    def check(self) -> None:
        """Check and count the batches that ended since the last call.

        Stops the query and raises LateRowsDropped if one of them dropped rows.
        """
        newest = self._checked
        lag: dict[str, int] = {}
        # Not `query.recentProgress`, which iterates Java maps from Python: each iteration ends with a Java exception
        # that pyspark classifies in a dozen calls. With the hundred batches that Spark keeps, that took a core.
        for progress in reversed(self._query._jsq.recentProgress()):
            batch_id = progress.batchId()
            if batch_id <= self._checked:
                break
            newest = max(newest, batch_id)
            report = json.loads(progress.json())
            operators = report["stateOperators"]
            mutable_buckets = sum(operator["numRowsTotal"] for operator in operators)
            # The newest comes first.
            lag = lag or _input_lag(report["sources"])
            self._counts.reported(batch_id, mutable_buckets, lag)
            if dropped := sum(operator["numRowsDroppedByWatermark"] for operator in operators):
                self._query.stop()
                raise LateRowsDropped(
                    f"batch {batch_id}: Spark dropped {dropped} chunks of messages behind the watermark. Before the "
                    "job runs again, run `delayline rebuild --discard-checkpoint`: it accepts those messages again "
                    "that are not due yet. Please report this, with the checkpoint"
                )
        self._checked = newest


def _input_lag(sources: list[dict[str, Any]]) -> dict[str, int]:
    """Return how many offsets of each input topic are left unread, by Spark's report of a batch."""
    lag: Counter[str] = Counter()
    for source in sources:
        latest, end = source["latestOffset"] or {}, source["endOffset"] or {}
        for topic, offsets in latest.items():
            read = end.get(topic, {})
            lag[topic] += sum(offset - read.get(partition, offset) for partition, offset in offsets.items())
    return dict(lag)


def _cause_of_end(query: StreamingQuery, settings: Settings, lease: HeldLease) -> DelaylineError:
    """Return the error to raise for a query that has ended: that of a lost lease or an outage goes first."""
    failure = _failure(query, settings)
    try:
        lease.check(limit_s=0)
    except ApplicationHeld as taken:
        # A holder that lost the lease may fail in many ways, and this is the cause of all of them.
        return taken
    except BrokerUnreachable as outage:
        # Spark's own error names only what it waited for.
        return outage if type(failure) is QueryFailed else failure
    return failure


def _failure(query: StreamingQuery, settings: Settings) -> DelaylineError:
    """Return the error by which the query ended.

    That is, in this order: the last Delayline error in Spark's text, a right that Java's client lacks, a failure of the
    storage, or QueryFailed with the innermost cause.
    """
    text = text_of_query(query)
    log.debug("the query failed: %s", text)
    own = re.findall(r"^(?:.*\W)?conf\.errors\.(\w+): [a-z-]+: (.+)$", text, re.MULTILINE)
    if own:
        name, sentence = own[-1]
        kind: type[DelaylineError] = getattr(errors, name)
        return kind(sentence)
    if barred := re.findall(r"TopicAuthorizationException: Not authorized to access topics: \[(.*)\]", text):
        return right_missing("Read", f"topic {barred[-1]}")
    if failure := storage_failure(text, storage_path(settings)):
        return failure
    return QueryFailed(innermost_cause(text))
