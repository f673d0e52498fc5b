"""Deciding cancels: where each message is that a batch's asks ask for, and what that means.

| the message | the answer |
| --- | --- |
| is in the mutable bucket of its shard, or came in the same batch | `cancelled`: the state stage has taken it out |
| is sealed, and not handed over | `cancelled`: its id is stored, and takes it out of each window and merge |
| was cancelled before, by a batch or by a release process | `cancelled` |
| is a replacement that was refused | `cancelled`: its id is stored like that of a cancelled message |
| is none of these | the release processes answer (`sinks.release.recall`): it is handed over, or was a dead letter |
| is not read yet, or of no input topic | `unknown` |

An ask by a name asks for the message that has the name (`streaming.job.names`). Nobody waits for an answer if that
came with a message; then it is passed on only if the message before is handed over, and dropped otherwise.

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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row
from pyspark.sql.pandas.types import from_arrow_schema

from conf.errors import BrokerUnreachable
from conf.settings import Settings
from sinks.bucket_table import BucketTable
from sinks.topics.topics import input_bounds
from state.buckets.cancelled import CANCELLED_SCHEMA, in_no_bucket
from state.buckets.operator import ASKED, DUE, KEPT, SEALED
from state.buckets.parts import part_of
from state.cancel import (
    ANSWER_SCHEMA,
    ASK_SCHEMA,
    DELETED_MS,
    NONE_REPLACED,
    NOT_KEPT,
    WAITING,
    MessageId,
    Result,
    Undecided,
    accepted_replacements,
    answer,
    answers_of,
    answers_to,
    asks_of,
    goes_on_at_once,
    replaced_by,
    replacement_ids,
    undecided_asks,
)
from state.checkpoint.batch_settings import BatchSettings
from state.checkpoint.progress import BatchSpan
from state.message import decode_chunk
from state.message_ids import ID, Ids, among, by_source, each_of, ids_in, ids_of, places_in, table_of, united
from state.names import NAMED_SCHEMA
from streaming.job.names import look_up, useful_from_ms
from streaming.job.recalled import RecalledMessages
from streaming.job.stored_ids import StoredIds

log = logging.getLogger(__name__)

# How long the first offsets of the input topics are taken for the present ones.
_FIRSTS_S = 60.0
_FORGET_EVERY_S = 60.0
# How many answers lie in the results topic before what release processes have answered is read back, asked for or not:
# a batch that must know it reads so many, and not those of days.
_MOST_ANSWERS_UNREAD = 100_000
# What became of a message that was asked for. Open: not known yet.
OPEN, CANCELLED, HANDED_OVER, DELETED, UNREAD, NO_INPUT = range(6)
_MEANINGS: dict[int, tuple[Result, str | None]] = {
    CANCELLED: ("cancelled", None),
    HANDED_OVER: ("unknown", "it is handed over, delivered, or a dead letter: too late to be replaced"),
    DELETED: ("unknown", NOT_KEPT),
    UNREAD: ("unknown", "the job has not read it yet: ask again, or publish cancels to the message's partition"),
    NO_INPUT: ("unknown", "the job reads no input topic of this name"),
}
_NO_SUCH_NAME = "nothing waits under this name: there was no such message, or it is delivered"
_NOTHING_TO_REPLACE = "another ask has cancelled it, or refused it before: there is nothing to replace"
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Decision:
    """What a batch decides: its answers, the messages that it cancels, and what it does not hand over.

    `answers` has the columns of `ANSWER_SCHEMA`, `cancelled` those of `CANCELLED_SCHEMA`. `left_out` are messages that
    came with the batch, and are not handed over if they are due now: replacements that it refuses, and others that are
    cancelled. They are among the cancelled messages. `names` are the messages that got a name in the batch
    (`state.names.NAMED_SCHEMA`). `replaced` has the replacement of each cancelled message that one has cancelled.
    """

    answers: pa.Table = field(default_factory=ANSWER_SCHEMA.empty_table)
    cancelled: pa.Table = field(default_factory=CANCELLED_SCHEMA.empty_table)
    left_out: Ids = field(default_factory=dict)
    names: pa.Table = field(default_factory=NAMED_SCHEMA.empty_table)
    replaced: Mapping[MessageId, MessageId] = field(default_factory=dict)

    def shows(self, cutoff_ms: int) -> bool:
        """Return whether anybody can tell, by what is handed over below `cutoff_ms` (epoch ms), what is cancelled.

        By an answer, or by the message in whose favour something is cancelled. Then it must be stored before: a rebuild
        would not know it, and deliver the cancelled message as well.
        """
        if not self.cancelled.num_rows:
            return False
        is_told = pc.any(pc.is_valid(self.answers.column("value"))).as_py()
        return bool(is_told or pc.any(pc.less(self.names.column("deliver_at_ms"), cutoff_ms)).as_py())


class CancelDesk:
    """Decides the asks of one batch after the other. Only the query's thread may use it."""

    def __init__(self, store: BucketTable, settings: Settings) -> None:
        """Take the table of sealed buckets."""
        self._store = store
        self._settings = settings
        self._recalled = RecalledMessages(settings)
        self._stored_ids = StoredIds(store)
        # Whether the batch that decides first has stored something before; None before that.
        self._is_replay: bool | None = None
        # How many asks were answered since the results topic was read back.
        self._answers_unread = 0
        # When ids were forgotten last, by the monotonic clock.
        self._forgot_s = time.monotonic()
        # The first offset of each input partition, and when it was read, by the monotonic clock.
        self._firsts: dict[tuple[str, int], int] = {}
        self._read_s = -math.inf

    def close(self) -> None:
        """Close the consumer of answers, and the file of stored ids."""
        self._recalled.close()
        self._stored_ids.close()

    def forgettable(self, cutoff_ms: int) -> str:
        """Return the SQL condition for rows of cancelled ids that are of no use any more. Any thread may call it.

        Such a message is due before `cutoff_ms` (epoch ms), below which everything is handed over, and its input topic
        has deleted the record. Whoever asks for it again gets `unknown`.
        """
        self._read_firsts()
        return self._forgettable(cutoff_ms)

    def _forgettable(self, cutoff_ms: int) -> str:
        gone = [
            f"(topic = '{topic}' AND partition = {partition} AND offset < {first})"
            for (topic, partition), first in self._firsts.items()
            if first
        ]
        return f"max_deliver_at_ms < {cutoff_ms} AND ({' OR '.join(gone)})" if gone else "false"

    def stored(self, decision: Decision, span: BatchSpan, clock_ms: int) -> None:
        """Take note that the batch of `span` has stored `decision`. `clock_ms` is its clock, epoch ms."""
        if self._is_replay:
            # What it had stored before may be less.
            self._stored_ids.close()
        elif decision.cancelled.num_rows or decision.names.num_rows:
            bucket = span.origin.first_bucket + span.batch_id
            self._stored_ids.add(decision.cancelled, decision.names, bucket, decision.replaced)
        self._is_replay = False
        if time.monotonic() > self._forgot_s + _FORGET_EVERY_S:
            self._forgot_s = time.monotonic()
            self._stored_ids.forget(self._forgettable(span.previous_ms), useful_from_ms(span, clock_ms))

    def decide(
        self,
        shard_output: DataFrame,
        rows: Iterable[Row],
        span: BatchSpan,
        clock_ms: int,
        batch_settings: BatchSettings,
    ) -> Decision:
        """Return the decision about the asks of a batch.

        Args:
            shard_output: what the state stage gives.
            rows: the same, without chunks.
            span: the batch.
            clock_ms: its clock, epoch ms.
            batch_settings: its settings.
        """
        if not any(row["kind"] == ASKED for row in rows):
            return Decision()
        every_ask, found = _asks(shard_output)
        asked_ms = time.time_ns() // 1_000_000
        has_name = pc.is_valid(every_ask.column("name"))
        bucket = span.origin.first_bucket + span.batch_id
        if self._is_replay is None:
            stored = self._store.newest_of(span.origin.checkpoint)
            self._is_replay = stored is not None and stored >= span.batch_id
        self._stored_ids.open(bucket, span.starts)
        waiting = partial(self._waiting, bucket=bucket, span=span)
        keeps_name = batch_settings.overdue_has_name
        named = look_up(every_ask.filter(has_name), self._stored_ids, span, clock_ms, keeps_name, waiting)
        every_ask = pa.concat_tables([every_ask.filter(pc.invert(has_name)), named.asks])
        # What nothing has the name of needs no decision.
        is_for_something = pc.greater_equal(every_ask.column("offset"), 0)
        asks, for_nothing = every_ask.filter(is_for_something), every_ask.filter(pc.invert(is_for_something))
        # Each message that is asked for, once, and what became of it.
        asked = table_of(ids_in(asks))
        outcomes = _unread(asked, span)
        outcomes[among(asked, united([found, ids_in(named.superseded)]))] = CANCELLED
        cancelled = [in_no_bucket(found), named.superseded]
        before = due_now = CANCELLED_SCHEMA.empty_table()
        results = self._settings.results_topic
        if not_found := _open(asked, outcomes):
            outcomes[among(asked, self._stored_ids.cancelled_among(not_found))] = CANCELLED
            cancelled.append(named.held.filter(pa.array(among(named.held, _open(asked, outcomes)))))
            outcomes[among(asked, ids_in(cancelled[-1]))] = CANCELLED
            # The first batch finds there what an earlier checkpoint has left, however long it is due.
            is_elsewhere = (outcomes == OPEN) & ~(among(asked, ids_in(named.handed_over)) & bool(span.batch_id))
            cancelled.append(self._waiting(ids_in(asked.filter(pa.array(is_elsewhere))), bucket, span))
            outcomes[among(asked, ids_in(cancelled[-1]))] = CANCELLED
            sealed_now = _passed_by(_open(asked, outcomes), SEALED, shard_output, rows, results)
            outcomes[among(asked, ids_in(sealed_now))] = CANCELLED
            due_now = _passed_by(_open(asked, outcomes), DUE, shard_output, rows, results)
            outcomes[among(asked, ids_in(due_now))] = CANCELLED
            cancelled += [sealed_now, due_now]
        not_waiting = outcomes == OPEN
        self._answers_unread += asks.num_rows
        if not_waiting.any() or self._answers_unread > _MOST_ANSWERS_UNREAD:
            self._answers_unread = 0
            # What release processes have answered since is stored with what this batch cancels.
            before = in_no_bucket(self._recalled.read())
            outcomes[among(asked, ids_in(before))] = CANCELLED
            if self._is_replay:
                # A replay stores nothing more: the next batch reads it again.
                self._recalled.begin_again()
        # A lost batch may have taken out what a replacement names that is read again.
        conditional = ids_in(asks.filter(pc.equal(asks.column("condition"), WAITING)))
        replaced_before = self._stored_ids.replaced_among(conditional)
        accepted, refused, replaced = _of_replacements(asks, pa.concat_tables(cancelled), replaced_before)
        cancelled.append(refused)
        outcomes[among(asked, ids_in(refused))] = CANCELLED
        is_open = outcomes == OPEN
        if is_open.any():
            outcomes[is_open] = np.where(self._is_deleted(asked), DELETED, HANDED_OVER)[is_open]
        everything = pa.concat_tables([*cancelled, before])
        log.info(
            "batch %d: answers %d asks, cancels %d messages, and refuses %d replacements",
            span.batch_id, asks.num_rows, everything.num_rows - refused.num_rows, refused.num_rows,
        )  # fmt: skip
        places, undecided = places_in(asked, asks), _undecided(span, asked_ms if self._recalled.knows_all else 0)
        # Of a replay, too, as many are handed over, whatever the release processes have answered since.
        goes_on = np.asarray(pc.is_valid(asks.column("name"))) & np.asarray(pc.is_valid(asks.column("condition")))
        answers = pa.concat_tables(
            [
                _answers(asks.filter(pa.array(~goes_on)), outcomes[places][~goes_on], accepted, undecided),
                _passed_on(
                    asks.filter(pa.array(goes_on)), outcomes[places][goes_on], not_waiting[places][goes_on], undecided
                ),
                _answers_for_nothing(for_nothing),
            ]
        )
        refused_ids = ids_of(each for each in each_of(replacement_ids(asks)) if each not in accepted)
        left_out = united([refused_ids, ids_in(due_now), ids_in(named.superseded)])
        return Decision(answers, everything, left_out, named.names, replaced)

    def _is_deleted(self, asked: pa.Table) -> Mask:
        """Return of which messages the input topic has deleted the record."""
        if time.monotonic() > self._read_s + _FIRSTS_S:
            self._read_firsts()
        return np.asarray(asked.column("offset").to_numpy() < _bounds_of(asked, self._firsts))

    def _read_firsts(self) -> None:
        # In an outage what was read before holds: offsets only grow.
        with suppress(BrokerUnreachable):
            self._firsts = {source: first for source, (first, _) in input_bounds(self._settings).items()}
            self._read_s = time.monotonic()

    def _waiting(self, ids: Ids, bucket: int, span: BatchSpan) -> pa.Table:
        """Return which of `ids` wait in an earlier bucket, and are not handed over before this batch."""
        if not ids:
            return CANCELLED_SCHEMA.empty_table()
        # Markers of merged buckets, metadata and chunks, all of one version.
        version = self._store.version()
        previous_ms = max(span.previous_ms, span.origin.cutoff_ms)
        # The first batch hands over what an earlier checkpoint has left, however long it is due.
        first_ms = previous_ms if span.batch_id else 0
        located = self._store.locate(ids, bucket, first_ms, version)
        from_ms, until_ms = (located.column(name).to_numpy() for name in ("from_ms", "until_ms"))
        waits = from_ms >= previous_ms
        if not span.batch_id:
            waits |= located.column("bucket").to_numpy() == span.origin.overdue_bucket
        doubtful = ~waits & (until_ms >= previous_ms)
        waiting = located.filter(pa.array(waits)).select(CANCELLED_SCHEMA.names).cast(CANCELLED_SCHEMA)
        still = self._still_waiting(located.filter(pa.array(doubtful)), previous_ms, version)
        return pa.concat_tables([waiting, still])

    def _still_waiting(self, doubtful: pa.Table, previous_ms: int, version: int) -> pa.Table:
        """Return those that are due at `previous_ms` or later, which the index does not know exactly."""
        if not doubtful.num_rows:
            return CANCELLED_SCHEMA.empty_table()
        places = doubtful.select(["part", "time_partition"]).group_by(["part", "time_partition"]).aggregate([])
        parts = {part_of(row["part"]) or row["time_partition"] for row in places.to_pylist()}
        end_ms = 1 + pc.max(doubtful.column("until_ms")).as_py()
        buckets = set(doubtful.column("bucket").unique().to_pylist())
        chunks = self._store.chunks(previous_ms, end_ms, parts, buckets, version)
        return _dues(chunks, ids_in(doubtful), self._settings.results_topic).filter(pc.field("from_ms") >= previous_ms)


