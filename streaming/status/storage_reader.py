"""Reading what a job has stored, whether it runs or not: a small Spark, and values of one committed batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from conf.errors import CheckpointMismatch, CheckpointUnreadable, StorageFailed
from conf.kafka.clients import check_clients
from conf.settings import Settings
from sinks.buckets.bucket_table import BucketTable
from streaming.checkpoint.checkpoint import Checkpoint
from streaming.spark.session import open_session

# A small local Spark, independent of the job's settings for master, ports, addresses and memory.
_SPARK = {
    "spark.master": "local[1]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.port": "0",
    "spark.blockManager.port": "0",
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.eventLog.enabled": "false",
}
_TRIES = 4
T = TypeVar("T")


@contextmanager
def reader_session(settings: Settings) -> Iterator[SparkSession]:
    """Open a separate Spark session that reads. Raises the errors of `check_clients` and `open_session`."""
    check_clients(settings)
    spark = open_session(settings, _SPARK)
    # The command prints an error once, as a sentence; Spark must not log the failed tries.
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()


def retry_while_files_vanish(read: Callable[[], T], path: str) -> T:
    """Call `read`, and repeat it if files have vanished: the job keeps only the files of its last few batches.

    Raises StorageFailed after a few tries.
    """
    for attempt in range(1, _TRIES + 1):
        try:
            return read()
        except (Py4JJavaError, PySparkException, CheckpointMismatch, CheckpointUnreadable) as problem:
            if attempt == _TRIES:
                why = problem.java_exception if isinstance(problem, Py4JJavaError) else problem
                first_line = str(why).partition("\n")[0]
                raise StorageFailed(f"could not read {path} in {_TRIES} tries: {first_line}") from problem
    raise AssertionError("the last try returns or raises")


def consistent_versions(checkpoint: Checkpoint, store: BucketTable) -> tuple[int | None, int | None]:
    """Return the last committed batch, and a version that the table had while that batch was the last.

    An earlier version may lack a bucket of that batch. In a later version, its bucket may be merged with buckets of
    later batches. Either value is None if the batch or the table does not exist yet.
    """
    if not store.exists():
        return checkpoint.last_committed(), None
    # Opening the table takes seconds; reading its version again takes no time.
    store.newest_version()
    while True:
        before = checkpoint.last_committed()
        version = store.newest_version()
        if checkpoint.last_committed() == before:
            return before, version
