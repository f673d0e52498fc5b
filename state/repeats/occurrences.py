"""Occurrences of messages that repeat: what a batch stages, and which one waits then.

One occurrence of each waits at a time, in the table. The batch that stages it also stages all further ones below its
cutoff. The next one waits from then on (*following*). It is stored after all of them are staged, so a table that has it
shows that they are.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from state.buckets.operator import SHARD_OUTPUT_SCHEMA, ShardRows
from state.buckets.segments import row_bytes
from state.checkpoint.batch_settings import BatchSettings
from state.kinds import KIND, OCCURRENCE, Mask, repeats
from state.message import HEADERS, MESSAGE_SCHEMA, empty_messages
from state.message_ids import ID
from state.names import NAMED_SCHEMA
from state.order import in_order
from state.repeats.schedule import NUMBER_HEADER, SCHEDULE_HEADER, Occurrence, Schedule

# So many bytes of staged occurrences are made at once, about: of an outage there may be a thousand of each message.
_TOGETHER_BYTES = 16 * 1024 * 1024

Ints = npt.NDArray[np.int64]


class Waiting(NamedTuple):
    """An occurrence that waits: its schedule, itself, and the headers that it is delivered with, but for its number."""

    schedule: Schedule
    occurrence: Occurrence
    headers: list[dict[str, Any]]


def waiting_in(messages: pa.Table) -> list[Waiting]:
    """Return what each of `messages` is, all of which repeat."""
    found = []
    rows = zip(messages.column("deliver_at_ms").to_pylist(), messages.column("headers").to_pylist(), strict=True)
    for at_ms, headers in rows:
        # Written last, in this order (`sources.intake.repeats`).
        *own, schedule, number = headers
        assert (schedule["key"], number["key"]) == (SCHEDULE_HEADER, NUMBER_HEADER)
        found.append(Waiting(Schedule.from_bytes(schedule["value"]), Occurrence(int(number["value"]), at_ms), own))
    return found


class Staged(NamedTuple):
    """Occurrences that a batch stages, by due time: the row of each one's message, its number, its due time (ms)."""

    rows: Ints
    numbers: Ints
    dues_ms: Ints


class Occurring(NamedTuple):
    """What a batch makes of messages that repeat.

    - `following`: the rows of the messages that wait then, and which occurrence of each
    - `names`: the names that they have from then on (`NAMED_SCHEMA`)
    """

    staged: Staged
    following: list[tuple[int, Occurrence]]
    names: pa.Table


def occur(messages: pa.Table, waiting: list[Waiting], clock_ms: int, cutoff_ms: int) -> Occurring:
    """Return what a batch, with this clock and cutoff (epoch ms), makes of `messages`, which are `waiting`."""
    # A tenth of what as many objects would take.
    rows, numbers, dues_ms = array("q"), array("q"), array("q")
    following: list[tuple[int, Occurrence]] = []
    names: list[tuple[object, ...]] = []
    for row, (schedule, first, _) in enumerate(waiting):
        staging = schedule.stage(first, clock_ms, cutoff_ms)
        for each in staging.staged:
            rows.append(row)
            numbers.append(each.number)
            dues_ms.append(each.at_ms)
        last = staging.following or (staging.staged[-1] if staging.staged else None)
        if staging.following is not None:
            following.append((row, staging.following))
        if schedule.name and last is not None:
            own = (messages.column(name)[row].as_py() for name in ID)
            names.append((schedule.name, *own, last.at_ms, last.at_ms, schedule.keeps_name))
    named = [dict(zip(NAMED_SCHEMA.names, each, strict=True)) for each in names]
    columns = [np.array(column, dtype=np.int64) for column in (rows, numbers, dues_ms)]
    in_turn = np.argsort(columns[2], kind="stable")
    staged = Staged(*(column[in_turn] for column in columns))
    return Occurring(staged, following, pa.Table.from_pylist(named, schema=NAMED_SCHEMA))


def as_staged(messages: pa.Table, waiting: list[Waiting], staged: Staged) -> Iterator[pa.Table]:
    """Yield the occurrences of `messages` as they are `staged`, in delivery order, some megabytes at once.

    The next ones are not due sooner: what merges them holds few at a time (`state.chunk_merge`).
    """
    pieces = np.cumsum(row_bytes(messages)[staged.rows]) // _TOGETHER_BYTES
    for piece in np.unique(pieces):
        start, end = np.searchsorted(pieces, [piece, piece + 1])
        rows, numbers, dues = (column[start:end].tolist() for column in staged)
        own = [(row, Occurrence(*each)) for row, *each in zip(rows, numbers, dues, strict=True)]
        headers = [[*waiting[row].headers, _number(each)] for row, each in own]
        yield _with(messages, own, headers, OCCURRENCE)


