"""What Spark itself says when a checkpoint's disk is full or its state damaged, and what is made of it.

A small query stands for the job: what fails is below both.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from conf.errors import CheckpointUnreadable, DelaylineError, StorageFailed
from streaming.storage.failures import storage_failure, text_of_query
from tests.conftest import MakeDisk
from tests.eventually import assert_eventually


def start(spark: SparkSession, storage: Path) -> StreamingQuery:
    ticks = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    counts = ticks.groupBy("value").count().writeStream.outputMode("update").format("noop")
    return (
        counts.option("checkpointLocation", str(storage / "checkpoint"))
        .trigger(processingTime="200 milliseconds")
        .start()
    )


def told(query: StreamingQuery, storage: Path) -> DelaylineError | None:
    assert_eventually(lambda: not query.isActive, 60, "the end of the query")
    return storage_failure(text_of_query(query), str(storage))


def newest(log: Path) -> int:
    return max((int(entry.name) for entry in log.iterdir() if entry.name.isdigit()), default=-1)


def run_a_batch(query: StreamingQuery, storage: Path) -> None:
    commits = storage / "checkpoint" / "commits"
    before = newest(commits) if commits.exists() else -1
    assert_eventually(lambda: commits.exists() and newest(commits) > before, 60, "a batch")
    assert query.isActive


def test_a_full_disk_is_told_by_what_was_written_and_a_start_after_it_goes_on(
    spark: SparkSession, tmp_path: Path, make_disk: MakeDisk
) -> None:
    places = {
        "offsets": "the offset log",
        "commits": "the commit log",
        "state": "the state of the mutable buckets",
    }
    disks = {place: make_disk(tmp_path / "checkpoint" / place) for place in places}
    for place, what in places.items():
        query = start(spark, tmp_path)
        run_a_batch(query, tmp_path)
        disks[place].fill()
        failure = told(query, tmp_path)
        assert isinstance(failure, StorageFailed)
        assert f"no space left: {what} could not be written in {disks[place].path}, of whose" in str(failure)
        disks[place].free()
    query = start(spark, tmp_path)
    run_a_batch(query, tmp_path)
    query.stop()


@pytest.mark.parametrize("how", ["missing", "cut short"])
def test_a_damaged_state_is_told_with_its_place(spark: SparkSession, tmp_path: Path, how: str) -> None:
    query = start(spark, tmp_path)
    run_a_batch(query, tmp_path)
    query.stop()
    committed = newest(tmp_path / "checkpoint" / "commits")
    for file in (tmp_path / "checkpoint" / "state").rglob(f"{committed + 1}.changelog"):
        whole = file.read_bytes()
        file.unlink()
        if how == "cut short":
            file.write_bytes(whole[: len(whole) // 2])
        # Hadoop's checksum: a file system in the cloud has none.
        file.with_name(f".{file.name}.crc").unlink()
    # Else the state would be taken from memory.
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()
    failure = told(start(spark, tmp_path), tmp_path)
    assert isinstance(failure, CheckpointUnreadable)
    assert f"{tmp_path}/checkpoint/state" in str(failure)
    assert "delayline rebuild --discard-checkpoint" in str(failure)
