"""Messages that repeat, when a checkpoint is lost: which occurrence of each waits.

A batch stores the following occurrences once it has staged the others (`state.repeats.occurrences`). So for each
message that repeats, its last occurrence in the table counts. If the newest batch has taken it, that batch was cut off
before it stored the following one. The rest of the schedule is then worked out again, by the marker of that batch. If
an earlier batch has taken it, it was the last of all, unless the table lacks the following one, as after a restore.
Then the rule goes on after the staged occurrences.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from sinks.buckets.bucket_table import BucketTable
from state.buckets.reseal import left_rows
from state.buckets.table_rows import ArrowFunction
from state.checkpoint.staged import StagedMessages
from state.index.offset_bitmaps import OffsetBitmaps, in_bitmaps
from state.kinds import Mask, repeats
from state.message import decode_chunk, empty_messages, encode_chunk
from state.message_ids import ID, ID_SCHEMA, places_in
from state.name_holders import HOLDER_SCHEMA
from state.order import OrderKey
from state.repeats.left import left_of_lost, left_of_staged
from state.repeats.waiting import waiting_in
from state.shards import by_shard
from streaming.checkpoint.switch_over import is_older, writer_of_repair

log = logging.getLogger(__name__)

# An occurrence in the table: its number, whether it is cancelled, whether a batch before the newest has taken it, and
# its message, as a chunk.
_OCCURRENCES = pa.schema(
    [
        *ID_SCHEMA,
        ("number", pa.int64()),
        ("deliver_at_ms", pa.int64()),
        ("bucket", pa.int64()),
        ("is_gone", pa.bool_()),
        ("is_taken", pa.bool_()),
        ("chunk", pa.binary()),
    ]
)
# The same for the occurrences that are left, with the name. Rows without a chunk are `Superseded`.
_LEFT = pa.schema(
    [*ID_SCHEMA, ("deliver_at_ms", pa.int64()), ("name", pa.binary()), ("keeps", pa.bool_()), ("chunk", pa.binary())]
)


@dataclass(frozen=True)
class Superseded:
    """Occurrences in the table that no longer wait, although no marker shows it: a following occurrence waits instead.

    For each message (`ID`), these are the occurrences due before `deliver_at_ms`, epoch ms.
    """

    messages: pa.Table = field(default_factory=lambda: ID_SCHEMA.append(_LEFT.field("deliver_at_ms")).empty_table())

    def __bool__(self) -> bool:
        return bool(self.messages.num_rows)

    @property
    def end_ms(self) -> int:
        """The end of their due times, exclusive, epoch ms."""
        return max(self.messages.column("deliver_at_ms").to_pylist(), default=0)

    def contains_mask(self, messages: pa.Table) -> Mask:
        """Return which of `messages` they are."""
        places = places_in(self.messages, messages)
        end_ms = self.messages.column("deliver_at_ms").take(pa.array(places, mask=places < 0))
        are_before = messages.column("deliver_at_ms").to_numpy() < np.asarray(end_ms.fill_null(0))
        return np.asarray(are_before & repeats(messages))


def lacks_following(store: BucketTable, staged: StagedMessages) -> bool:
    """Return whether the table lacks following occurrences that it had: it is a copy, or was created again or repaired.

    An occurrence that was taken, without another after it, proves nothing: a message that was cancelled long ago may
    still be in the table, while its id is forgotten.
    """
    origin = staged.origin
    lacks = is_older(store, origin, staged.in_table) or store.is_fenced(writer_of_repair(origin.checkpoint))
    if lacks:
        log.warning(
            "the table of sealed buckets is older than the ready log, or was repaired, so it may lack the present "
            "occurrences of messages that repeat. Each schedule continues after its last staged occurrence. Numbers "
            "may have gaps, so a count may end early. Schedules that were cancelled may come again: cancel them again"
        )
    return lacks


def left_in_table(
    store: BucketTable, staged: StagedMessages, gone: OffsetBitmaps, sealed_in: int | None, is_older: bool
) -> DataFrame | None:
    """Return what the lost job left of sealed messages that repeat (`_LEFT`), or None if no sealed message repeats.

    `gone` are the messages that are cancelled, or recalled. An earlier try has sealed what was left in the bucket
    `sealed_in`, and may have cancelled some. The superseded occurrences depend on neither, because the new
    checkpoint must begin with the cutoff of the first try. `is_older` is what `lacks_following` says.
    """
    if not any(row["repeats"] for row in store.metadata()):
        return None
    chunks = store.repeating_chunks()
    if sealed_in is not None:
        chunks = chunks.where(f"bucket <> {sealed_in}")
    every = chunks.mapInArrow(_occurrences(staged, gone, is_older), from_arrow_schema(_OCCURRENCES))
    by_id = every.repartition(*ID).sortWithinPartitions(*ID, "number", "deliver_at_ms", "bucket")
    return by_id.mapInArrow(_left(staged), from_arrow_schema(_LEFT))


def superseded_in(left: DataFrame) -> Superseded:
    """Return what `left_in_table` says of occurrences that wait no more."""
    return Superseded(left.where("chunk IS NULL").select(*ID, "deliver_at_ms").toArrow())


def as_left_rows(shards: int) -> ArrowFunction:
    """Return the `mapInArrow` function that gives the messages of `left_in_table` as rows of `LEFT_SCHEMA`."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for chunk in batch.column("chunk").drop_null():
                yield from left_rows(decode_chunk(chunk.as_py()), shards)

    return run