def _asks(shard_output: DataFrame) -> tuple[pa.Table, Ids]:
    """Return the asks of a batch, and the ids that the state stage has taken out."""
    rows = shard_output.where(f"kind = '{ASKED}'").select("shard", "chunk").collect()
    tables = [(row["shard"], decode_chunk(bytes(row["chunk"]))) for row in rows]
    asks = pa.concat_tables([table for shard, table in tables if shard == 0])
    found = pa.concat_tables([table for _, table in tables]).filter(pc.field("found"))
    return asks.select(ASK_SCHEMA.names), ids_in(found)


def _open(asked: pa.Table, outcomes: npt.NDArray[np.int8]) -> Ids:
    return ids_in(asked.filter(pa.array(outcomes == OPEN)))


def _unread(asked: pa.Table, span: BatchSpan) -> npt.NDArray[np.int8]:
    """Return `NO_INPUT` or `UNREAD` for the messages that the job has not read when the batch ends, else `OPEN`."""
    # By the offset log, and not by the settings, which a replay may find changed.
    ends = {(topic, int(partition)): end for topic, own in span.ends.items() for partition, end in own.items()}
    is_read = asked.column("offset").to_numpy() < _bounds_of(asked, ends)
    outcomes = np.where(is_read, OPEN, UNREAD).astype(np.int8)
    is_input = np.asarray(pc.is_in(asked.column("topic"), pa.array(list(span.ends), pa.string())))
    outcomes[~is_input] = NO_INPUT
    return outcomes


