"""Files of the rest of a checkpoint are lost after it is sealed, and before the switch to the new checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from conf.errors import BucketUnreadable
from conf.settings import Settings
from sinks.buckets.bucket_table import BucketTable
from sinks.internal_topics.lease import HeldLease
from sinks.internal_topics.progress import announce_origin
from state.buckets.parts import chunks_of, sealed_part
from state.buckets.reseal import LEFT_SCHEMA, left_rows
from state.checkpoint.origin import CheckpointOrigin
from streaming.checkpoint.current import current_checkpoint
from streaming.checkpoint.switch_over import rest_bucket, seal_rest, writer_of_birth, writer_of_state
from streaming.operations import rebuild
from streaming.operations.repair import Repair, _repair
from streaming.operations.rescale import _bucket_of_state
from streaming.storage.failures import translate_storage_errors
from tests.conftest import MakeSettings
from tests.messages import messages, some_batch_settings
from tests.streaming.operations.unstaged_job import COUNT, SHARDS, CutOff, cut_off, read_without_staging, rebuilt
from tests.streaming.sealed import cut_short, repairing, waiting_offsets


@pytest.fixture
def settings(make_settings: MakeSettings, tmp_path: Path) -> Settings:
    """Settings of an application whose job has read messages that are due in an hour, and has staged none of them."""
    settings = make_settings(f"storage.path={tmp_path}", f"bucket.shards={SHARDS}")
    read_without_staging(settings)
    return settings


@pytest.fixture
def lease(settings: Settings) -> Iterator[HeldLease]:
    with closing(HeldLease(settings, "rebuild")) as lease:
        yield lease


def _repaired(spark: SparkSession, settings: Settings, lease: HeldLease, report: Path) -> Repair:
    with repairing(spark):
        return _repair(spark, settings, True, report, lease)


def _files_of(store: BucketTable, bucket: int) -> list[Path]:
    return sorted(Path(store.path, f"part={chunks_of(sealed_part(bucket))}").glob("*.parquet"))


@pytest.mark.parametrize("are_expired", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_a_rebuild_accepts_again_what_the_rest_has_lost_unless_it_would_lose_what_is_left(
    spark: SparkSession,
    settings: Settings,
    store: BucketTable,
    lease: HeldLease,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    are_expired: bool,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(rebuild, "switch_over", cut_off)
        with pytest.raises(CutOff):
            rebuilt(spark, settings, store, lease)
    sealed_in = rest_bucket(store, "one")
    assert sealed_in is not None
    assert waiting_offsets(store) == list(range(COUNT))
    damaged, *others = _files_of(store, sealed_in)
    assert others
    cut_short(damaged)
    with pytest.raises(BucketUnreadable, match=damaged.name):
        rebuilt(spark, settings, store, lease)
    assert not current_checkpoint(spark, settings).exists()

    repair = _repaired(spark, settings, lease, tmp_path / "report.json")
    assert repair.interrupted == "rebuild --discard-checkpoint"
    left = waiting_offsets(store)
    (lost,) = repair.lost
    assert sorted([*left, *lost.offsets]) == list(range(COUNT))
    assert left
    assert lost.offsets == lost.accepted_again
    if are_expired:
        partition = TopicPartition(settings.topics.input[0], 0, left[0] + 1)
        admin = AdminClient({"bootstrap.servers": settings.kafka.bootstrap_servers})
        admin.delete_records([partition])[partition].result()
    with monkeypatch.context() as patch:
        patch.setattr(rebuild, "switch_over" if are_expired else "seal_rest", cut_off)
        with pytest.raises(CutOff):
            rebuilt(spark, settings, store, lease)
    assert waiting_offsets(store) == left
    rebuilt(spark, settings, store, lease)
    assert waiting_offsets(store) == (left if are_expired else list(range(COUNT)))
    warning = "others with them, and 1 of these are no longer in the input topics"
    assert (warning in caplog.text) == are_expired
    origin = current_checkpoint(spark, settings).origin
    assert origin.overdue_bucket == (sealed_in if are_expired else sealed_in + 1)


@pytest.mark.parametrize("is_announced", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_a_rescale_seals_the_state_again_after_a_repair_of_it(
    spark: SparkSession, settings: Settings, store: BucketTable, lease: HeldLease, tmp_path: Path, is_announced: bool
) -> None:
    rows = ({"deliver_at_ms": 99, "offset": at, "output_partition": at % SHARDS} for at in range(COUNT))
    rest = spark.createDataFrame(pa.Table.from_batches(left_rows(messages(rows), SHARDS), LEFT_SCHEMA))

    def seal(bucket: int) -> None:
        origin, replaced = CheckpointOrigin("two", 2, SHARDS, first_bucket=bucket + 1), rest_bucket(store, "one")
        seal_rest(store, rest, origin, writer_of_state("one"), some_batch_settings(), replaced=replaced)

    assert _bucket_of_state(store, "one", 7) == 7
    seal(7)
    assert _bucket_of_state(store, "one", 7) == 7
    file, *_ = _files_of(store, 7)
    cut_short(file)
    with pytest.raises(BucketUnreadable, match=file.name), translate_storage_errors(settings):
        _bucket_of_state(store, "one", 7)

    if is_announced:
        current_checkpoint(spark, settings).retire()
        store.fence(writer_of_birth("two"))
        announce_origin(settings, CheckpointOrigin("two", 2, SHARDS, first_bucket=8))
    assert _repaired(spark, settings, lease, tmp_path / "report.json").interrupted == "rescale"
    left = waiting_offsets(store)
    assert 0 < len(left) < COUNT
    assert _bucket_of_state(store, "one", 7) == 8
    assert waiting_offsets(store) == left
    seal(8)
    assert _bucket_of_state(store, "one", 7) == 8
    assert waiting_offsets(store) == list(range(COUNT))
    assert {row["bucket"] for row in store.metadata()} == {8}
