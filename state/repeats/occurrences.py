"""Occurrences of messages that repeat: which of them a batch stages, and which one waits then.

One occurrence of each message waits at a time, in the table. The batch that stages it also stages all further ones
below its cutoff, unless they are too many for one batch. The next one waits from then on (*following*). It is stored
after all of them are staged, so a table that has it shows that they are.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from state.buckets.operator import SHARD_OUTPUT_SCHEMA, ShardRows
from state.buckets.segments import row_bytes
from state.cancel import MessageId
from state.checkpoint.batch_settings import BatchSettings
from state.checkpoint.progress import BatchSpan
from state.kinds import KIND, OCCURRENCE
from state.message import HEADERS, MESSAGE_SCHEMA, empty_messages
from state.message_ids import ID
from state.names import NAMED_SCHEMA
from state.order import in_order
from state.repeats.schedule import NUMBER_HEADER, SCHEDULE_HEADER, Occurrence
from state.repeats.waiting import NO_PREDECESSORS, Predecessor, Waiting, waiting_in

# About how many occurrences of a shard a batch stages. Their bytes are limited by `BatchSettings.group_bytes`.
_MOST_STAGED = 100_000
# About how many bytes of them are made at once.
_PIECE_BYTES = 16 * 1024 * 1024

Ints = npt.NDArray[np.int64]


class Staged(NamedTuple):
    """Occurrences that a batch stages, by due time: the row of each one's message, its number, its due time (ms)."""

    rows: Ints
    numbers: Ints
    dues_ms: Ints


class Occurring(NamedTuple):
    """The occurrences that a batch makes of the repeating messages of one shard.

    - `below_ms`: the instant before which it stages their occurrences, epoch ms, if it is lower than the cutoff
    - `following`: by row, which occurrence of a message waits then
    """

    staged: Staged
    below_ms: int | None
    following: dict[int, Occurrence]

    def of_rows(self, start: int, end: int) -> Occurring:
        """Return the same for the messages in these rows, which are counted from `start` on."""
        are_own = (self.staged.rows >= start) & (self.staged.rows < end)
        rows, numbers, dues_ms = (column[are_own] for column in self.staged)
        following = {row - start: self.following[row] for row in range(start, end) if row in self.following}
        return self._replace(staged=Staged(rows - start, numbers, dues_ms), following=following)


def occur(coming: list[Iterator[Occurrence]], sizes: Ints, cutoff_ms: int, most: int, most_bytes: int) -> Occurring:
    """Return which occurrences a batch makes of messages, by their `coming` ones (`Schedule.coming`) and bytes `sizes`.

    It stages occurrences in order of their instants until there are `most`, or until they have `most_bytes`.
    The occurrences of one instant are staged together: at most one of each message.
    """
    next_up: list[tuple[int, int, Occurrence]] = []
    following: dict[int, Occurrence] = {}

    def go_on(row: int) -> None:
        occurrence = next(coming[row], None)
        if occurrence is not None and occurrence.at_ms < cutoff_ms:
            heappush(next_up, (occurrence.at_ms, row, occurrence))
        elif occurrence is not None:
            following[row] = occurrence

    for row in range(len(coming)):
        go_on(row)
    # Arrays take a tenth of the memory of objects.
    rows, numbers, dues_ms, nbytes = array("q"), array("q"), array("q"), 0
    while next_up:
        at_ms, row, occurrence = next_up[0]
        is_enough = len(rows) >= most or nbytes >= most_bytes
        if is_enough and at_ms > dues_ms[-1]:
            break
        heappop(next_up)
        rows.append(row)
        numbers.append(occurrence.number)
        dues_ms.append(at_ms)
        nbytes += int(sizes[row])
        go_on(row)
    below_ms = next_up[0][0] if next_up else None
    following |= {row: occurrence for _, row, occurrence in next_up}
    staged = Staged(*(np.array(column, dtype=np.int64) for column in (rows, numbers, dues_ms)))
    return Occurring(staged, below_ms, following)


def as_staged(messages: pa.Table, waiting: list[Waiting], staged: Staged, piece_bytes: int) -> Iterator[pa.Table]:
    """Yield the occurrences of `messages` as they are `staged`, in delivery order, about `piece_bytes` at once.

    The next ones are not due sooner, so that merging holds few of them at a time (`state.chunk_merge`).
    """
    pieces = np.cumsum(row_bytes(messages)[staged.rows]) // piece_bytes
    for piece in np.unique(pieces):
        start, end = np.searchsorted(pieces, [piece, piece + 1])
        rows, numbers, dues_ms = (column[start:end].tolist() for column in staged)
        own = zip(rows, numbers, strict=True)
        headers = [[*waiting[row].headers, _number(b"%d" % number)] for row, number in own]
        yield _with(messages, rows, dues_ms, headers, OCCURRENCE)


def as_waiting(
    messages: pa.Table, waiting: list[Waiting], occurrences: list[tuple[int, Occurrence]], from_ms: int = 0
) -> pa.Table:
    """Return `occurrences` of `messages` as they wait, in delivery order. They wait until `from_ms` or later, epoch ms.

    Below its cutoff a batch has staged everything else, and no later batch looks there. An occurrence does not wait
    until an earlier instant than the one before: it would count as missed.
    """
    headers, dues_ms = [], []
    for row, each in occurrences:
        dues_ms.append(max(from_ms, each.at_ms, waiting[row].until_ms))
        schedule = {"key": SCHEDULE_HEADER, "value": waiting[row].schedule.to_bytes()}
        headers.append([*waiting[row].headers, schedule, _number(each.to_bytes(dues_ms[-1]))])
    return _with(messages, [row for row, _ in occurrences], dues_ms, headers)


