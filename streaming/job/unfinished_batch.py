"""Finishes the batch that was cut off before anything else begins, and checks the input of the next batch."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import closing

from pyspark.sql import SparkSession

from conf.settings import Settings
from sinks.internal_topics.lease import HeldLease
from state.checkpoint.origin import InputIds
from state.checkpoint.progress import Ranges
from state.taken import Taken
from streaming.checkpoint.checkpoint import Checkpoint
from streaming.checkpoint.recovery import Recovered, input_starts, recover
from streaming.checkpoint.recreated_inputs import read_from_beginning, read_nothing_of
from streaming.job.batch import BatchRunner
from streaming.job.inputs.input_loss import check_input_loss
from streaming.job.lanes.claim_watch import ClaimWatch
from streaming.job.lanes.lane_start import start_lanes
from streaming.job.query import shard_outputs, start_query
from streaming.job.query_failure import failure_of
from streaming.job.watches.clock_watch import check_host_clock, watch_from
from streaming.monitor.job_metrics import JobCounts
from streaming.storage.failures import translate_storage_errors

_POLL_S = 0.5


def finish_planned(spark: SparkSession, settings: Settings, checkpoint: Checkpoint, lease: HeldLease) -> None:
    """Replay the batch that was cut off, if there is one, and plan no other. Afterwards no batch is half done.

    With `topics.skip_expired`, the replay reads nothing from input topics that were created again. Raises QueryFailed,
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
    if recreated := check_input(settings, state):
        read_nothing_of(checkpoint, recreated, state.unread, planned)
    claims = start_lanes(settings, state, lease)
    # Maintenance would begin merges that cannot end, and the next runner of this process would use their names again.
    with closing(BatchRunner(state, settings, lease, claims, JobCounts(), maintains=False)) as runner:
        shard_output = shard_outputs(spark, settings, state.settings_history, input_starts(settings, checkpoint.origin))
        runner.wake()
        query = start_query(shard_output, settings, checkpoint.path, runner.run, only_planned=True)
        while query.isActive:
            time.sleep(_POLL_S)
        if query.exception() is not None:
            raise failure_of(query, settings)


def check_input(settings: Settings, state: Recovered) -> list[str]:
    """Return the topics whose old offsets no longer count. Raises the errors of `check_input_loss` and `ClaimWatch`."""
    known, checkpoint = state.settings_history.newest.input_ids, state.checkpoint

    def taken_in(ranges: Ranges, ids: InputIds) -> Taken:
        # Only if records were deleted: there may be millions of claims.
        with closing(ClaimWatch(settings, 0, checkpoint.origin.epoch, checkpoint.read_offsets(), known)) as claims:
            return claims.taken(ranges, ids)

    return check_input_loss(settings, checkpoint, state.store, known, state.unread, taken_in)


def begin_again(
    spark: SparkSession, settings: Settings, lease: HeldLease, before: Recovered, topics: Collection[str]
) -> Recovered:
    """Let the job read `topics` from their beginning, unless they are no inputs any more, and return the new state.

    Before that, the batch that was cut off is replayed without the records of the old topics.
    """
    with translate_storage_errors(settings):
        finish_planned(spark, settings, before.checkpoint, lease)
        if again := [topic for topic in topics if topic in settings.topics.input]:
            read_from_beginning(settings, before.checkpoint, again, before.unread)
        return recover(spark, settings, fresh=False, lease=lease)
