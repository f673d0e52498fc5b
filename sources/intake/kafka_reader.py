"""Reading and accepting the input: records in, chunks of messages for each shard out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from sources.intake.accept import accept
from sources.intake.accepted import Accepted
from sources.intake.grouping import Grouping
from sources.intake.request_grouping import RequestGrouping
from sources.intake.stubs import COLUMNS
from sources.intake.taken import left_to_batch
from state.checkpoint.batch_settings import RunningBatch
from state.checkpoint.origin import Offsets
from state.message import encode_chunk, split_by_bytes

CHUNK_SCHEMA = pa.schema(
    [("shard_key", pa.int32()), ("event_time", pa.timestamp("us", tz="UTC")), ("chunk", pa.binary())]
)
_COLUMNS = (
    *COLUMNS, "topic", "partition", "offset",
    # Nothing here may differ from batch to batch, such as the clock. Otherwise Spark would write other code for each
    # batch, and Java would compile it for a few seconds of use.
    "unix_millis(timestamp) AS timestamp_ms",
)  # fmt: skip
# Spark copies a row several times, and sorts the rows of a batch in memory that it allocates in pages. A chunk of one
# message may be larger.
_CHUNK_BYTES = 2 * 1024 * 1024
# The Java client gives up a request for offsets after a minute (default.api.timeout.ms), and Spark repeats it. For
# records that it knows to exist, Spark waits two minutes by default.
_OFFSET_TIMEOUT_MS, _POLL_TIMEOUT_MS = 60_000, 120_000
# After each poll Spark asks for the first and the last offset, and the client forgets records that it has fetched
# beyond the poll. With Java's 500 records, it would fetch a record of 100 bytes many times. A fetch (1 MB) has about
# 10,000 of these.
_POLL_RECORDS = "10000"


def read_records(
    spark: SparkSession,
    options: dict[str, str],
    topics: Sequence[str],
    first_records: int,
    starts: Offsets,
    outage_limit_ms: int,
    skip_expired: bool,
) -> DataFrame:
    """Return the stream of input records, with the columns that `accept` needs.

    Args:
        spark: the session of the query
        options: options of the Java client, without the prefix `kafka.`
        topics: the input topics
        first_records: the most records of the first batch, and of later ones until this is changed
        starts: the first offset of every partition, for a query without batches; empty: the beginning
        outage_limit_ms: how long to wait for brokers that do not answer; it may be a little longer
        skip_expired: whether to go on after records that were deleted unread; otherwise the query ends
    """
    reader = spark.readStream.format("kafka").options(**_options(options, topics))
    reader = reader.option("fetchOffset.numRetries", 3 + outage_limit_ms // _OFFSET_TIMEOUT_MS)
    reader = reader.option("kafkaConsumer.pollTimeoutMs", max(_POLL_TIMEOUT_MS, outage_limit_ms))
    return (
        reader.option("startingOffsets", json.dumps(starts) if starts else "earliest")
        .option("maxOffsetsPerTrigger", first_records)
        .option("failOnDataLoss", not skip_expired)
        .load()
        .selectExpr(*_COLUMNS)
    )


def read_range(
    spark: SparkSession, options: dict[str, str], topics: Sequence[str], starts: Offsets, ends: Offsets
) -> DataFrame:
    """Return the input records in a range of offsets, with the columns of `read_records`.

    Args:
        spark: the session to read with
        options: options of the Java client, without the prefix `kafka.`
        topics: the input topics
        starts: the first offset of every partition
        ends: the offset after the last one, of every partition
    """
    reader = spark.read.format("kafka").options(**_options(options, topics))
    offsets = {"startingOffsets": json.dumps(starts), "endingOffsets": json.dumps(ends)}
    return reader.options(**offsets).load().selectExpr(*_COLUMNS)


def _options(options: dict[str, str], topics: Sequence[str]) -> dict[str, str]:
    clients = {"isolation.level": "read_committed", "max.poll.records": _POLL_RECORDS, **options}
    own = {"subscribe": ",".join(topics), "includeHeaders": "true"}
    return {f"kafka.{name}": value for name, value in clients.items()} | own


def accepting(
    running_batch: Callable[[], RunningBatch],
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the `mapInArrow` function that turns records into rows of `CHUNK_SCHEMA`, and fillers without a chunk.

    Records that forwarders have taken are left out before anything of them is parsed.

    Requests are messages as well. Their contents follow in separate chunks (`sources.intake.request_grouping`).

    A chunk's event time is null: only the clock may move the watermark, and Spark drops a stateful row with an event
    time behind it.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        batch = running_batch()
        # Spark reads each input partition in a task of its own.
        grouping, request_grouping = Grouping(batch), RequestGrouping(batch)
        for read in batches:
            records = left_to_batch(pa.Table.from_batches([read]), batch.taken)
            if records.num_rows:
                accepted = accept(records, batch.settings, batch.clock_ms, batch.refusal)
                yield from _together(_groups(accepted, grouping, request_grouping))
        yield from _together((key, _chunks(ids)) for key, ids in request_grouping.ids())

    return run


def _groups(
    accepted: Accepted, grouping: Grouping, request_grouping: RequestGrouping
) -> Iterator[tuple[int, list[bytes | None]]]:
    """Yield the key of each group that takes some of the messages, and its chunks, with None for fillers."""
    for key, own, filling in grouping.divide(accepted.messages):
        yield key, [*_chunks(own), *[None] * filling]
    for key, requests in request_grouping.divide(accepted):
        yield key, _chunks(requests)


def _chunks(rows: pa.Table) -> list[bytes | None]:
    return [encode_chunk(piece) for piece in split_by_bytes(rows, _CHUNK_BYTES)]


def _together(groups: Iterable[tuple[int, list[bytes | None]]]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of several groups in batches of about `_CHUNK_BYTES`. Spark pays for each batch."""
    keys: list[int] = []
    chunks: list[bytes | None] = []
    nbytes = 0
    for key, own in groups:
        keys += [key] * len(own)
        chunks += own
        nbytes += sum(len(chunk) for chunk in own if chunk is not None)
        if nbytes >= _CHUNK_BYTES:
            yield _rows(keys, chunks)
            keys, chunks, nbytes = [], [], 0
    if keys:
        yield _rows(keys, chunks)


def _rows(keys: list[int], chunks: list[bytes | None]) -> pa.RecordBatch:
    rows = {"shard_key": keys, "event_time": [None] * len(chunks), "chunk": chunks}
    return pa.RecordBatch.from_pydict(rows, schema=CHUNK_SCHEMA)
