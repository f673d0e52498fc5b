"""The job's server, and whether the job makes progress and stages messages in time."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

from conf.instants import instant
from conf.sections import ClockSettings
from conf.settings import Settings
from streaming.monitor.held_input import HeldInput, PartitionEnds
from streaming.monitor.job_metrics import JobCounts, JobMetrics
from streaming.monitor.look_door import LookDoor, Reply
from streaming.monitor.monitored import monitored
from streaming.monitor.server import Health

# A batch may wait for brokers as long as `kafka.outage_limit`, and then ends the job; without an outage, none of its
# tasks takes so much longer.
_TASK_S = 600.0
# A batch that lasts longer is looked at. Most take a second.
_LONG_BATCH_S = 60.0
# A batch stages messages up to `clock.horizon` after the one before began. With a horizon of a second or two that comes
# to lie before the clock at times: by `clock.trigger`, and by the time that a batch takes.
_BATCH_S = 2.0


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
    """Return whether batches are done often enough, and stage what is due by now.

    The job is not ready while messages leave late: without a batch for `clock.horizon`, or if the last one was
    replayed, and staged what was due within the horizon of a time before the start. It is live as long as tasks
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
