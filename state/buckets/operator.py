"""Adapts the mutable bucket to Spark's `applyInPandasWithState`. Makes no decisions.

Spark collects rows for the state function, and rows that it returns, up to a fixed number, however large they are. So
rows without a chunk, *fillers*, come with the chunks of overflow groups. Their number makes Spark pass on its rows
after `FILLED_BYTES`. The groups themselves are bounded by `sources.intake.grouping`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from conf.errors import InvariantViolated
from state.buckets.mutable import BucketAdvance, advance, pass_by, take_out
from state.buckets.parts import following_part
from state.buckets.segments import Segment, cut, segment_of
from state.cancel import REQUEST_SCHEMA, replacement_ids
from state.checkpoint.batch_settings import BatchSettings, RunningBatch
from state.due_spans import due_runs, encode_runs
from state.group_keys import overflow_of
from state.index.offset_bitmaps import BITMAPS_SCHEMA, ids_from
from state.kinds import is_message, repeats
from state.message import decode_chunk, empty_messages, encode_chunk, split_by_bytes
from state.message_ids import ID, NO_IDS
from state.order import key_of

# One row of a batch's output: a chunk of due messages, a sealed segment, a summary of the messages that a shard keeps,
# a chunk of requests, a chunk of messages taken out for them, or a filler.
SHARD_OUTPUT_SCHEMA = pa.schema(
    [
        pa.field("kind", pa.string()),
        pa.field("shard", pa.int32()),
        pa.field("cutoff_ms", pa.int64()),
        pa.field("bucket", pa.int64()),
        pa.field("segment", pa.int32()),
        pa.field("part", pa.string()),
        pa.field("min_deliver_at_ms", pa.int64()),
        pa.field("max_deliver_at_ms", pa.int64()),
        pa.field("count", pa.int64()),
        pa.field("bytes", pa.int64()),
        # How many of the messages are occurrences of messages that repeat.
        pa.field("repeats", pa.int64()),
        # For each input topic with a limit, as JSON: how many messages are kept, or spans of sealed ones.
        pa.field("by_topic", pa.string()),
        # In `KEPT` rows: how many messages of each input topic the group has accepted, as JSON.
        pa.field("accepted", pa.string()),
        # Chunks of due messages only: the id of the first message; with `min_deliver_at_ms` it is its order key.
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        # In `KEPT` rows: when the kept messages are due (`state.due_spans.encode_runs`).
        pa.field("chunk", pa.binary()),
    ]
)
# A shard's state: its mutable bucket, as one chunk.
STATE_SCHEMA = pa.schema([pa.field("bucket", pa.binary())])
# The chunks of `ASKED` rows are of `REQUEST_SCHEMA`. The chunks of `TAKEN_OUT` rows have `TAKEN_OUT_COLUMNS`.
# A message that was taken out is in no other row, unless a request wants it to be due at once. The chunks of `NAMED`
# rows are names that messages have from now on (`state.names.NAMED_SCHEMA`). A `BOUND` row has no chunk: its
# `min_deliver_at_ms` is the instant before which a batch stages occurrences of the shard.
DUE, SEALED, KEPT, ASKED, TAKEN_OUT, FILLER = "due", "sealed", "kept", "asked", "taken-out", "filler"
NAMED, BOUND = "named", "bound"
TAKEN_OUT_COLUMNS = (*ID, "deliver_at_ms", "kind")

# Spark may collect the rows of so many bytes of messages.
FILLED_BYTES = 32 * 1024 * 1024
# Rows are copied whole between the JVM and Python, so a row must not grow with the batch. And staging holds all chunks
# in memory that overlap in due time. In a batch of large messages, that is one from each overflow group, or all.
_DUE_CHUNK_BYTES = 1024 * 1024
# How many segment numbers each group has. The shard's own group comes first, then its overflow groups. In the own group
# the third quarter is for messages that are moved (`state.buckets.moves`), and the last one for occurrences
# (`state.repeats.occurrences`).
_NUMBERS_A_GROUP = 1 << 20
_NUMBERS_BEFORE_MOVED = _NUMBERS_A_GROUP // 2
_NUMBERS_BEFORE_FOLLOWING = _NUMBERS_BEFORE_MOVED + _NUMBERS_A_GROUP // 4

StateFunction = Callable[[Any, Iterable[pd.DataFrame], Any], Iterator[pd.DataFrame]]


def update_shard(running_batch: Callable[[], RunningBatch]) -> StateFunction:
    """Return the state function. On the executor, `running_batch` returns the running batch."""

    def update(key: tuple[int], arrivals: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        batch = running_batch()
        batch_settings = batch.settings
        cutoff_ms = max(int(state.getCurrentWatermarkMs()), batch_settings.first_cutoff_ms)
        chunks = [decode_chunk(bytes(chunk)) for frame in arrivals for chunk in frame["chunk"] if chunk is not None]
        requests, asked = (_with_schema(chunks, schema) for schema in (REQUEST_SCHEMA, BITMAPS_SCHEMA))
        if requests or asked:
            chunks = [chunk for chunk in chunks if not any(map(chunk.schema.equals, (REQUEST_SCHEMA, BITMAPS_SCHEMA)))]
        accepted = _accepted(chunks)
        overflow = overflow_of(key[0], batch_settings.shards)
        if overflow is not None:
            shard, number = overflow
            passed = pass_by(chunks, cutoff_ms)
            yield _rows(passed, batch, shard, cutoff_ms, (number + 1) * _NUMBERS_A_GROUP, accepted)
            yield pd.DataFrame(_FILLER, index=range(fillers(sum(each.nbytes for each in chunks), batch.transfer_rows)))
            return
        shard = batch_settings.shard_keys.index(key[0])
        waiting = decode_chunk(bytes(state.get[0])) if state.exists else empty_messages()
        passed_on = _table_rows(ASKED, requests, shard, cutoff_ms)
        undecided: list[pa.Table] = []
        if asked:
            taken_out = take_out([waiting, *chunks], ids_from(asked))
            waiting, *chunks = taken_out.left
            passed_on += _table_rows(TAKEN_OUT, [taken_out.found.select(TAKEN_OUT_COLUMNS)], shard, cutoff_ms)
            # The batch decides about these (`state.cancel.is_undecided`). All others are cancelled for good.
            undecided = taken_out.found_among(ids_from(each.filter(each.column("undecided")) for each in asked))
        if passed_on:
            yield _frame(passed_on)
        replacements = replacement_ids(pa.concat_tables(requests)) if requests else NO_IDS
        result = advance(waiting, chunks, cutoff_ms, batch_settings, replacements, undecided)
        if result.kept.num_rows:
            state.update((encode_chunk(result.kept),))
            # Spark refuses a timeout of 0, but a message due at 0 waits while the first cutoff is 0.
            state.setTimeoutTimestamp(max(1, result.next_due_ms or 0))
        elif state.exists:
            state.remove()
        yield _rows(result, batch, shard, cutoff_ms, 0, accepted)

    return update


def fillers(nbytes: int, transfer_rows: int) -> int:
    """Return how many fillers come with `nbytes` bytes of messages, if Spark passes on `transfer_rows` rows at once."""
    return -(-nbytes * transfer_rows // FILLED_BYTES)


_FILLER = dict.fromkeys(SHARD_OUTPUT_SCHEMA.names, 0) | {
    "kind": FILLER,
    "part": "",
    "by_topic": "{}",
    "accepted": "{}",
    "topic": "",
    "chunk": b"",
}


class ShardRows:
    """Makes the rows of `SHARD_OUTPUT_SCHEMA` for messages of one group, which are in delivery order."""

    def __init__(
        self,
        batch_settings: BatchSettings,
        bucket: int,
        shard: int,
        cutoff_ms: int,
        first_segment: int,
        most_segments: int = _NUMBERS_BEFORE_MOVED,
        part: str = "",
    ) -> None:
        """Take the fields that all rows share. At most `most_segments` segments are numbered from `first_segment` on.

        `part` is the name of another part of the bucket.
        """
        self._batch_settings, self._bucket, self._shard = batch_settings, bucket, shard
        self._cutoff_ms = cutoff_ms
        self._next, self._end, self._part = first_segment, first_segment + most_segments, part
        self._base = {**_FILLER, "shard": shard, "cutoff_ms": cutoff_ms, "bucket": bucket}

    @staticmethod
    def of_moved(batch_settings: BatchSettings, bucket: int, shard: int, cutoff_ms: int) -> ShardRows:
        """Return an instance for messages that are moved."""
        most = _NUMBERS_BEFORE_FOLLOWING - _NUMBERS_BEFORE_MOVED
        return ShardRows(batch_settings, bucket, shard, cutoff_ms, _NUMBERS_BEFORE_MOVED, most)

    @staticmethod
    def of_occurrences(batch_settings: BatchSettings, bucket: int, shard: int, cutoff_ms: int) -> ShardRows:
        """Return an instance for occurrences that a batch stages, and for their following occurrences."""
        most = _NUMBERS_A_GROUP - _NUMBERS_BEFORE_FOLLOWING
        part = following_part(bucket)
        return ShardRows(batch_settings, bucket, shard, cutoff_ms, _NUMBERS_BEFORE_FOLLOWING, most, part)

    def due(self, messages: pa.Table) -> Iterator[dict[str, Any]]:
        """Yield rows of due messages."""
        for piece in split_by_bytes(messages, _DUE_CHUNK_BYTES) if messages.num_rows else ():
            first = {name: value for name, value in key_of(piece)._asdict().items() if name in _FILLER}
            yield {**self._base, "kind": DUE, **_bounds(piece), **first, "chunk": encode_chunk(piece)}

    def sealed(self, messages: pa.Table) -> Iterator[dict[str, Any]]:
        """Yield rows of sealed messages: a segment each."""
        for segment, own in cut(messages, self._bucket, self._shard, self._batch_settings, self._next, self._part):
            if segment.segment >= self._end:
                raise InvariantViolated(f"a group of shard {self._shard} has segments up to {segment.segment}")
            self._next = segment.segment + 1
            yield self._segment(segment, own)

    def kept(self, messages: pa.Table, clock_ms: int, accepted: str) -> dict[str, Any]:
        """Return the row of the messages that are kept, with the column `accepted`."""
        by_topic = _limited_topics(messages, self._batch_settings)
        dues = encode_runs(due_runs(messages.column("deliver_at_ms").to_numpy(), clock_ms))
        own = {**_bounds(messages), "by_topic": by_topic, "accepted": accepted, "chunk": dues}
        return {**self._base, "kind": KEPT, **own}

    def named(self, names: pa.Table) -> dict[str, Any]:
        """Return the row of `names` (`state.names.NAMED_SCHEMA`)."""
        return {**self._base, "kind": NAMED, "count": names.num_rows, "chunk": encode_chunk(names)}

    def bound(self, below_ms: int) -> dict[str, Any]:
        """Return the row which says that only occurrences before `below_ms` (epoch ms) are staged."""
        return {**self._base, "kind": BOUND, "min_deliver_at_ms": below_ms}

    def without(self, row: Mapping[str, Any], left: pa.Table) -> Iterator[dict[str, Any]]:
        """Yield rows of the messages `left`, at least one, in place of `row`, which has due or sealed messages."""
        if row["kind"] == DUE:
            yield from self.due(left)
        else:
            yield self._segment(segment_of(left, self._bucket, self._shard, row["segment"], row["part"]), left)

    def _segment(self, segment: Segment, messages: pa.Table) -> dict[str, Any]:
        by_topic = _limited_spans(messages, self._batch_settings, self._cutoff_ms)
        return {**self._base, **asdict(segment), "kind": SEALED, "by_topic": by_topic, "chunk": encode_chunk(messages)}


def _rows(
    result: BucketAdvance, batch: RunningBatch, shard: int, cutoff_ms: int, first_segment: int, accepted: str
) -> pd.DataFrame:
    """Return the rows of `SHARD_OUTPUT_SCHEMA` for one group, with the column `accepted`."""
    own = ShardRows(batch.settings, batch.settings.first_bucket + batch.batch_id, shard, cutoff_ms, first_segment)
    rows = [*own.due(result.due), *own.sealed(result.sealed), own.kept(result.kept, batch.clock_ms, accepted)]
    return _frame(rows)


def _frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    # By columns: of rows, pandas makes a frame in 2 ms, which each shard pays in each batch.
    return pd.DataFrame({name: [row[name] for row in rows] for name in SHARD_OUTPUT_SCHEMA.names})


def _with_schema(chunks: Iterable[pa.Table], schema: pa.Schema) -> list[pa.Table]:
    return [chunk for chunk in chunks if chunk.schema.equals(schema)]


def _limited_topics(messages: pa.Table, batch_settings: BatchSettings) -> str:
    """Return the number of `messages` for each input topic with a limit, as JSON."""
    if not batch_settings.limits_waiting:
        return "{}"
    counts = _by_topic(messages.column("topic"))
    limited = {topic for topic in counts if batch_settings.policy_of(topic).most_waiting is not None}
    return json.dumps({topic: counts[topic] for topic in sorted(limited)})


def _limited_spans(messages: pa.Table, batch_settings: BatchSettings, cutoff_ms: int) -> str:
    """Return when `messages` are due, for each input topic with a limit, as JSON.

    Each topic has spans: first and last due time, and the count. Messages that repeat are stored again each time,
    together with others that are due much later. So a span of such a segment is about as long as the time until it
    begins.
    """
    if not batch_settings.limits_waiting:
        return "{}"
    topics, every = messages.column("topic"), messages.column("deliver_at_ms").to_numpy()
    is_split = repeats(messages).any()
    found: dict[str, list[list[int]]] = {}
    for topic in sorted(topics.unique().to_pylist()):
        if batch_settings.policy_of(topic).most_waiting is not None:
            dues = every[np.asarray(pc.equal(topics, topic))]
            octaves = np.frexp(np.maximum(dues - cutoff_ms, 0) / 1_000)[1]
            spans = np.split(dues, np.flatnonzero(np.diff(octaves)) + 1) if is_split else [dues]
            found[topic] = [[int(own[0]), int(own[-1]), len(own)] for own in spans]
    return json.dumps(found)


def _accepted(chunks: Iterable[pa.Table]) -> str:
    """Return the number of messages in `chunks` for each input topic, as JSON, without dead letters and requests."""
    counts: Counter[str] = Counter()
    for chunk in chunks:
        counts.update(_by_topic(chunk.column("topic").filter(pa.array(is_message(chunk)))))
    return json.dumps(counts)


def _by_topic(topics: pa.ChunkedArray) -> dict[str, int]:
    return {each["values"]: each["counts"] for each in pc.value_counts(topics).to_pylist()}


def _table_rows(kind: str, tables: Sequence[pa.Table], shard: int, cutoff_ms: int) -> list[dict[str, Any]]:
    """Return `tables` as rows of `kind`, for the driver."""
    base = {**_FILLER, "kind": kind, "shard": shard, "cutoff_ms": cutoff_ms}
    pieces = [piece for table in tables if table.num_rows for piece in split_by_bytes(table, _DUE_CHUNK_BYTES)]
    return [{**base, "count": piece.num_rows, "chunk": encode_chunk(piece)} for piece in pieces]


def _bounds(messages: pa.Table) -> dict[str, int]:
    """Return the bounds, count and bytes of `messages`; both bounds of an empty table are -1."""
    due = messages.column("deliver_at_ms")
    first, last = (due[0].as_py(), due[-1].as_py()) if messages.num_rows else (-1, -1)
    return {
        "min_deliver_at_ms": first,
        "max_deliver_at_ms": last,
        "count": messages.num_rows,
        "bytes": messages.nbytes,
        "repeats": int(repeats(messages).sum()),
    }
