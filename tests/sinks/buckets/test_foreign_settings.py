"""The table of sealed buckets among others: a cluster's settings for all Delta tables, and tools on this table."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from conf.errors import BucketUnreadable
from conf.spark_options import TABLE_DEFAULTS
from sinks.buckets.bucket_table import BucketTable
from state.buckets.catalog import SegmentCatalog
from state.buckets.parts import IdRows, chunks_of, sealed_part
from state.buckets.segments import Segment
from state.buckets.table_rows import STORED_SCHEMA, described_segment
from state.message import decode_chunk
from state.names import NAMED_SCHEMA, name_rows
from streaming.maintenance.maintenance import Maintenance, TableContents
from streaming.maintenance.merge_plan import MergeRules
from streaming.storage.failures import storage_failure, text_of
from tests.eventually import assert_eventually
from tests.messages import some_batch_settings
from tests.streaming.sealed import sealed_rows, written_late

BATCH_SETTINGS = some_batch_settings(segment_max_messages=1)
FAN_IN = 2
FAR_MS = 1 << 50


def _append(store: BucketTable, number: int, files: int = 1) -> None:
    """Store a bucket with twice as many messages and segments as `files`. Offsets begin at ten times the number."""
    rows = [{"deliver_at_ms": FAR_MS + at, "offset": 10 * number + at} for at in range(2 * files)]
    store.append(sealed_rows(store.spark, number, rows, BATCH_SETTINGS).repartition(files), "checkpoint", number)


def _segments(store: BucketTable) -> list[Segment]:
    return [described_segment(row.asDict()) for row in store.metadata()]


def _chunks(store: BucketTable, version: int | None = None) -> DataFrame:
    return store.chunks(0, 1 << 51, {segment.part for segment in _segments(store)}, version=version)


def _offsets(store: BucketTable, version: int | None = None) -> list[int]:
    chunks = [decode_chunk(bytes(row["chunk"])) for row in _chunks(store, version).collect()]
    return sorted(offset for chunk in chunks for offset in chunk.column("offset").to_pylist())


def _maintained(store: BucketTable, cutoff_ms: int = 0) -> Maintenance:
    """Run all steps that are due, and return the maintenance that ran them."""
    segments = _segments(store)
    maintenance = Maintenance(
        store,
        SegmentCatalog(each for each in segments if each.max_deliver_at_ms >= cutoff_ms),
        TableContents(
            {segment.part: segment.max_deliver_at_ms for segment in segments},
            id_rows={IdRows.NAMED: store.id_partitions(IdRows.NAMED)},
        ),
        MergeRules(BATCH_SETTINGS, 1, FAN_IN),
    )
    for _ in range(30):
        maintenance.before_batch(100, cutoff_ms)
        if not maintenance.busy:
            break
        maintenance.wait(60)
    maintenance.close()
    return maintenance


@pytest.fixture
def cluster(spark: SparkSession) -> Iterator[SparkSession]:
    """A session with defaults for new tables that change how a table is written."""
    defaults = {
        "appendOnly": "true",
        "autoOptimize.autoCompact": "true",
        "autoOptimize.optimizeWrite": "true",
        "checkpointPolicy": "v2",
        "columnMapping.mode": "name",
        "enableDeletionVectors": "true",
        "enableRowTracking": "true",
        "enableChangeDataFeed": "true",
        "randomizeFilePrefixes": "true",
        "setTransactionRetentionDuration": "interval 1 second",
    }
    for name, value in defaults.items():
        spark.conf.set(TABLE_DEFAULTS + name, value)
    yield spark
    for name in defaults:
        spark.conf.unset(TABLE_DEFAULTS + name)


@pytest.mark.thorough
def test_the_table_is_written_and_read_alike_whatever_a_cluster_sets_for_all_tables(
    cluster: SparkSession, tmp_path: Path
) -> None:
    store = BucketTable(cluster, str(tmp_path / "buckets"))
    store.create(from_arrow_schema(STORED_SCHEMA))
    for number in range(FAN_IN):
        _append(store, number)
        row = {"name": b"name", "topic": "in", "partition": 0, "offset": number, "from_ms": FAR_MS, "until_ms": FAR_MS}
        terms = (*row.values(), False)
        names = pa.Table.from_pylist([dict(zip(NAMED_SCHEMA.names, terms, strict=True))], schema=NAMED_SCHEMA)
        store.append(cluster.createDataFrame(name_rows(names, number)), "names", number)
    assert chunks_of(sealed_part(0)) in store.delta_partitions()
    assert store.id_partitions(IdRows.NAMED).keys() == set(range(FAN_IN))
    assert not any(each.failed for each in _maintained(store).failures.values())
    assert (len({each.bucket for each in _segments(store)}), _offsets(store)) == (1, [0, 1, 10, 11])
    assert store.id_partitions(IdRows.NAMED).keys() == {FAN_IN - 1}
    assert not any(each.failed for each in _maintained(store, 1 << 51).failures.values())
    assert _segments(store) == []
    assert store.newest_of("checkpoint") == FAN_IN - 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    "folder",
    ["part=7/buckets", "part=chunks-1/x/buckets", "buckets"],
)
def test_delta_partitions_are_read_from_the_log_whatever_the_paths_of_files_are(
    spark: SparkSession, tmp_path: Path, folder: str
) -> None:
    store = BucketTable(spark, str(tmp_path / folder))
    store.create(from_arrow_schema(STORED_SCHEMA))
    for number in range(FAN_IN):
        _append(store, number)
        if number == 0:
            # By another tool, after the start of the job.
            spark.sql(f"ALTER TABLE delta.`{store.path}` SET TBLPROPERTIES ('delta.randomizeFilePrefixes' = 'true')")
    version = store.newest_version()
    assert store.metadata_partitions(version) == {f"metadata-{sealed_part(number)}" for number in range(FAN_IN)}
    assert not any(each.failed for each in _maintained(store).failures.values())
    assert _offsets(store) == [0, 1, 10, 11]
    assert len({each.bucket for each in _segments(store)}) == 1


@pytest.mark.thorough
def test_a_foreign_optimize_changes_no_message(spark: SparkSession, tmp_path: Path) -> None:
    store = BucketTable(spark, str(tmp_path / "buckets"))
    store.create(from_arrow_schema(STORED_SCHEMA))
    for number in range(FAN_IN):
        _append(store, number, files=3)
    before, every = store.version(), _offsets(store)
    (done,) = spark.sql(f"OPTIMIZE delta.`{store.path}`").select("metrics.numFilesRemoved").collect()
    assert done["numFilesRemoved"] > 0
    assert _offsets(store) == _offsets(store, before) == every
    # A batch that seals goes on, and a replay is recognised.
    _append(store, FAN_IN, files=2)
    _append(store, FAN_IN, files=2)
    every += [10 * FAN_IN + at for at in range(4)]
    assert _offsets(store) == every
    assert not any(each.failed for each in _maintained(store).failures.values())
    assert _offsets(store) == every
    _maintained(store, 1 << 51)
    assert _segments(store) == []


def test_a_foreign_vacuum_that_keeps_nothing_is_an_error_that_names_the_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = BucketTable(spark, str(tmp_path / "buckets"))
    store.create(from_arrow_schema(STORED_SCHEMA))
    _append(store, 0)
    begun, released = tmp_path / "begun", tmp_path / "released"
    rows = sealed_rows(spark, 1, [{"deliver_at_ms": FAR_MS, "offset": 10}], BATCH_SETTINGS)
    other = sealed_rows(spark, 1, [{"deliver_at_ms": FAR_MS + 1, "offset": 11}], BATCH_SETTINGS)
    with ThreadPoolExecutor() as executor:
        # One task of the seal has written its files, and the other one has not.
        sealing = executor.submit(store.append, rows.union(written_late(other, begun, released)), "checkpoint", 1)
        assert_eventually(begun.exists, 60, "the seal")
        written = tmp_path / "buckets" / f"part={chunks_of(sealed_part(1))}"
        assert_eventually(lambda: any(written.glob("*.parquet")), 60, "a file of the seal")
        spark.sql(f"VACUUM delta.`{store.path}` RETAIN 0 HOURS")
        released.touch()
        sealing.result()
    with pytest.raises((Py4JJavaError, PySparkException)) as raised:
        _offsets(store)
    error = storage_failure(text_of(raised.value), str(tmp_path))
    assert isinstance(error, BucketUnreadable)
    assert "is missing or damaged" in str(error)
