"""Reads the status of an application, whether the job runs or not. Writes nothing and locks nothing.

All values describe one committed batch. If the running job removes that batch's files meanwhile, the reader starts
again with a newer batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from conf.errors import (
    BrokerUnreachable,
    CheckpointMismatch,
    CheckpointUnreadable,
    ReadyLogLost,
    RightMissing,
    StorageFailed,
    TopicMissing,
)
from conf.kafka.clients import check_clients
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.bucket_table import BucketTable
from sinks.internal_topics.lease import read_lease
from sinks.internal_topics.lease_record import Lease
from state.buckets.segments import Segment
from streaming.checkpoint.checkpoint import Checkpoint, PlannedBatch
from streaming.spark.session import open_session
from streaming.status.due_histogram import DueHistogram
from streaming.status.input_lag import PartitionLag, input_lag
from streaming.status.ready import ReadyShard, ReleaseMember, ready_shards, release_members
from streaming.status.waiting import MutableBucket, SealedBuckets, mutable_buckets, sealed_buckets
from streaming.storage.paths import buckets_path, checkpoint_path

# The spans of the histogram, by their ends in ms from now. The first, `overdue`, ends now.
SPANS_MS = {
    "overdue": 0,
    "10s": 10_000,
    "1m": 60_000,
    "10m": 600_000,
    "1h": 3_600_000,
    "6h": 21_600_000,
    "1d": 86_400_000,
    "7d": 7 * 86_400_000,
    "30d": 30 * 86_400_000,
}
LATER = "later"
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


@dataclass(frozen=True)
class ShardStatus:
    """What waits in one shard."""

    shard: int
    ready: int
    mutable: int
    sealed: int
    next_due_ms: int | None


@dataclass(frozen=True)
class BrokerAnswer:
    """The part of the status that comes from the broker.

    - `lag`: the input lag; None if the broker does not answer, or a topic is missing. `problem` then has the reason.
    - `ready`: what is handed over and not released, by shard; `members`: the release processes. None as for `lag`.
    - `holder`: the holder of the lease. A process that was killed stays the holder until another claims the lease.
      None if nobody holds the lease, if the broker does not answer, or if the lease topic holds a foreign record;
      in the last case `lease_problem` has the reason.
    """

    lag: list[PartitionLag] | None
    holder: Lease | None = None
    problem: str = ""
    lease_problem: str = ""
    ready: list[ReadyShard] | None = None
    members: list[ReleaseMember] | None = None
    ready_problem: str = ""


@dataclass(frozen=True)
class Status:
    """The status of an application. Instants are epoch ms.

    - `committed`: the last committed batch; None before the first.
    - `planned`: the batch that is running, or that the next start will replay.
    - `due`: the number of waiting messages in each span (`SPANS_MS`, `LATER`).
    """

    checkpoint: str
    now_ms: int
    committed: PlannedBatch | None
    planned: PlannedBatch | None
    shards: list[ShardStatus]
    mutable_bytes: int
    sealed_bytes: int
    buckets: int
    segments: int
    due: dict[str, int]
    due_is_estimated: bool
    broker: BrokerAnswer

    @property
    def next_due_ms(self) -> int | None:
        """The earliest due time of all waiting messages, epoch ms."""
        return min((shard.next_due_ms for shard in self.shards if shard.next_due_ms is not None), default=None)


def read_status(settings: Settings, clock_ms: Callable[[], int]) -> Status:
    """Read the status with a separate Spark session. `clock_ms` returns the current time, epoch ms.

    Raises StorageFailed if the checkpoint or the tables cannot be read in a few tries; otherwise the errors of
    `check_clients` and `open_session`.
    """
    check_clients(settings)
    spark = open_session(settings, _SPARK)
    # The command prints an error once, as a sentence; Spark must not log the failed tries.
    spark.sparkContext.setLogLevel("OFF")
    try:
        return _retry_while_files_vanish(lambda: _read(spark, settings, clock_ms), checkpoint_path(settings))
    finally:
        spark.stop()


def _retry_while_files_vanish(read: Callable[[], T], path: str) -> T:
    """Call `read`, and repeat it if files have vanished: the job keeps only the files of its last few batches."""
    for attempt in range(1, _TRIES + 1):
        try:
            return read()
        except (Py4JJavaError, PySparkException, CheckpointMismatch, CheckpointUnreadable) as problem:
            if attempt == _TRIES:
                why = problem.java_exception if isinstance(problem, Py4JJavaError) else problem
                first_line = str(why).partition("\n")[0]
                raise StorageFailed(f"{path} cannot be read after {_TRIES} tries: {first_line}") from problem
    raise AssertionError("the last try returns or raises")


def _read(spark: SparkSession, settings: Settings, clock_ms: Callable[[], int]) -> Status:
    checkpoint, store = Checkpoint(spark, checkpoint_path(settings)), BucketTable(spark, buckets_path(settings))
    last_committed, version = _consistent_versions(checkpoint, store)
    last_planned = checkpoint.last_planned()
    committed = None if last_committed is None else checkpoint.planned(last_committed)
    in_flight = last_planned is not None and (last_committed is None or last_planned > last_committed)
    planned = checkpoint.planned(last_planned) if in_flight and last_planned is not None else None
    # Taken before the counting, which may take long: the counts describe this moment.
    now_ms = clock_ms()
    broker = ask_broker(settings, committed)
    mutable: list[MutableBucket] = []
    sealed = SealedBuckets(store, None, [])
    if committed is not None:
        batch_id, cutoff_ms = committed.batch_id, committed.cutoff_ms
        last_bucket = checkpoint.origin.first_bucket + batch_id
        # Read the table before the state: the job keeps the state of its last few batches, but deletes the delivered
        # messages of buckets.
        if version is not None:
            sealed = sealed_buckets(store, version, last_bucket, cutoff_ms)
        mutable = mutable_buckets(spark, checkpoint.path, batch_id, checkpoint.settings_history().at(batch_id))
    ready = broker.ready or []
    segments, histogram = sealed.segments, _histogram(ready, mutable, sealed, now_ms)
    return Status(
        checkpoint=checkpoint.path,
        now_ms=now_ms,
        committed=committed,
        planned=planned,
        shards=[_shard(number, ready, mutable, segments) for number in _shards(settings, segments)],
        mutable_bytes=sum(bucket.bytes for bucket in mutable),
        sealed_bytes=sum(segment.bytes for segment in segments),
        buckets=len({segment.bucket for segment in segments}),
        segments=len(segments),
        due=dict(zip([*SPANS_MS, LATER], histogram.counts, strict=True)),
        due_is_estimated=histogram.estimated,
        broker=broker,
    )


def _consistent_versions(checkpoint: Checkpoint, store: BucketTable) -> tuple[int | None, int | None]:
    """Return the last committed batch, and a version that the table had while that batch was the last.

    An earlier version may lack a bucket of that batch. In a later version, its bucket may be merged with buckets of
    later batches. Either value is None if there is no batch or no table yet.
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