def _number(value: bytes) -> dict[str, Any]:
    return {"key": NUMBER_HEADER, "value": value}


def _with(
    messages: pa.Table,
    rows: list[int],
    dues_ms: list[int],
    headers: list[list[dict[str, Any]]],
    kind: int | None = None,
) -> pa.Table:
    own = messages.take(pa.array(rows, pa.int64()))
    columns = {name: own.column(name) for name in MESSAGE_SCHEMA.names}
    columns["deliver_at_ms"] = pa.array(dues_ms, pa.int64())
    columns["headers"] = pa.array(headers, HEADERS)
    if kind is not None:
        columns["kind"] = pa.repeat(pa.scalar(kind, KIND.type), own.num_rows)
    table = pa.table(columns, schema=MESSAGE_SCHEMA)
    return in_order(table.combine_chunks()) if table.num_rows else empty_messages()


class OccurrenceRows:
    """Makes the rows of a batch (`SHARD_OUTPUT_SCHEMA`) for the messages of one shard that repeat.

    It sees them twice: the staged occurrences of each depend on all of them, and they need not fit into memory. Its
    state is what the second time needs of the first.
    """

    def __init__(
        self,
        batch_settings: BatchSettings,
        span: BatchSpan,
        shard: int,
        predecessors: Mapping[MessageId, Predecessor] = NO_PREDECESSORS,
        most_staged: int = _MOST_STAGED,
        piece_bytes: int = _PIECE_BYTES,
    ) -> None:
        """Take the shard, and the `predecessors` of messages that came with the batch, by their ids."""
        self._most_staged, self._piece_bytes = most_staged, piece_bytes
        self._predecessors = predecessors
        self._span, self._most_bytes = span, batch_settings.group_bytes
        self._rows = ShardRows.of_occurrences(batch_settings, span.bucket, shard, span.cutoff_ms)
        self._coming: list[Iterator[Occurrence]] = []
        self._sizes = [np.zeros(0, dtype=np.int64)]
        self._occurring: Occurring | None = None
        self._seen = 0
        self._following, self._names = [empty_messages()], [NAMED_SCHEMA.empty_table()]
        # Computing the bytes of a table takes longer than adding it.
        self._following_bytes = 0

    def add(self, messages: pa.Table) -> None:
        """Take some of the due messages that repeat, for the first time."""
        self._sizes.append(row_bytes(messages))
        ids = zip(*(messages.column(name).to_pylist() for name in ID), strict=True)
        for each, identity in zip(waiting_in(messages), ids, strict=True):
            waiting = each.after(self._predecessors.get(identity), self._span.staged_below_ms)
            self._coming.append(waiting.coming(self._span))

    def staged(self, messages: pa.Table) -> Iterator[pa.RecordBatch]:
        """Take the messages again, as they came in `add`, and yield rows of due messages for the staged occurrences.

        Also yields rows of sealed messages for the occurrences that wait then, if there are many.
        """
        own = self._decided().of_rows(self._seen, self._seen + messages.num_rows)
        self._seen += messages.num_rows
        waiting = waiting_in(messages)
        for piece in as_staged(messages, waiting, own.staged, self._piece_bytes):
            yield _as_batch(self._rows.due(piece))
        following = as_waiting(messages, waiting, list(own.following.items()), self._span.cutoff_ms)
        self._names.append(_names(messages, waiting, own, self._span.cutoff_ms))
        self._following.append(following)
        self._following_bytes += following.nbytes
        if self._following_bytes >= self._piece_bytes:
            yield from self._sealed()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield rows of sealed messages for the occurrences that wait then, and of names.

        Also yields the instant before which occurrences are staged, if it is lower than the cutoff.
        """
        yield from self._sealed()
        names = pa.concat_tables(self._names)
        if names.num_rows:
            yield _as_batch([self._rows.named(names)])
        below_ms = self._decided().below_ms
        if below_ms is not None:
            yield _as_batch([self._rows.bound(below_ms)])

    def _decided(self) -> Occurring:
        if self._occurring is None:
            sizes = np.concatenate(self._sizes)
            self._occurring = occur(self._coming, sizes, self._span.cutoff_ms, self._most_staged, self._most_bytes)
        return self._occurring

    def _sealed(self) -> Iterator[pa.RecordBatch]:
        following = in_order(pa.concat_tables(self._following).combine_chunks())
        self._following, self._following_bytes = [empty_messages()], 0
        if following.num_rows:
            yield _as_batch(self._rows.sealed(following))


def _names(messages: pa.Table, waiting: list[Waiting], own: Occurring, cutoff_ms: int) -> pa.Table:
    # For messages that no longer wait, the last occurrence counts.
    dues = dict(zip(own.staged.rows.tolist(), own.staged.dues_ms.tolist(), strict=True))
    dues |= {row: max(cutoff_ms, each.at_ms) for row, each in own.following.items()}
    names: list[tuple[object, ...]] = []
    for row, (schedule, *_) in enumerate(waiting):
        if schedule.name and row in dues:
            identity = (messages.column(name)[row].as_py() for name in ID)
            names.append((schedule.name, *identity, dues[row], dues[row], schedule.keeps_name))
    named = [dict(zip(NAMED_SCHEMA.names, each, strict=True)) for each in names]
    return pa.Table.from_pylist(named, schema=NAMED_SCHEMA)


def _as_batch(rows: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=SHARD_OUTPUT_SCHEMA)
