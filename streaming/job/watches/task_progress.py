"""The progress of Spark's tasks, to tell a long batch from a stuck one."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from streaming.spark.pools import MAINTENANCE

log = logging.getLogger(__name__)

# A probe waits for the answer, and Java may be busy with its memory.
_PATIENCE_S = 1.0

# For each running stage: its number, the number of its attempt, and the count of finished tasks.
DoneTasks = frozenset[tuple[int, int, int]]


class TaskProgress:
    """Counts the finished tasks. Spark does not report how much a running task has read so far."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._last: DoneTasks = frozenset()
        self._closed = False
        self._asking: Future[DoneTasks] | None = None
        # One thread for all probes: each thread that asks Java has a thread and a connection of its own there.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="task-progress")

    def done_tasks(self) -> DoneTasks:
        """Return the progress of the stages of batches, or the last one if Java does not answer within a second."""
        if self._closed:
            return self._last
        asking = self._asking or self._thread.submit(self._ask)
        try:
            self._last = asking.result(_PATIENCE_S)
        except TimeoutError:
            self._asking = asking
            return self._last
        except Py4JError as problem:
            log.debug("Spark does not report the progress of its tasks: %s", problem)
        self._asking = None
        return self._last

    def close(self) -> None:
        """Stop asking Java."""
        self._closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _ask(self) -> DoneTasks:
        context: Any = self._spark.sparkContext._jsc.sc()
        stages = context.statusStore().activeStages()
        running = [stages.apply(number) for number in range(stages.size())]
        return frozenset(
            (stage.stageId(), stage.attemptId(), stage.numCompleteTasks())
            for stage in running
            if stage.schedulingPool() != MAINTENANCE
        )
