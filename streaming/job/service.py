"""The running service: start, watch, and end after the running batch."""

from __future__ import annotations

import json
import logging
import re
import signal
import time
from collections.abc import Callable
from contextlib import closing
from queue import Empty, SimpleQueue

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from conf import errors
from conf.errors import (
    ApplicationHeld,
    BrokerUnreachable,
    ClockBehind,
    DelaylineError,
    LateRowsDropped,
    QueryFailed,
    RecordUnreadable,
    ServiceStopping,
)
from conf.failpoints import failpoint
from conf.settings import Settings
from sinks.delivery.transactional_writer import fence_writers
from sinks.internal_topics.lease import HeldLease
from sinks.topics.topics import check_topics
from sources.intake.stamp_check import LAST_MS, unreadable_records
from streaming.checkpoint.checkpoint import Checkpoint
from streaming.checkpoint.recovery import input_starts, recover
from streaming.job.batch import BatchRunner
from streaming.job.clock_watch import ClockWatch
from streaming.job.input_loss import check_input_loss
from streaming.job.outage_watch import OutageWatch
from streaming.job.query import shard_outputs, start_query
from streaming.spark.exclusive_session import exclusive_session
from streaming.storage.checks import check_storage
from streaming.storage.failures import innermost_cause, storage_failure, text_of_query, translate_storage_errors
from streaming.storage.paths import checkpoint_path, storage_path

log = logging.getLogger(__name__)

_POLL_S = 0.5
# How Spark's Kafka source begins the error for records that are not there any more.
_DATA_LOSS = "Some data may have been lost"
# By what it fails on a timestamp of which there are too many microseconds.
_OVERFLOW = "ArithmeticException: long overflow"


class Gate:
    """Lets batches through until it is closed; a batch that comes later ends the query with nothing of it done.

    Such a batch is planned in the offset log only, and is replayed by the next start. To let it pass without
    running it would commit it, and lose what it read.
    """

    def __init__(self, last_batch: int | None = None) -> None:
        """`last_batch` is the last one that may run, if there is one."""
        self._open = True
        self._cut_off = False
        self._last_batch = last_batch

    def close(self, cut_off: bool = False) -> None:
        """Let no further batch begin. With `cut_off`, the running one is about to be cancelled, and may fail."""
        self._open = False
        self._cut_off = cut_off

    def guard(self, run_batch: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
        """Return `run_batch` behind the gate."""

        def guarded(shard_output: DataFrame, batch_id: int) -> None:
            if not self._open or (self._last_batch is not None and batch_id > self._last_batch):
                raise ServiceStopping(f"batch {batch_id} is left to the next start")
            try:
                run_batch(shard_output, batch_id)
            except Exception:
                if not self._cut_off:
                    raise
                # A short text: Spark searches it for interruptions, with a pattern that overflows the stack on a trace.
                raise ServiceStopping(f"batch {batch_id} was cut off, and is left to the next start") from None

        return guarded


def run_service(settings: Settings, fresh: bool = False, on_started: Callable[[], None] = lambda: None) -> None:
    """Run the job until SIGTERM or SIGINT, or until the query fails.

    Raises a DelaylineError for what it knows; anything else that stops the query comes as Spark tells it.
    `on_started` is called when the query runs.
    """
    check_storage(settings)
    check_topics(settings)
    # Not an event: its lock may be held where the handler breaks in, and waited for by the same thread then.
    stop: SimpleQueue[int] = SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: stop.put(number))
    with exclusive_session(settings, "run") as (spark, lease):
        if lease.after_a_crash:
            # What a holder that is not dead, but stopped, has open.
            fence_writers(settings, settings.bucket.shards)
        with translate_storage_errors(settings):
            state = recover(spark, settings, fresh, lease)
        failpoint("recovering")
        clock = ClockWatch(settings.clock.lookahead)
        clock.check(state.planned)
        check_input_loss(settings, state.checkpoint, state.store)
        with closing(BatchRunner(state, settings, lease)) as runner:
            gate = Gate()
            shard_output = shard_outputs(
                spark, settings, state.settings_history, input_starts(settings, state.checkpoint.origin)
            )
            query = start_query(shard_output, settings, checkpoint_path(settings), gate.guard(runner.run))
            on_started()
            outage = OutageWatch(lambda: str(query.status["message"]))
            try:
                _watch(
                    spark, query, settings, gate, stop, lease,
                    lambda: clock.check(runner.planned), lambda: outage.check(runner.planned),
                )  # fmt: skip
            except QueryFailed:
                if _DATA_LOSS in str(query.exception()):
                    # Spark names no range, or only one of them.
                    check_input_loss(settings, state.checkpoint, state.store)
                if _OVERFLOW in str(query.exception()):
                    _check_stamps(settings, state.checkpoint)
                raise


def _check_stamps(settings: Settings, checkpoint: Checkpoint) -> None:
    """Raise RecordUnreadable if the batch that failed has records whose timestamps Spark cannot read."""
    planned = checkpoint.last_planned()
    if planned is None:
        return
    if found := unreadable_records(settings, checkpoint.read_offsets(), checkpoint.planned(planned).offsets):
        raise RecordUnreadable(
            f"{'; '.join(map(str, found))}: Spark reads none later than {LAST_MS} (was it stamped in microseconds or "
            "nanoseconds?). Publish again what lies unread before it, delete the partition's records up to it "
            "(kafka-delete-records.sh), and start with topics.skip_expired=true. With message.timestamp.after.max.ms "
            "the broker refuses such a record"
        )