def _bounds_of(messages: pa.Table, bounds: Mapping[tuple[str, int], int]) -> npt.NDArray[np.int64]:
    """Return the bound of each message's input partition; 0 if there is none."""
    own = np.zeros(messages.num_rows, dtype=np.int64)
    for source, rows in by_source(messages):
        own[rows] = bounds.get(source, 0)
    return own


def _of_replacements(
    asks: pa.Table, cancelled: pa.Table, replaced_before: Mapping[MessageId, MessageId]
) -> tuple[set[MessageId], pa.Table, Mapping[MessageId, MessageId]]:
    """Return the replacements that are accepted, others as cancelled, and what those have replaced that are accepted.

    The others are those that are not among `cancelled` yet. `replaced_before` is what a lost batch has replaced.
    """
    if asks.column("condition").null_count == asks.num_rows:
        return set(), CANCELLED_SCHEMA.empty_table(), NONE_REPLACED
    taken = each_of(ids_in(cancelled))
    every = asks_of(asks)
    accepted = accepted_replacements(every, taken, replaced_before)
    refused = [ask for ask in every if ask.condition is not None and ask.id not in accepted | taken]
    rows = [dict(zip(CANCELLED_SCHEMA.names, (*ask.id, *[ask.deliver_at_ms] * 2), strict=True)) for ask in refused]
    as_cancelled = pa.Table.from_pylist(rows, schema=CANCELLED_SCHEMA)
    return accepted, as_cancelled, replaced_by(every, taken, accepted)


