"""The progress of the tasks of a real Spark while a batch runs, without the tasks of maintenance."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pyarrow as pa
from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

from streaming.job.watches.task_progress import TaskProgress
from tests.eventually import assert_eventually


def _slow_tasks(spark: SparkSession, pool: str) -> None:
    def pause(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for each in batches:
            time.sleep(0.1)
            yield each

    spark.sparkContext.setLocalProperty("spark.scheduler.pool", pool)
    spark.range(0, 12, 1, 12).mapInArrow(pause, "id long").collect()


def test_each_task_of_a_batch_that_ends_is_progress(spark: SparkSession) -> None:
    with closing(TaskProgress(spark)) as progress, ThreadPoolExecutor(1) as thread:
        running = thread.submit(inheritable_thread_target(spark)(_slow_tasks), spark, "default")
        assert_eventually(lambda: any(done for *_, done in progress.done_tasks()), 20, "a task that is done")
        before = progress.done_tasks()
        assert_eventually(lambda: progress.done_tasks() != before, 20, "another one")
        running.result()
        assert progress.done_tasks() == frozenset()
    # The monitor answers to the end.
    assert progress.done_tasks() == frozenset()


def test_what_maintenance_does_is_no_progress_of_a_batch(spark: SparkSession) -> None:
    with closing(TaskProgress(spark)) as progress, ThreadPoolExecutor(1) as thread:
        running = thread.submit(inheritable_thread_target(spark)(_slow_tasks), spark, "maintenance")
        while not running.done():
            assert progress.done_tasks() == frozenset()
        running.result()