def finish_planned(spark: SparkSession, settings: Settings, checkpoint: Checkpoint, lease: HeldLease) -> None:
    """Replay the batch that was cut off, if there is one, and begin no other: nothing is then done in part.

    Raises QueryFailed, ClockBehind, or what `recover` does.
    """
    planned = checkpoint.last_planned()
    if planned is None or checkpoint.last_committed() == planned:
        return
    state = recover(spark, settings, fresh=False, lease=lease)
    ClockWatch(settings.clock.lookahead).check(state.planned)
    check_input_loss(settings, checkpoint, state.store)
    with closing(BatchRunner(state, settings, lease)) as runner:
        shard_output = shard_outputs(spark, settings, state.settings_history, input_starts(settings, checkpoint.origin))
        query = start_query(shard_output, settings, checkpoint.path, Gate(planned).guard(runner.run))
        while query.isActive and checkpoint.last_committed() != planned:
            time.sleep(_POLL_S)
        # Spark would report the gate's refusal of the next batch as a failure of the query.
        spark.sparkContext.setLogLevel("OFF")
        query.stop()
        problem = query.exception()
        if problem is not None and ServiceStopping.code not in str(problem):
            raise _failure(query, settings)


def _watch(
    spark: SparkSession,
    query: StreamingQuery,
    settings: Settings,
    gate: Gate,
    stop: SimpleQueue[int],
    lease: HeldLease,
    check_clock: Callable[[], None],
    is_outage: Callable[[], bool],
) -> None:
    """Wait for the end: asked for, or by an error. Checks clock, lease and each batch's progress on the way.

    The clock from here, and not at the beginning of a batch: when it is set back, none may begin, since Spark waits
    until it shows the time of the next trigger.
    """
    drops = _DropWatch(query)
    while not _asked(stop):
        _check(spark, query, gate, lease, check_clock)
        is_outage()
        drops.check()
        if not query.isActive:
            raise _why_it_ended(query, settings, lease)
    log.info("stopping after the running batch")
    # Spark would report the gate's refusal as a failure of the query.
    spark.sparkContext.setLogLevel("OFF")
    gate.close()
    # Where the brokers are away there is none, and Spark would ask them for minutes.
    while query.isActive and query.status["isTriggerActive"] and not is_outage():
        _check(spark, query, gate, lease, check_clock)
        time.sleep(0.02)
    query.stop()
    drops.check()
    problem = query.exception()
    if problem is not None and ServiceStopping.code not in str(problem):
        raise _failure(query, settings)


def _asked(stop: SimpleQueue[int]) -> bool:
    """Wait for a moment, and say whether the end was asked for."""
    try:
        stop.get(timeout=_POLL_S)
    except Empty:
        return False
    return True


def _check(
    spark: SparkSession, query: StreamingQuery, gate: Gate, lease: HeldLease, check_clock: Callable[[], None]
) -> None:
    """Cut the running batch off if the clock was set back or the lease taken. Raises ClockBehind, ApplicationHeld."""
    try:
        check_clock()
        lease.check_not_taken()
    except (ClockBehind, ApplicationHeld):
        gate.close(cut_off=True)
        # Spark would report every task of the batch that is cut off.
        spark.sparkContext.setLogLevel("OFF")
        query.stop()
        raise


class _DropWatch:
    """Checks each batch's progress for dropped rows (invariant 6)."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._checked = -1

    def check(self) -> None:
        """Look at the batches that ended since the last call. Raises LateRowsDropped, with the query stopped."""
        newest = self._checked
        # Not `query.recentProgress`, which walks Java's maps from Python: each ends with a Java exception that
        # pyspark classifies in a dozen calls, a core's worth of them with a hundred batches remembered.
        for progress in reversed(self._query._jsq.recentProgress()):
            batch_id = progress.batchId()
            if batch_id <= self._checked:
                break
            newest = max(newest, batch_id)
            operators = json.loads(progress.json())["stateOperators"]
            if dropped := sum(operator["numRowsDroppedByWatermark"] for operator in operators):
                self._query.stop()
                raise LateRowsDropped(
                    f"batch {batch_id}: Spark dropped {dropped} chunks of messages behind the watermark; before the "
                    "job runs again, let `delayline rebuild --discard-checkpoint` accept again those that are not due "
                    "yet, and please report this with the checkpoint"
                )
        self._checked = newest


def _why_it_ended(query: StreamingQuery, settings: Settings, lease: HeldLease) -> DelaylineError:
    failure = _failure(query, settings)
    try:
        lease.check(limit_s=0)
    except ApplicationHeld as taken:
        # Whatever a holder trips over that comes back too late, this is why.
        return taken
    except BrokerUnreachable as absence:
        # Spark's own words for brokers that are away name only what it waited for.
        return absence if type(failure) is QueryFailed else failure
    return failure


def _failure(query: StreamingQuery, settings: Settings) -> DelaylineError:
    """Return why the query ended: in Delayline's own words if it has any, else in the first of Spark's."""
    text = text_of_query(query)
    log.debug("the query ended by %s", text)
    own = re.findall(r"^(?:.*\W)?conf\.errors\.(\w+): [a-z-]+: (.+)$", text, re.MULTILINE)
    if own:
        name, sentence = own[-1]
        kind: type[DelaylineError] = getattr(errors, name)
        return kind(sentence)
    if failure := storage_failure(text, storage_path(settings)):
        return failure
    return QueryFailed(innermost_cause(text))
