"""Reads once after a start the contents of the mutable buckets that no batch has changed since.

Without it, `delayline status`, the page and the metrics would know the waiting messages only after each bucket has
changed. If little is published, that takes hours after a restart.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

from state.checkpoint.batch_settings import SettingsHistory
from streaming.checkpoint.checkpoint import Checkpoint
from streaming.checkpoint.mutable_buckets import dues_by_shard, mutable_buckets
from streaming.monitor.estimate import MutableDues
from streaming.monitor.job_metrics import JobCounts
from streaming.spark.pools import MAINTENANCE, use_pool

log = logging.getLogger(__name__)

# The first batches after a start have the records of the downtime, and need the cores. Also, most buckets soon change.
_AFTER_S = 10.0
_AGAIN_S = 60.0

# Takes the id of a committed batch, and returns the contents of the mutable buckets after it, by shard.
ReadState = Callable[[int], Mapping[int, MutableDues]]


class UnchangedBuckets:
    """Reads the state in the background, if batches have not reported the contents of all mutable buckets."""

    def __init__(self, read: ReadState, counts: JobCounts, now_s: Callable[[], float] = time.monotonic) -> None:
        """`now_s` is a clock in seconds."""
        self._read = read
        self._counts = counts
        self._now_s = now_s
        self._next_s = now_s() + _AFTER_S
        self._reading: Future[Mapping[int, MutableDues]] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="state")

    def check(self) -> None:
        """Begin to read if it is time, or take over the result of a reading. Returns at once."""
        if self._reading is not None and self._reading.done():
            reading, self._reading = self._reading, None
            problem = reading.exception()
            if problem is None:
                self._counts.state_read(reading.result())
            else:
                # Spark may have removed the state of a batch meanwhile.
                log.warning("could not read the contents of mutable buckets; will try again: %s", problem)
                self._next_s = self._now_s() + _AGAIN_S
        batch_id = self._counts.batch_of_unknown_state
        if self._reading is None and batch_id is not None and self._now_s() >= self._next_s:
            self._reading = self._thread.submit(self._read, batch_id)

    def close(self) -> None:
        """Let a running reading end, and begin no other."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def state_of(spark: SparkSession, checkpoint: Checkpoint, settings_history: SettingsHistory) -> ReadState:
    """Return a function that reads the state after a batch from Spark's state in `checkpoint`."""

    def read(batch_id: int) -> Mapping[int, MutableDues]:
        use_pool(spark, MAINTENANCE)
        buckets = mutable_buckets(spark, checkpoint.path, batch_id, settings_history.at(batch_id))
        return dues_by_shard(buckets, time.time_ns() // 1_000_000)

    run: ReadState = inheritable_thread_target(spark)(read)
    return run