def _undecided(span: BatchSpan, asked_ms: int) -> Undecided:
    """Return what the release processes need to know, to decide about messages that are handed over."""
    shards = span.origin.shards
    return Undecided(span.cutoff_ms, asked_ms, shards, shards - 1)


def _answers(
    asks: pa.Table, outcomes: npt.NDArray[np.int8], accepted: set[MessageId], undecided: Undecided
) -> pa.Table:
    """Return the answer to each ask, by what became of the message that it asks for; or `undecided` in its place."""
    is_replacement = np.asarray(pc.is_valid(asks.column("condition")))
    # One by one: replacements, and ids that may need an escape.
    apart = is_replacement | (outcomes == NO_INPUT)
    several: list[pa.Table] = []
    for outcome in np.unique(outcomes[~apart]).tolist():
        own = asks.filter(pa.array((outcomes == outcome) & ~apart))
        several.append(_same_answer(own, outcome, undecided))
    single: dict[MessageId, bytes] = {}
    for ask, outcome in zip(asks_of(asks.filter(pa.array(apart))), outcomes[apart].tolist(), strict=True):
        result, why = _MEANINGS[outcome]
        is_accepted = None if ask.condition is None else ask.id in accepted
        if is_accepted is False and why is None:
            why = _NOTHING_TO_REPLACE
        single[ask.id] = answer(ask, result, why, is_accepted)
    return pa.concat_tables([*several, answers_of(single)])