def as_waiting(messages: pa.Table, waiting: list[Waiting], occurrences: list[tuple[int, Occurrence]]) -> pa.Table:
    """Return `occurrences` of `messages` as they wait, in delivery order."""
    headers = []
    for row, each in occurrences:
        schedule = {"key": SCHEDULE_HEADER, "value": waiting[row].schedule.to_bytes()}
        headers.append([*waiting[row].headers, schedule, _number(each)])
    return _with(messages, occurrences, headers)


def _number(occurrence: Occurrence) -> dict[str, Any]:
    return {"key": NUMBER_HEADER, "value": b"%d" % occurrence.number}


def _with(
    messages: pa.Table,
    occurrences: list[tuple[int, Occurrence]],
    headers: list[list[dict[str, Any]]],
    kind: int | None = None,
) -> pa.Table:
    own = messages.take(pa.array([row for row, _ in occurrences], pa.int64()))
    columns = {name: own.column(name) for name in MESSAGE_SCHEMA.names}
    columns["deliver_at_ms"] = pa.array([each.at_ms for _, each in occurrences], pa.int64())
    columns["headers"] = pa.array(headers, HEADERS)
    if kind is not None:
        columns["kind"] = pa.repeat(pa.scalar(kind, KIND.type), own.num_rows)
    table = pa.table(columns, schema=MESSAGE_SCHEMA)
    return in_order(table.combine_chunks()) if table.num_rows else empty_messages()


def left_of_staged(
    messages: pa.Table, clock_ms: int, cutoff_ms: int, are_handed_over: Callable[[pa.Table], Mask]
) -> pa.Table:
    """Return the occurrences that wait if a batch with this clock and cutoff (epoch ms) was cut off.

    It has handed over `messages`, which repeat, and perhaps more of their occurrences, but has not stored those that
    follow. `are_handed_over` tells it of some messages.
    """
    waiting, left = waiting_in(messages), [empty_messages()]
    for row, (schedule, first, _) in enumerate(waiting):
        staged, following = schedule.stage(first, clock_ms, cutoff_ms)
        own = as_waiting(messages, waiting, [(row, each) for each in staged])
        waits = np.flatnonzero(~are_handed_over(own)) if own.num_rows else np.zeros(0, np.int64)
        if len(waits):
            left.append(own.slice(int(waits[0]), 1))
        elif following is not None:
            left.append(as_waiting(messages, waiting, [(row, following)]))
    return pa.concat_tables(left).combine_chunks()


class OccurrenceRows:
    """Makes the rows of a batch (`SHARD_OUTPUT_SCHEMA`) for the messages of one shard that repeat."""

    def __init__(self, batch_settings: BatchSettings, bucket: int, shard: int, clock_ms: int, cutoff_ms: int) -> None:
        """Take the batch: its settings, bucket, clock and cutoff (epoch ms)."""
        self._clock_ms, self._cutoff_ms, self._shard = clock_ms, cutoff_ms, shard
        self._rows = ShardRows.of_occurrences(batch_settings, bucket, shard, cutoff_ms)
        self._messages: list[pa.Table] = []

    def add(self, messages: pa.Table) -> None:
        """Take those of the due `messages` that repeat."""
        self._messages.append(messages.filter(pa.array(repeats(messages))))

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield rows of due messages for the staged occurrences, of sealed ones for those that wait then, and names."""
        messages = pa.concat_tables([empty_messages(), *self._messages]).combine_chunks()
        waiting = waiting_in(messages)
        staged, following, names = occur(messages, waiting, self._clock_ms, self._cutoff_ms)
        for piece in as_staged(messages, waiting, staged):
            yield _as_batch(self._rows.due(piece))
        if following:
            yield _as_batch(self._rows.sealed(as_waiting(messages, waiting, following)))
        if names.num_rows:
            yield _as_batch([self._rows.named(names)])


def _as_batch(rows: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=SHARD_OUTPUT_SCHEMA)
