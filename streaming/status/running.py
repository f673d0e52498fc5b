"""The status of a running job, as it says itself: in a moment, since no Spark is started to read anything."""

from __future__ import annotations

import logging
from operator import add

from conf.settings import Settings
from state.due_spans import LATER, SPANS_MS
from streaming.monitor.client import NoAnswer, ask
from streaming.monitor.job_status import JobStatus
from streaming.status.broker import ask_broker
from streaming.status.status import Status, first_of, histogram_of, shard_statuses
from streaming.storage.paths import storage_path

log = logging.getLogger(__name__)


def status_of_job(settings: Settings) -> Status | None:
    """Ask the job at `monitor.job`, and the broker for what only that knows.

    Returns None if no address is set, if nobody answers there, if the job does not know yet what waits, or if it is
    another job: of another application, or with another checkpoint, such as the job of a test on the same host.
    """
    if not settings.monitor.job:
        return None
    try:
        answer = ask(settings.monitor.job, "/status")
        job = JobStatus.from_json(answer.body)
    except (NoAnswer, ValueError) as problem:
        log.debug("the job did not return its status: %s", problem)
        return None
    if job.application_id != settings.application_id or not job.checkpoint.startswith(f"{storage_path(settings)}/"):
        log.debug("another job answers at %s: %s, %s", settings.monitor.job, job.application_id, job.checkpoint)
        return None
    return status_from(job, settings)


def status_from(job: JobStatus, settings: Settings) -> Status:
    """Return the whole status: what `job` said, and what the broker says."""
    broker = ask_broker(settings, job.done.offsets if job.done else {}, job.done.batch_id if job.done else -1)
    ready = broker.ready or []
    due = [job.due[span] for span in (*SPANS_MS, LATER)]
    shards, of_ready = shard_statuses(job.shards, ready), histogram_of(ready, job.now_ms).counts
    return Status(
        read_from="job",
        checkpoint=job.checkpoint,
        now_ms=job.now_ms,
        committed=job.done,
        planned=job.running,
        shards=shards,
        merged=job.merged,
        mutable_bytes=job.mutable_bytes,
        sealed_bytes=job.sealed_bytes,
        next_due_ms=first_of(job.next_due_ms, *(shard.next_due_ms for shard in shards)),
        buckets=job.buckets,
        segments=job.segments,
        due=dict(zip([*SPANS_MS, LATER], map(add, due, of_ready), strict=True)),
        due_is_estimated=True,
        broker=broker,
        merges=job.merges,
    )