def as_holders(left: DataFrame, bucket: int) -> DataFrame:
    """Return the names of what is left (`state.name_holders.HOLDER_SCHEMA`). It is sealed in `bucket`."""
    columns = ("name", *ID, "deliver_at_ms", "deliver_at_ms AS until_ms", "keeps", f"{bucket}L AS bucket")
    named = left.where("name IS NOT NULL").selectExpr(*columns, "true AS is_left")
    assert named.columns == HOLDER_SCHEMA.names
    return named


def left_of_input(messages: pa.Table, staged: StagedMessages, is_older: bool) -> pa.Table:
    """Return what waits of `messages` that were accepted again, repeat, and are staged.

    Batches before the newest have stored what follows those that they have read, unless the table `is_older`.
    """
    before = staged.before_newest(messages)
    left = left_by(staged, messages.filter(pa.array(~before)))
    if not (is_older and before.any()):
        return left
    return pa.concat_tables([left, _left_of_lost(staged, messages.filter(pa.array(before)))]).combine_chunks()


def left_by(staged: StagedMessages, messages: pa.Table) -> pa.Table:
    """Return what waits of `messages` that repeat and that the newest batch has taken, if it was cut off.

    Only of shards that have a marker of it: of the others it has staged nothing, and `messages` wait as they are.
    """
    left = [
        left_of_staged(own, marker.batch, marker.last, marker.occurrences_below_ms)
        for marker, own in staged.by_newest(messages)
        if marker.last is not None
    ]
    return pa.concat_tables([empty_messages(), *left]).combine_chunks()


def _left_of_lost(staged: StagedMessages, messages: pa.Table) -> pa.Table:
    """Return what waits of `messages` that repeat and that batches before the newest have taken, without a trace."""
    newest, left = staged.newest, [empty_messages()]
    for shard, own in by_shard(messages, len(staged.markers)):
        marker = staged.markers[shard]
        below_ms = marker.occurrences_below_ms
        last = OrderKey(newest.staged_below_ms, "", 0, 0)
        # The shard has staged nothing since its marker. A batch with a bound has not staged all below its cutoff.
        if marker.batch.batch_id == newest.batch_id or below_ms is not None:
            last = OrderKey(marker.occurrences_whole_below_ms, "", 0, 0)
            if marker.last is not None:
                end_ms = marker.batch.cutoff_ms if below_ms is None else below_ms
                last = max(last, min(marker.last, OrderKey(end_ms, "", 0, 0)))
        left.append(left_of_lost(own, last))
    return pa.concat_tables(left).combine_chunks()


def _occurrences(staged: StagedMessages, gone: OffsetBitmaps, is_older: bool) -> ArrowFunction:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for bucket, chunk in zip(batch.column("bucket").to_pylist(), batch.column("chunk"), strict=True):
                messages = decode_chunk(chunk.as_py())
                is_taken = staged.of_bucket_before_newest(messages, bucket)
                counts = repeats(messages) & (is_older | ~is_taken)
                messages, is_taken = messages.filter(pa.array(counts)), is_taken[counts]
                if not messages.num_rows:
                    continue
                numbers = [each.occurrence.number for each in waiting_in(messages)]
                chunks = [encode_chunk(messages.slice(row, 1)) for row in range(messages.num_rows)]
                columns = [
                    *(messages.column(name) for name in ID),
                    pa.array(numbers, pa.int64()),
                    messages.column("deliver_at_ms"),
                    pa.array([bucket] * messages.num_rows, pa.int64()),
                    pa.array(in_bitmaps(messages, gone)),
                    pa.array(is_taken),
                    pa.array(chunks, pa.binary()),
                ]
                yield from pa.table(columns, schema=_OCCURRENCES).to_batches()

    return run


def _left(staged: StagedMessages) -> ArrowFunction:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (row for batch in batches for row in batch.to_pylist())
        for _, own in groupby(rows, key=lambda row: tuple(row[name] for name in ID)):
            if found := list(_left_of_one(staged, list(own))):
                rows_left = [{name: row[name] for name in _LEFT.names} for row in found]
                yield pa.RecordBatch.from_pylist(rows_left, schema=_LEFT)

    return run


def _left_of_one(staged: StagedMessages, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield rows of `_LEFT` for a message, from the rows of its occurrences in the table (`_OCCURRENCES`), in turn."""
    rows, taken = [row for row in rows if not row["is_taken"]], rows
    if not rows:
        if not taken[-1]["is_gone"]:
            yield from _as_left(taken[-1], _left_of_lost(staged, decode_chunk(taken[-1]["chunk"])))
        return
    *before, last = rows
    superseded = [row["deliver_at_ms"] for row in before]
    message, is_due = decode_chunk(last["chunk"]), last["deliver_at_ms"] < staged.newest.cutoff_ms
    if is_due and any(True for _ in staged.by_newest(message)):
        # An occurrence that has waited longer than its instant, or was missed, lies behind the staged ones.
        if not staged.of_bucket(message, last["bucket"])[0]:
            superseded.append(last["deliver_at_ms"])
        if not last["is_gone"]:
            yield from _as_left(last, left_by(staged, message))
    if superseded:
        yield {**last, "deliver_at_ms": max(superseded) + 1, "name": None, "keeps": None, "chunk": None}


def _as_left(row: dict[str, Any], left: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield the row of `_LEFT` for what is `left` of the message of `row`, if anything is."""
    if left.num_rows:
        schedule = waiting_in(left)[0].schedule
        due_ms = left.column("deliver_at_ms")[0].as_py()
        names = {"name": schedule.name or None, "keeps": schedule.keeps_name, "deliver_at_ms": due_ms}
        yield {**row, **names, "chunk": encode_chunk(left)}
