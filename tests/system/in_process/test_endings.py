"""The errors that end the job, as its command prints them: the tests cause each one, and no message is lost."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.state import GroupStateTimeout

from conf.settings import Settings
from sources.intake.clock import tick
from state.buckets.operator import SHARD_OUTPUT_SCHEMA
from streaming.job.query import shard_outputs
from tests.conftest import Configure
from tests.system.checkpoint_files import newest, replaced
from tests.system.conftest import Application
from tests.system.in_process.conftest import MakeJob
from tests.system.load import publish_mixed

pytestmark = pytest.mark.system

_HOUR_MS = 3_600_000


@pytest.mark.thorough
def test_a_job_that_cannot_continue_ends_with_an_error_code_and_continues_once_the_cause_is_fixed(
    application: Application, make_job: MakeJob, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, ledger = make_job()
    checkpoint = application.checkpoint
    publish_mixed(ledger, application, 300, seed=1, longest_ms=30_000)
    with monkeypatch.context() as defect:
        defect.setattr("streaming.job.service.shard_outputs", _failing_in_batch_2)
        assert job.failure() == "error: query-failed: ZeroDivisionError: a defect of a task"

    assert (newest(checkpoint / "offsets"), newest(checkpoint / "commits")) == (2, 1)
    with replaced(checkpoint / "offsets" / "2", "v1\n", "v9\n"):
        error_line = job.failure()
    assert error_line.startswith(f"error: checkpoint-version: {checkpoint}/offsets/2 has version v9, "), error_line
    assert "Run the version that wrote it" in error_line
    with replaced(checkpoint / "delayline-origin.json", '"format": 2', '"format": 9'):
        error_line = job.failure()
    assert error_line.startswith(f"error: checkpoint-version: {checkpoint}/delayline-origin.json has format 9, "), (
        error_line
    )

    # To the replayed batch, the previous batch seems to have had a higher cutoff.
    with _watermark_raised(checkpoint / "offsets"):
        error_line = job.failure()
    assert re.match(r"error: cutoff-mismatch: batch 2 has cutoff \d+, but the batch before it has ", error_line), (
        error_line
    )

    # Enough for the markers of transactions, but not for a progress record.
    configure(f"{application.id}-progress", **{"max.message.bytes": "150"})
    # The first run may have staged all messages of batch 2 before its defect. These are for a batch after it.
    publish_mixed(ledger, application, 50, seed=2, longest_ms=5_000)
    error_line = job.failure()
    refused = r"error: delivery-failed: shard \d, batch \d: .*-progress/\d: .*Message size too large"
    assert re.match(refused, error_line), error_line
    configure(f"{application.id}-progress", **{"max.message.bytes": "1048588"})

    assert len(ledger.got) < len(ledger.sent)
    job.run_until(lambda: ledger.wait_for_all(60))
    ledger.verify()


def _failing_in_batch_2(*arguments: Any) -> DataFrame:
    """Return the job's stream with a defect after its state stage."""

    def failing(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        if context.getLocalProperty("streaming.sql.batchId") == "2":
            raise ZeroDivisionError("a defect of a task")
        yield from batches

    outputs = shard_outputs(*arguments)
    return outputs.mapInArrow(failing, outputs.schema)


def _watermark_raised(offset_log: Path) -> AbstractContextManager[None]:
    """Raise the watermark of batch 1 to an hour above the watermark of batch 2, inside the context."""
    # The watermark of batch 1 is 0 if batch 0 found no messages.
    before, after = (json.loads((offset_log / name).read_text().splitlines()[1])["batchWatermarkMs"] for name in "12")
    return replaced(offset_log / "1", f'"batchWatermarkMs":{before}', f'"batchWatermarkMs":{after + _HOUR_MS}')


def test_rows_that_spark_drops_below_the_watermark_end_the_job(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, _ = make_job()
    monkeypatch.setattr("streaming.job.service.shard_outputs", _with_late_rows)
    error_line = job.failure()
    assert re.match(r"error: late-rows-dropped: batch \d: Spark dropped 1 chunks of messages", error_line), error_line
    assert "delayline rebuild --discard-checkpoint" in error_line


def _with_late_rows(spark: SparkSession, settings: Settings, *_: Any) -> DataFrame:
    """Return a stream with the job's tick and, in each batch, a row with an event time. A message's is null."""

    def silent(key: Any, rows: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        return iter(())

    late = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    late = late.selectExpr("0 AS shard_key", "timestamp_millis(0) AS event_time", "CAST(NULL AS binary) AS chunk")
    return (
        tick(spark, lambda: time.time_ns() // 1_000_000 + settings.clock.horizon)
        .unionByName(late)
        .withWatermark("event_time", "0 seconds")
        .where("event_time = timestamp_millis(0)")
        .groupBy("shard_key")
        .applyInPandasWithState(
            silent,
            from_arrow_schema(SHARD_OUTPUT_SCHEMA),
            "seen int",
            "append",
            GroupStateTimeout.EventTimeTimeout,
        )
    )


@pytest.mark.thorough
def test_a_record_that_spark_cannot_read_ends_the_job_until_it_is_deleted(
    application: Application, make_job: MakeJob, configure: Configure
) -> None:
    job, ledger = make_job()
    configure(application.input, **{"message.timestamp.after.max.ms": str((1 << 63) - 1)})
    producer = Producer({"bootstrap.servers": application.bootstrap})
    nanoseconds = 1_700_000_000_000_000_000
    producer.produce(application.input, b"v", partition=1, timestamp=nanoseconds)
    assert producer.flush(30) == 0
    for number in range(40):
        ledger.publish(application.input, b"%d" % number, partition=number % 2, output=application.output)
    ledger.flush()
    error_line = job.failure()
    bad = f"{application.input}/1: offset 0 has timestamp {nanoseconds} ms"
    assert error_line.startswith(f"error: record-unreadable: {bad}: Spark cannot read timestamps after "), error_line

    # As the error advises.
    partition = TopicPartition(application.input, 1, 1)
    # In a variable: a client that is collected leaves its futures undone for ever.
    admin = AdminClient({"bootstrap.servers": application.bootstrap})
    admin.delete_records([partition])[partition].result()
    job.overrides.append("topics.skip_expired=true")
    job.run_until(lambda: ledger.wait_for_all(60))
    assert Counter(record.id for record in ledger.got) == Counter(ledger.sent.keys())
