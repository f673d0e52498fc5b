"""Spark's errors if a checkpoint's disk is full or its state is damaged, and the errors that Delayline makes of them.

A small query stands in for the job: the failing code is below both.
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


def failure_of(query: StreamingQuery, storage: Path) -> DelaylineError | None:
    assert_eventually(lambda: not query.isActive, 60, "the end of the query")
    return storage_failure(text_of_query(query), str(storage))


def newest(log: Path) -> int:
    return max((int(entry.name) for entry in log.iterdir() if entry.name.isdigit()), default=-1)


def run_a_batch(query: StreamingQuery, storage: Path) -> None:
    commits = storage / "checkpoint" / "commits"
    before = newest(commits) if commits.exists() else -1
    assert_eventually(lambda: commits.exists() and newest(commits) > before, 60, "a batch")
    assert query.isActive


def test_a_full_disk_is_reported_with_the_data_being_written_and_a_later_start_continues(
    spark: SparkSession, tmp_path: Path, make_disk: MakeDisk
) -> None:
    data_by_folder = {
        "offsets": "the offset log",
        "commits": "the commit log",
        "state": "the state of the mutable buckets",
    }
    disks = {folder: make_disk(tmp_path / "checkpoint" / folder) for folder in data_by_folder}
    for folder, data in data_by_folder.items():
        query = start(spark, tmp_path)
        run_a_batch(query, tmp_path)
        disks[folder].fill()
        failure = failure_of(query, tmp_path)
        assert isinstance(failure, StorageFailed)
        assert f"no space left: {data} could not be written in {disks[folder].path}, where" in str(failure)
        disks[folder].free()
    query = start(spark, tmp_path)
    run_a_batch(query, tmp_path)
    query.stop()


@pytest.mark.parametrize("damage", ["missing", "cut short"])
def test_a_damaged_state_is_reported_with_its_path(spark: SparkSession, tmp_path: Path, damage: str) -> None:
    query = start(spark, tmp_path)
    run_a_batch(query, tmp_path)
    query.stop()
    committed = newest(tmp_path / "checkpoint" / "commits")
    for file in (tmp_path / "checkpoint" / "state").rglob(f"{committed + 1}.changelog"):
        whole = file.read_bytes()
        file.unlink()
        if damage == "cut short":
            file.write_bytes(whole[: len(whole) // 2])
        # Delete Hadoop's checksum file. An object store has no such file.
        file.with_name(f".{file.name}.crc").unlink()
    # Otherwise Spark would use the state in memory.
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()
    failure = failure_of(start(spark, tmp_path), tmp_path)
    assert isinstance(failure, CheckpointUnreadable)
    assert f"{tmp_path}/checkpoint/state" in str(failure)
    assert "delayline rebuild --discard-checkpoint" in str(failure)
