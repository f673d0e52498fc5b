"""A table of sealed buckets with a clock that a test sets, and the steps of a job's maintenance."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from sinks.buckets.bucket_table import BucketTable
from state.buckets.catalog import SegmentCatalog
from state.buckets.segments import Segment, cut
from state.buckets.table_rows import STORED_SCHEMA, segment_rows
from streaming.maintenance.maintenance import Maintenance, TableContents
from streaming.maintenance.merge_plan import MergeRules
from tests.messages import messages, some_batch_settings

HOUR_MS = 3_600_000
BATCH_SETTINGS = some_batch_settings()
FAN_IN = 3


class Table:
    """An empty table at `path`. Its Delta log reads a clock that the test sets.

    `refusals` has the errors of the next changes. None lets a change succeed.
    """

    def __init__(self, spark: SparkSession, path: Path) -> None:
        jvm: Any = spark.sparkContext._jvm
        # The next full hour, so that no file written meanwhile is newer than the clock.
        self.now_ms = (time.time_ns() // 1_000_000 // HOUR_MS + 1) * HOUR_MS
        self.clock = jvm.org.apache.spark.util.ManualClock(self.now_ms)
        self.path = path
        folder = jvm.org.apache.hadoop.fs.Path(str(path))
        # Everything that later opens this path in this session gets this log, with its clock.
        jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, folder, self.clock)
        self.refusals: list[Exception | None] = []
        self.store = BucketTable(spark, str(path), before_change=self._before_change)

    def _before_change(self) -> None:
        if self.refusals and (refusal := self.refusals.pop(0)):
            raise refusal

    def advance(self, by_ms: int) -> None:
        self.now_ms += by_ms
        self.clock.setTime(self.now_ms)

    def files(self) -> int:
        """Return the number of data files in the folder."""
        return len(list(self.path.glob("part=*/*.parquet")))

    def log_versions(self) -> list[int]:
        """Return the versions with entries in the table's log."""
        return sorted(int(entry.stem) for entry in (self.path / "_delta_log").glob("*.json") if entry.stem.isdigit())

    def unreferenced(self) -> set[str]:
        """Return the data files in the folder that the table no longer references."""
        return {file.name for file in self.path.glob("part=*/*.parquet")} - {
            Path(file["path"]).name for file in self.store.files()
        }

    def size(self) -> int:
        return sum(each.stat().st_size for each in self.path.glob("part=*/*.parquet"))


def seal(table: Table, number: int, dues: list[int]) -> list[Segment]:
    sealed = messages(
        [{"deliver_at_ms": due, "offset": at, "value": bytes(1000)} for at, due in enumerate(sorted(dues))]
    )
    segments = list(cut(sealed, number, 0, BATCH_SETTINGS))
    rows = [
        batch
        for segment, part in segments
        for batch in segment_rows(segment, part, BATCH_SETTINGS.index_precision_bits)
    ]
    frame = table.store.spark.createDataFrame(pa.Table.from_batches(rows), from_arrow_schema(STORED_SCHEMA))
    table.store.append(frame.coalesce(1), "checkpoint", number)
    return [segment for segment, _ in segments]


def maintenance_of(table: Table, catalog: SegmentCatalog, **options: Any) -> Maintenance:
    return Maintenance(
        table.store,
        catalog,
        TableContents(),
        MergeRules(BATCH_SETTINGS, 1, FAN_IN),
        now=lambda: table.now_ms / 1000,
        **options,
    )


def add_bucket(table: Table, catalog: SegmentCatalog, maintenance: Maintenance, number: int, dues: list[int]) -> None:
    """Seal a bucket, and pass it on as a batch does."""
    segments = seal(table, number, dues)
    catalog.add(segments)
    maintenance.sealed(segments)


def run_until_idle(maintenance: Maintenance, last_bucket: int, cutoff_ms: int) -> None:
    """Call maintenance before the batches in which steps start, work, and are found done."""
    for _ in range(50):
        maintenance.before_batch(last_bucket, cutoff_ms)
        if not maintenance.busy:
            return
        maintenance.wait(60)
    raise AssertionError("maintenance never ends")
