"""Notices that a batch waits for executors that do not come."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import SparkSession

from conf.errors import QueryFailed

_EVERY_S = 10.0


class ExecutorWatch:
    """Ends the job if the running batch has had no executor for `limit_s`.

    A standalone master that was restarted, and keeps no state, ends the executors of the jobs that it does not know.
    Spark's driver never registers again, and its tasks wait for ever.
    """

    def __init__(
        self,
        count: Callable[[], int],
        running: Callable[[], Mapping[str, float]],
        limit_s: float,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`count` counts the executors, and `running` has the running steps. `now_s` is a monotonic clock."""
        self._count, self._running, self._limit_s, self._now_s = count, running, limit_s, now_s
        self._looked_s = now_s()
        # Since when none was seen, or None.
        self._missing_s: float | None = None

    def check(self) -> None:
        """Look for executors every ten seconds. Raises QueryFailed."""
        at_s = self._now_s()
        if at_s < self._looked_s + _EVERY_S:
            return
        self._looked_s = at_s
        if not self._running() or self._count():
            self._missing_s = None
            return
        self._missing_s = at_s if self._missing_s is None else self._missing_s
        if at_s - self._missing_s >= self._limit_s:
            raise QueryFailed(
                f"the running batch has had no executor for {at_s - self._missing_s:.0f} s. Look at the master and the "
                "workers of Spark's cluster. A master that was restarted does not know this job: start the job "
                "again. Nothing is lost"
            )


def executors_of(spark: SparkSession) -> Callable[[], int]:
    """Return a function that counts the executors of `spark`. In local mode, the driver is one."""
    context: Any = spark.sparkContext
    is_local = str(context.master).startswith("local")
    # Spark counts the driver as well.
    return lambda: int(context._jsc.sc().getExecutorMemoryStatus().size()) - (not is_local)
