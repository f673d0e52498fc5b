"""The training run of `conf.java.cds_archive`: a small stream that loads the classes of a start and its first batches.

`python -m streaming.spark.cds_training ARCHIVE`
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.state import GroupStateTimeout

from conf.java.cds_archive import training_options
from conf.settings import Settings
from sources.intake.clock import tick
from streaming.spark.session import open_session

_BATCHES = 3
_LIMIT_S = 120


def train(spark: SparkSession, folder: Path) -> None:
    """Run a few batches of a stateful stream into a Delta table, then read the table."""
    table = f"{folder}/table"

    def count(key: tuple[int], arrivals: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        total = sum(map(len, arrivals)) + (state.get[0] if state.exists else 0)
        state.update((total,))
        state.setTimeoutTimestamp(max(1, state.getCurrentWatermarkMs() + 1))
        yield pd.DataFrame({"key": [key[0]], "total": [total]})

    def write(rows: DataFrame, batch_id: int) -> None:
        writer = rows.coalesce(1).sortWithinPartitions("key").write.format("delta").mode("append")
        writer.option("txnAppId", "training").option("txnVersion", batch_id).save(table)

    stream = (
        tick(spark, lambda: time.time_ns() // 1_000_000).withWatermark("event_time", "0 seconds").groupBy("shard_key")
    )
    counted = stream.applyInPandasWithState(
        count, "key int, total long", "total long", "append", GroupStateTimeout.EventTimeTimeout
    )
    writer = counted.writeStream.option("checkpointLocation", f"{folder}/checkpoint").foreachBatch(write)
    query = writer.trigger(processingTime="100 milliseconds").start()
    try:
        while query.isActive and (query.lastProgress is None or query.lastProgress["batchId"] < _BATCHES):
            query.awaitTermination(1)
    finally:
        query.stop()
    spark.read.format("delta").load(table).where("total > 0").collect()


def main() -> None:
    """Run the training, and let Java write the archive when it exits."""
    (archive,) = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="delayline-training-") as folder:
        options = {"spark.driver.extraJavaOptions": training_options(Path(archive))}
        spark = open_session(Settings(), options)
        train(spark, Path(folder))
        gateway: Any = spark.sparkContext._gateway
        spark.stop()
        # Java exits with the gateway; wait until it has written the archive.
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(_LIMIT_S)


if __name__ == "__main__":
    main()
