"""Deciding cancels: where each message is that a batch's asks ask for, and what that means.

| the message | the answer |
| --- | --- |
| is in the mutable bucket of its shard, or came in the same batch | `cancelled`: the state stage has taken it out |
| is sealed, and not handed over | `cancelled`: its id is stored, and takes it out of each window and merge |
| was cancelled before | `cancelled` |
| is a replacement that was refused | `cancelled`: its id is stored like that of a cancelled message |
| is none of these | `too-late`: it is handed over, or was a dead letter |
| is not read yet, or of no input topic; or does not wait, and its record is deleted | `unknown` |

A replacement that is accepted is handed over or sealed like any message. One that is refused counts as cancelled: if
its batch has sealed it, each window and merge leaves it out.

A replay decides the same. What earlier batches cancelled and sealed is known by the numbers of their buckets. A message
that waits in a bucket stays there until it is handed over or cancelled, whatever is merged. And what this batch cancels
is stored before any of its answers is handed over: a rebuild, which has no replay, finds it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql.pandas.types import from_arrow_schema

from conf.errors import BrokerUnreachable
from conf.settings import Settings
from sinks.bucket_table import BucketTable
from sinks.topics.topics import input_bounds
from state.buckets.cancelled import NEVER_MS, CancelledId
from state.buckets.operator import ASKED, SEALED, is_of_overflow
from state.buckets.parts import part_of
from state.cancel import Ask, MessageId, Result, accepted_replacements, answer, asks_of
from state.checkpoint.progress import BatchSpan
from state.message import decode_chunk
from state.message_ids import ID_SCHEMA, Ids, among, ids_of

log = logging.getLogger(__name__)

# How long the first offsets of the input topics are taken for the present ones.
_FIRSTS_S = 60.0
# What became of a message that was asked for, and why if that is not plain.
Outcome = tuple[Result, str | None]
_CANCELLED: Outcome = ("cancelled", None)
_DUE_SCHEMA = ID_SCHEMA.append(pa.field("deliver_at_ms", pa.int64()))


@dataclass(frozen=True)
class Decision:
    """What a batch decides: its answers, by the id of the ask, the messages that it cancels, and what it refuses.

    `refused` are the replacements that it does not accept. They are among the cancelled messages.
    """

    answers: Mapping[MessageId, bytes] = field(default_factory=dict)
    cancelled: Collection[CancelledId] = ()
    refused: Collection[MessageId] = ()


class CancelDesk:
    """Decides the asks of one batch after the other. Only the query's thread may use it."""

    def __init__(self, store: BucketTable, settings: Settings) -> None:
        """Take the table of sealed buckets."""
        self._store = store
        self._settings = settings
        # The first offset of each input partition, and when it was read, by the monotonic clock.
        self._firsts: dict[tuple[str, int], int] = {}
        self._read_s = -math.inf

    def forgettable(self, cutoff_ms: int) -> str:
        """Return the SQL condition for rows of cancelled ids that are of no use any more. Any thread may call it.

        Such a message is due before `cutoff_ms` (epoch ms), below which everything is handed over, and its input topic
        has deleted the record. Whoever asks for it again gets `unknown`.
        """
        self._read_firsts()
        gone = [
            f"(topic = '{topic}' AND partition = {partition} AND offset < {first})"
            for (topic, partition), first in self._firsts.items()
            if first
        ]
        return f"max_deliver_at_ms < {cutoff_ms} AND ({' OR '.join(gone)})" if gone else "false"

    def decide(self, shard_output: DataFrame, rows: Iterable[Row], span: BatchSpan) -> Decision:
        """Return the decision about the asks of a batch.

        `rows` are those of `shard_output` without chunks.
        """
        if not any(row["kind"] == ASKED for row in rows):
            return Decision()
        asks, found = _asks(shard_output)
        results: dict[MessageId, Outcome] = dict.fromkeys(found, _CANCELLED)
        cancelled = {each: CancelledId(each, NEVER_MS, NEVER_MS) for each in found}
        open_ids = set()
        for asked in {ask.asked for ask in asks} - found:
            refusal = self._refusal(asked, span)
            if refusal is None:
                open_ids.add(asked)
            else:
                results[asked] = refusal
        if open_ids:
            bucket = span.origin.first_bucket + span.batch_id
            before = _each(self._store.cancelled_among(ids_of(open_ids), bucket - 1))
            waiting = self._waiting(open_ids - before, bucket, span)
            waiting += _sealed_now(open_ids - before - {each.id for each in waiting}, shard_output, rows)
            cancelled |= {each.id: each for each in waiting}
            results |= dict.fromkeys(before | cancelled.keys(), _CANCELLED)
        accepted = accepted_replacements(asks, cancelled.keys())
        refused = {ask.id: ask for ask in asks if ask.condition is not None and ask.id not in accepted}
        for ask in refused.values():
            due_ms = ask.deliver_at_ms or 0
            cancelled.setdefault(ask.id, CancelledId(ask.id, due_ms, due_ms))
        results |= dict.fromkeys(refused.keys() & open_ids, _CANCELLED)
        results |= {each: self._too_late(each) for each in open_ids - results.keys()}
        log.info(
            "batch %d: answers %d asks, cancels %d messages, and refuses %d replacements",
            span.batch_id, len(asks), len(cancelled) - len(refused), len(refused),
        )  # fmt: skip
        answers = {ask.id: _answer(ask, results[ask.asked], ask.id in accepted) for ask in asks}
        return Decision(answers, cancelled.values(), refused)

    def _refusal(self, asked: MessageId, span: BatchSpan) -> Outcome | None:
        topic, partition, offset = asked
        # By the offset log, and not by the settings, which a replay may find changed.
        if topic not in span.ends:
            return "unknown", f"the job reads no input topic {topic}"
        if offset >= span.ends[topic].get(str(partition), 0):
            return "unknown", "the job has not read it yet: ask again, or publish cancels to the message's partition"
        return None

    def _too_late(self, asked: MessageId) -> Outcome:
        """Return the answer for a message that does not wait, and is not among the cancelled ones that are known."""
        if time.monotonic() > self._read_s + _FIRSTS_S:
            self._read_firsts()
        topic, partition, offset = asked
        if offset < self._firsts.get((topic, partition), 0):
            return "unknown", "it does not wait, and its record is deleted: whether it was cancelled once is not kept"
        return "too-late", "it is handed over for delivery, or went to the dead-letter topic"

    def _read_firsts(self) -> None:
        # In an outage what was read before holds: offsets only grow.
        with suppress(BrokerUnreachable):
            self._firsts = {source: first for source, (first, _) in input_bounds(self._settings).items()}
            self._read_s = time.monotonic()

    def _waiting(self, ids: set[MessageId], bucket: int, span: BatchSpan) -> list[CancelledId]:
        """Return which of `ids` wait in an earlier bucket, and are not handed over before this batch."""
        if not ids:
            return []
        # Markers of merged buckets, metadata and chunks, all of one version.
        version = self._store.version()
        previous_ms = max(span.previous_ms, span.origin.cutoff_ms)
        # The first batch hands over what an earlier checkpoint has left, however long it is due.
        first_ms = previous_ms if span.batch_id else 0
        waiting: list[CancelledId] = []
        doubtful: list[tuple[Row, CancelledId]] = []
        for row in self._store.locate(ids_of(ids), bucket, first_ms, version):
            located = CancelledId((row["topic"], row["partition"], row["offset"]), row["from_ms"], row["until_ms"])
            is_left = not span.batch_id and row["bucket"] == span.origin.overdue_bucket
            if located.from_ms >= previous_ms or is_left:
                waiting.append(located)
            elif located.until_ms >= previous_ms:
                doubtful.append((row, located))
        return waiting + self._still_waiting(doubtful, previous_ms, version)

    def _still_waiting(
        self, doubtful: list[tuple[Row, CancelledId]], previous_ms: int, version: int
    ) -> list[CancelledId]:
        """Return those that are due at `previous_ms` or later, which the index does not know exactly."""
        if not doubtful:
            return []
        ids = ids_of(located.id for _, located in doubtful)
        parts = {part_of(row["part"]) or row["time_partition"] for row, _ in doubtful}
        end_ms = 1 + max(located.until_ms for _, located in doubtful)
        buckets = {row["bucket"] for row, _ in doubtful}
        chunks = self._store.chunks(previous_ms, end_ms, parts, buckets, version)
        return [each for each in _dues(chunks, ids) if each.from_ms >= previous_ms]


