"""The number of records that Spark lets a batch read, which changes while the query runs."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from conf.kafka.options import java_options
from sources.intake.kafka_reader import read_records
from streaming.job.query import limit_next_batch
from tests.conftest import MakeSettings, MakeTopic
from tests.eventually import assert_eventually


def test_the_limit_of_the_next_batch_changes_in_a_running_query(
    spark: SparkSession, make_topic: MakeTopic, make_settings: MakeSettings, tmp_path: Path
) -> None:
    topic, settings = make_topic(), make_settings()
    producer = Producer({"bootstrap.servers": settings.kafka.bootstrap_servers})
    for _ in range(100):
        producer.produce(topic, b"v")
    assert producer.flush(30) == 0
    counts: list[int] = []

    def run_batch(records: DataFrame, batch_id: int) -> None:
        counts.append(records.count())
        limit_next_batch(spark, "another query", 1)
        limit_next_batch(spark, topic, (30, 7, 1_000)[batch_id % 3])

    records = read_records(spark, java_options(settings.kafka), [topic], 20, {}, 1_000, False)
    writer = records.writeStream.queryName(topic).option("checkpointLocation", str(tmp_path))
    query = writer.foreachBatch(run_batch).start()
    try:
        assert_eventually(lambda: query.exception() or sum(counts) == 100, 30)
        assert query.exception() is None
    finally:
        query.stop()
    assert counts == [20, 30, 7, 43]