def _same_answer(asks: pa.Table, outcome: int, undecided: Undecided) -> pa.Table:
    """Return the answer to each of `asks`, whose messages have the same `outcome`; or `undecided` in its place."""
    if outcome == HANDED_OVER:
        return undecided_asks(asks, undecided)
    if outcome == DELETED:
        return undecided_asks(asks, undecided._replace(asked_ms=DELETED_MS))
    return answers_to(asks, *_MEANINGS[outcome])


def _passed_on(asks: pa.Table, outcomes: npt.NDArray[np.int8], not_waiting: Mask, undecided: Undecided) -> pa.Table:
    """Return no answer to `asks` of messages that have a name, or `undecided` if the message before is handed over.

    A release process may have cancelled that one. Then it is answered here: a successor of that process may know
    nothing of it, and take it for delivered.
    """
    waited = asks.filter(pa.array(~not_waiting))
    no_answers = answers_of(dict.fromkeys((ask.id for ask in asks_of(waited)), None))
    handed_over = [
        _same_answer(asks.filter(pa.array(not_waiting & (outcomes == outcome))), outcome, undecided)
        for outcome in np.unique(outcomes[not_waiting]).tolist()
    ]
    return pa.concat_tables([*handed_over, no_answers])


def _answers_for_nothing(asks: pa.Table) -> pa.Table:
    """Return the answers to `asks` by a name that no message has: one to a cancel, none to a message."""
    return answers_of(
        {ask.id: answer(ask, "unknown", _NO_SUCH_NAME) if ask.condition is None else None for ask in asks_of(asks)}
    )


def _passed_by(ids: Ids, kind: str, shard_output: DataFrame, rows: Iterable[Row], results: str) -> pa.Table:
    """Return those of `ids` that this batch seals, or hands over, from overflow groups.

    These have no state, and take nothing out. `kind` is `SEALED` or `DUE`.
    """
    # Each group says what it keeps, and overflow groups come beside the group of their shard.
    groups = Counter(row["shard"] for row in rows if row["kind"] == KEPT)
    if not ids or max(groups.values(), default=0) < 2 or all(row["kind"] != kind for row in rows):
        return CANCELLED_SCHEMA.empty_table()
    return _dues(shard_output.where(f"kind = '{kind}'"), ids, results)


def _dues(chunks: DataFrame, ids: Ids, results: str) -> pa.Table:
    """Return those of `ids` that are in `chunks`, with their due times, as a table of `CANCELLED_SCHEMA`.

    Neither dead letters nor asks, which go to the topic `results`.
    """
    found = chunks.select("chunk").mapInArrow(_finding(ids, results), from_arrow_schema(CANCELLED_SCHEMA))
    return found.toArrow()


def _finding(ids: Ids, results: str) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for chunk in batch.column("chunk"):
                messages = decode_chunk(chunk.as_py())
                named = among(messages, ids) & ~np.asarray(goes_on_at_once(messages, results))
                found = messages.filter(pa.array(named))
                due = found.column("deliver_at_ms")
                columns = [*(found.column(name) for name in ID), due, due]
                yield from pa.table(columns, names=CANCELLED_SCHEMA.names).cast(CANCELLED_SCHEMA).to_batches()

    return run
