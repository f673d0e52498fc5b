"""What waits, what is due when, and how far the job is: read from outside, whether it runs or not.

Nothing is written and nothing locked. The reading holds to one committed batch; when the running job removes
that batch's files meanwhile, it begins again with a newer one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from conf.errors import BrokerUnreachable, CheckpointMismatch, CheckpointUnreadable, StorageFailed, TopicMissing
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
from streaming.status.waiting import MutableBucket, SealedBuckets, mutable_buckets, sealed_buckets
from streaming.storage.paths import buckets_path, checkpoint_path

# What a user thinks in; the name says what lies below it, and the first is what is due already.
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
# Its own small Spark, wherever the job has its own: no port, address or memory of the job's.
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
    mutable: int
    sealed: int
    next_due_ms: int | None


@dataclass(frozen=True)
class BrokerAnswer:
    """What only the broker knows.

    `lag` is None when it does not say, and `holder` then too if it said nothing at all; `problem` tells why. `holder`
    is also None while nobody holds the lease, and when its topic holds something else, as `lease_problem` says then;
    one that died without a word still counts as holding it, until another has it.
    """

    lag: list[PartitionLag] | None
    holder: Lease | None = None
    problem: str = ""
    lease_problem: str = ""


@dataclass(frozen=True)
class Status:
    """A whole answer. Instants are epoch ms; `committed` is None while no batch has been.

    `planned` is the batch that runs, or that the next start will replay. `due` counts the waiting messages by
    span (`SPANS_MS`, `LATER`).
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
        """The earliest of all that waits."""
        return min((shard.next_due_ms for shard in self.shards if shard.next_due_ms is not None), default=None)


def read_status(settings: Settings, clock_ms: Callable[[], int]) -> Status:
    """Read the status with a Spark session of its own, which ends with it. `clock_ms` tells the time, epoch ms.

    Raises StorageFailed if what the checkpoint or the tables hold cannot be read in a few tries, and what
    `check_clients` and `open_session` do.
    """
    check_clients(settings)
    spark = open_session(settings, _SPARK)
    # What fails is told once, at the end, and in a sentence.
    spark.sparkContext.setLogLevel("OFF")
    try:
        return _retry_while_files_vanish(lambda: _read(spark, settings, clock_ms), checkpoint_path(settings))
    finally:
        spark.stop()


def _retry_while_files_vanish(read: Callable[[], T], path: str) -> T:
    """Try again when files are gone: the job keeps those of its last few batches only."""
    for attempt in range(1, _TRIES + 1):
        try:
            return read()
        except (Py4JJavaError, PySparkException, CheckpointMismatch, CheckpointUnreadable) as problem:
            if attempt == _TRIES:
                why = problem.java_exception if isinstance(problem, Py4JJavaError) else problem
                first_line = str(why).partition("\n")[0]
                raise StorageFailed(f"{path} cannot be read, {_TRIES} times tried: {first_line}") from problem
    raise AssertionError("the last try returns or raises")


def _read(spark: SparkSession, settings: Settings, clock_ms: Callable[[], int]) -> Status:
    checkpoint, store = Checkpoint(spark, checkpoint_path(settings)), BucketTable(spark, buckets_path(settings))
    last_committed, version = _at_one_time(checkpoint, store)
    last_planned = checkpoint.last_planned()
    committed = None if last_committed is None else checkpoint.planned(last_committed)
    in_flight = last_planned is not None and (last_committed is None or last_planned > last_committed)
    planned = checkpoint.planned(last_planned) if in_flight and last_planned is not None else None
    # Here and not at the end: the counts are those of this moment, however long they take to make.
    now_ms = clock_ms()
    broker = ask_broker(settings, committed)
    mutable: list[MutableBucket] = []
    sealed = SealedBuckets(store, None, [])
    if committed is not None:
        batch_id, cutoff_ms = committed.batch_id, committed.cutoff_ms
        last_bucket = checkpoint.origin.first_bucket + batch_id
        # The table before the state: of a state the job keeps the last few batches, of a bucket only what waits.
        if version is not None:
            sealed = sealed_buckets(store, version, last_bucket, cutoff_ms)
        mutable = mutable_buckets(spark, checkpoint.path, batch_id, checkpoint.settings_history().at(batch_id))
    segments, histogram = sealed.segments, _histogram(mutable, sealed, now_ms)
    return Status(
        checkpoint=checkpoint.path,
        now_ms=now_ms,
        committed=committed,
        planned=planned,
        shards=[_shard(number, mutable, segments) for number in _shards(settings, segments)],
        mutable_bytes=sum(bucket.bytes for bucket in mutable),
        sealed_bytes=sum(segment.bytes for segment in segments),
        buckets=len({segment.bucket for segment in segments}),
        segments=len(segments),
        due=dict(zip([*SPANS_MS, LATER], histogram.counts, strict=True)),
        due_is_estimated=histogram.estimated,
        broker=broker,
    )


def _at_one_time(checkpoint: Checkpoint, store: BucketTable) -> tuple[int | None, int | None]:
    """Return the last committed batch, and the version that the table had while it was the last; None for neither yet.

    An earlier version may lack a bucket of that batch. In a later one it may be merged with buckets of later batches.
    """
    if not store.exists():
        return checkpoint.last_committed(), None
    # Opening the table takes seconds, and looking again no time.
    store.newest_version()
    while True:
        before = checkpoint.last_committed()
        version = store.newest_version()
        if checkpoint.last_committed() == before:
            return before, version


def ask_broker(settings: Settings, committed: PlannedBatch | None) -> BrokerAnswer:
    """Return what the broker tells. What it cannot tell is said and not raised.

    What waits is known without Kafka, and worth knowing just then.
    """
    holder, lease_problem = None, ""
    try:
        try:
            holder = _holder(settings)
        except CheckpointMismatch as no_lease:
            lease_problem = str(no_lease)
        lag = input_lag(settings, committed.offsets if committed else {})
        return BrokerAnswer(lag, holder, lease_problem=lease_problem)
    except (BrokerUnreachable, TopicMissing) as problem:
        return BrokerAnswer(None, holder, str(problem), lease_problem)


def _holder(settings: Settings) -> Lease | None:
    try:
        last = read_lease(librdkafka_options(settings.kafka), settings.lease_topic)
    except TopicMissing:
        return None
    return None if last is None or last.released else last


def _histogram(mutable: list[MutableBucket], sealed: SealedBuckets, now_ms: int) -> DueHistogram:
    histogram = DueHistogram(now_ms + span for span in SPANS_MS.values())
    for bucket in mutable:
        histogram.add_instants(bucket.dues_ms)
    sealed.count_into(histogram)
    return histogram


def _shards(settings: Settings, sealed: list[Segment]) -> range:
    """Return the numbers of all shards, those included that buckets were sealed by before there were fewer."""
    return range(max([settings.bucket.shards, *(segment.shard + 1 for segment in sealed)]))


def _shard(number: int, mutable: list[MutableBucket], sealed: list[Segment]) -> ShardStatus:
    buckets = [bucket for bucket in mutable if bucket.shard == number]
    segments = [segment for segment in sealed if segment.shard == number]
    firsts = [int(bucket.dues_ms[0]) for bucket in buckets if len(bucket.dues_ms)]
    firsts += [segment.min_deliver_at_ms for segment in segments]
    return ShardStatus(
        shard=number,
        mutable=sum(len(bucket.dues_ms) for bucket in buckets),
        sealed=sum(segment.count for segment in segments),
        next_due_ms=min(firsts, default=None),
    )
