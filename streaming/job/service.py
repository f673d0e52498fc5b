"""The service: starts the query, watches it, and ends it after the running batch."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cache
from queue import SimpleQueue

from conf.errors import BrokerUnreachable, QueryFailed, TopicMissing
from conf.failpoints import failpoint
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.internal_topics.lease import HeldLease, read_lease
from sinks.ready_log.writer import fence_writers
from sinks.topics.topics import check_topics
from streaming.checkpoint.recovery import input_starts, recover
from streaming.job.batch import BatchRunner
from streaming.job.gate import Gate
from streaming.job.inputs.unreadable_stamps import check_stamps
from streaming.job.lanes.lane_start import open_new_application, start_lanes
from streaming.job.query import shard_outputs, start_query
from streaming.job.query_watch import QueryWatch, RunningJob
from streaming.job.start_wait import StartWait
from streaming.job.unfinished_batch import begin_again, check_input
from streaming.job.watches.clock_watch import check_host_clock, watch_from
from streaming.job.watches.task_progress import TaskProgress
from streaming.job.watches.unchanged_buckets import UnchangedBuckets, state_of
from streaming.monitor.job_health import monitored_job
from streaming.monitor.job_metrics import JobCounts
from streaming.processes.kinds import Kind
from streaming.processes.supervisor import Processes
from streaming.spark.exclusive_session import exclusive_session
from streaming.status.job_looks import JobLooks
from streaming.storage.checks import check_storage
from streaming.storage.failures import translate_storage_errors

_NICE = 10
# How Spark's Kafka source begins the error for records that were deleted.
_DATA_LOSS = "Some data may have been lost"
# How Spark's error names a timestamp that overflows when it is converted to microseconds.
_OVERFLOW = "ArithmeticException: long overflow"


def run_service(settings: Settings, fresh: bool = False, on_started: Callable[[], None] = lambda: None) -> None:
    """Run the job until SIGTERM or SIGINT, or until the query fails.

    If a start of a job with a checkpoint finds no broker, it tries again for `kafka.outage_limit`. Release processes
    and forwarders that it has started or found keep running meanwhile.

    `fresh` allows a new checkpoint although an earlier one has delivered. Raises a DelaylineError. For an unknown
    failure of the query, that is QueryFailed with Spark's message.
    """
    check_storage(settings)
    # Not a threading.Event: a signal may interrupt the thread that holds the event's lock, which would then wait for
    # itself.
    stop: SimpleQueue[int] = SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: stop.put(number))
    counts, looks = JobCounts(), JobLooks(settings)
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
            monitoring.enter_context(monitored_job(counts, settings, looks.reply))

        wait = StartWait(settings, monitor)
        while stop.empty():
            try:
                # A start with wrong settings binds no address, and logs none.
                check_topics(settings)
                monitor()
                _run(settings, fresh, note_start, stop, processes, counts, looks)
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
    looks: JobLooks,
) -> None:
    """Run the job once.

    1. Start release processes and forwarders, which run until the end. If another process seems to hold the lease, wait
       for 2.
    2. Start Spark and claim the lease. After a crash, fence the writers of the process before.
    3. Check the host's clock against the broker's, and recover: read the checkpoint, the table's metadata and the
       progress topic.
    4. Check that the host's clock is not behind, and that the input topics have the records that the next batch needs.
    5. Open or close the lanes of forwarders. Let the first batch catch up with the clock. Start the query, and call
       `on_started`.
    6. Watch the query until it ends, and answer looks at messages meanwhile. Then find the cause in the input if Spark
       names none.
    """

    def open_lanes(lease: HeldLease) -> None:
        if not fresh:
            open_new_application(settings, lease.check_now)

    with ExitStack() as stack:
        # 1. Start release processes and forwarders. They need no Spark: staged messages, and messages that are due
        #    soon, leave on time from here on.
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
        if recreated := check_input(settings, state):
            state = begin_again(spark, settings, lease, state, recreated)
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
            job = RunningJob(spark, settings, query, gate, runner, lease, clock, processes, counts, unchanged)
            try:
                with looks.through(spark, lambda: claims.due_before_ms):
                    QueryWatch(job).wait(stop)
            except QueryFailed:
                if _DATA_LOSS in str(query.exception()):
                    # Spark's error names at most one deleted range. This one names all.
                    check_input(settings, replace(state, unread=set()))
                if _OVERFLOW in str(query.exception()):
                    check_stamps(settings, state.checkpoint)
                raise


def _is_held(settings: Settings) -> bool:
    """Return whether another process seems to hold the lease. Its processes should not be disturbed.

    The claim of the lease gives the answer within seconds. Until then, only a crash on this host is certain.
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
    """Lower the priority of this thread and of all that it starts from here on, mainly Java.

    The processes without Spark take little time, and need it at once. `Processes` has started a thread for them before.
    """
    os.setpriority(os.PRIO_PROCESS, 0, max(_NICE, os.getpriority(os.PRIO_PROCESS, 0)))