def _asks(shard_output: DataFrame) -> tuple[list[Ask], set[MessageId]]:
    """Return the asks of a batch, and the ids that the state stage has taken out."""
    asks: dict[MessageId, Ask] = {}
    found: set[MessageId] = set()
    for row in shard_output.where(f"kind = '{ASKED}'").select("chunk").collect():
        table = decode_chunk(bytes(row["chunk"]))
        own = asks_of(table)
        asks |= {ask.id: ask for ask in own}
        found.update(ask.asked for ask, was in zip(own, table.column("found").to_pylist(), strict=True) if was)
    return list(asks.values()), found


def _answer(ask: Ask, outcome: Outcome, accepted: bool) -> bytes:
    result, why = outcome
    if ask.condition is None:
        return answer(ask, result, why)
    if why is None and not accepted:
        why = "another ask has cancelled it, or refused it before: there is nothing to replace"
    return answer(ask, result, why, accepted)


def _sealed_now(ids: set[MessageId], shard_output: DataFrame, rows: Iterable[Row]) -> list[CancelledId]:
    """Return those of `ids` that this batch seals from overflow groups, which have no state, and take nothing out."""
    if not ids or not any(row["kind"] == SEALED and is_of_overflow(row["segment"]) for row in rows):
        return []
    return _dues(shard_output.where(f"kind = '{SEALED}'"), ids_of(ids))


def _dues(chunks: DataFrame, ids: Ids) -> list[CancelledId]:
    """Return those of `ids` that are in `chunks`, with their due times."""
    rows = chunks.select("chunk").mapInArrow(_finding(ids), from_arrow_schema(_DUE_SCHEMA)).collect()
    return [
        CancelledId((row["topic"], row["partition"], row["offset"]), row["deliver_at_ms"], row["deliver_at_ms"])
        for row in rows
    ]


def _finding(ids: Ids) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for chunk in batch.column("chunk"):
                messages = decode_chunk(chunk.as_py())
                found = messages.filter(pa.array(among(messages, ids))).select(_DUE_SCHEMA.names)
                yield from found.cast(_DUE_SCHEMA).to_batches()

    return run


def _each(ids: Ids) -> set[MessageId]:
    return {(*source, offset) for source, offsets in ids.items() for offset in offsets.tolist()}