def ask_broker(settings: Settings, committed: PlannedBatch | None) -> BrokerAnswer:
    """Ask the broker for the input lag and the lease. Errors become part of the answer.

    Waiting messages are counted without Kafka, and an operator needs these counts when Kafka is down.
    """
    holder, lease_problem = None, ""
    try:
        try:
            holder = _holder(settings)
        except CheckpointMismatch as no_lease:
            lease_problem = str(no_lease)
        lag = input_lag(settings, committed.offsets if committed else {})
        answer = BrokerAnswer(lag, holder, lease_problem=lease_problem)
    except (BrokerUnreachable, TopicMissing, RightMissing) as problem:
        return BrokerAnswer(None, holder, str(problem), lease_problem)
    try:
        last_batch = -1 if committed is None else committed.batch_id
        return replace(answer, ready=ready_shards(settings, last_batch), members=release_members(settings))
    except (BrokerUnreachable, TopicMissing, RightMissing, ReadyLogLost, CheckpointMismatch) as problem:
        return replace(answer, ready_problem=str(problem))


def _holder(settings: Settings) -> Lease | None:
    try:
        last = read_lease(librdkafka_options(settings.kafka), settings.lease_topic)
    except TopicMissing:
        return None
    return None if last is None or last.released else last


def _histogram(
    ready: list[ReadyShard], mutable: list[MutableBucket], sealed: SealedBuckets, now_ms: int
) -> DueHistogram:
    histogram = DueHistogram(now_ms + span for span in SPANS_MS.values())
    for shard in ready:
        histogram.add_instants(shard.dues_ms)
    for bucket in mutable:
        histogram.add_instants(bucket.dues_ms)
    sealed.count_into(histogram)
    return histogram


def _shards(settings: Settings, sealed: list[Segment]) -> range:
    """Return the numbers of all shards, including former shards whose sealed buckets still wait."""
    return range(max([settings.bucket.shards, *(segment.shard + 1 for segment in sealed)]))


def _shard(number: int, ready: list[ReadyShard], mutable: list[MutableBucket], sealed: list[Segment]) -> ShardStatus:
    handed_over = [shard.dues_ms for shard in ready if shard.shard == number]
    buckets = [bucket for bucket in mutable if bucket.shard == number]
    segments = [segment for segment in sealed if segment.shard == number]
    firsts = [int(bucket.dues_ms[0]) for bucket in buckets if len(bucket.dues_ms)]
    firsts += [segment.min_deliver_at_ms for segment in segments]
    firsts += [int(dues_ms[0]) for dues_ms in handed_over if len(dues_ms)]
    return ShardStatus(
        shard=number,
        ready=sum(map(len, handed_over)),
        mutable=sum(len(bucket.dues_ms) for bucket in buckets),
        sealed=sum(segment.count for segment in segments),
        next_due_ms=min(firsts, default=None),
    )
