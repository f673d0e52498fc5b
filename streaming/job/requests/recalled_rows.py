"""The records of the recalled topic, as rows on the driver's local disk (`streaming.job.requests.runs`)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from confluent_kafka import Message

from state.cancel import MessageId
from state.kinds import Mask
from state.message_ids import ID_SCHEMA, id_text, ids_of, table_from
from state.recalled import Recall, read_recall, read_recall_key, recall_key
from streaming.job.requests.runs import Numbers, Runs, Source, divided

log = logging.getLogger(__name__)

# The columns of each record: the id, and the fields of `Recalled`.
_RECALLED_SCHEMA = pa.schema(
    [*ID_SCHEMA, ("epoch", pa.int64()), ("counts", pa.bool_()), ("due_before_ms", pa.int64()), ("number", pa.int64())]
)

# The partition and the key of a record.
_Key = tuple[int, bytes | None]


class Limits(NamedTuple):
    """How many records the driver has in memory.

    - `found`: as single objects, before they become a run.
    - `deleted`: as keys, before the runs with the deleted rows are written again.
    - `written`: to delete in one transaction, a second's work.
    """

    found: int = 100_000
    deleted: int = 500_000
    written: int = 10_000


LIMITS = Limits()


class Recalled(NamedTuple):
    """Recalled messages by offset and epoch: whether the record counts, its due time, and its partition.

    Records of an earlier epoch do not count: their messages were accepted again since. Nor do records of an input topic
    that was created again.
    """

    offsets: Numbers
    epochs: Numbers
    counts: Mask
    dues: Numbers
    numbers: Numbers


def no_rows() -> Runs[Recalled]:
    """Return runs for such rows."""
    return Runs(Recalled, [np.int64, np.int64, np.bool_, np.int64, np.int64], keys=2)


class Reading:
    """Takes in records as they are read. After a failure, they can be read again from the same offsets."""

    def __init__(
        self, runs: Runs[Recalled], epoch: int, created_again: Collection[str], limits: Limits = LIMITS
    ) -> None:
        """Add to `runs`. `epoch` is the checkpoint's, and `created_again` are input topics that were created again.

        Records of later epochs are ignored.
        """
        self._runs = runs
        self._epoch = epoch
        self._created_again = created_again
        self._limits = limits
        self._found: dict[_Key, tuple[MessageId, Recall]] = {}
        # The keys that were deleted after their last record.
        self._deleted: set[_Key] = set()
        # How many records other writers have written, and where the first is.
        self._foreign, self._first_foreign = 0, ""

    def take(self, message: Message) -> None:
        """Take a record, or ignore one that Delayline did not write. Raises FormatMismatch."""
        number, key, value = message.partition(), message.key(), message.value()
        assert number is not None
        if value is None:
            # An earlier process has forgotten it.
            self._found.pop((number, key), None)
            self._deleted.add((number, key))
        else:
            try:
                identity, recall = read_recall(key, value)
            except ValueError:
                place = f"{message.topic()}/{number} at offset {message.offset()}"
                self._foreign, self._first_foreign = self._foreign + 1, self._first_foreign or place
                return
            if recall.epoch <= self._epoch:
                self._deleted.discard((number, key))
                self._found[number, key] = identity, recall
        if len(self._found) > self._limits.found:
            self._add()
        if len(self._deleted) > self._limits.deleted:
            self.end()

    def end(self) -> None:
        """Add the remaining records, forget the rows of deleted ones, and warn of ignored records."""
        if self._foreign:
            log.warning(
                "ignoring %d records that Delayline did not write, beginning with %s. They recall no messages. "
                "Only Delayline may write to this topic",
                self._foreign, self._first_foreign,
            )  # fmt: skip
            self._foreign, self._first_foreign = 0, ""
        self._add()
        ids = ids_of(self._ids_deleted())

        def are_deleted(source: Source, rows: Recalled) -> Mask:
            found = np.isin(rows.offsets, ids.get(source, ()))
            for row in np.flatnonzero(found).tolist():
                offset, epoch, number = (int(column[row]) for column in (rows.offsets, rows.epochs, rows.numbers))
                found[row] = (number, recall_key(epoch, id_text((*source, offset)))) in self._deleted
            return found

        # There are rarely any: this process has already forgotten the records that it deleted itself.
        if any(are_deleted(*piece).any() for piece in self._runs.find(ids).items()):
            self._runs.forget(are_deleted)
        self._deleted.clear()

    def _add(self) -> None:
        rows = []
        for (number, _), (identity, recall) in self._found.items():
            counts = recall.epoch == self._epoch and identity[0] not in self._created_again
            rows.append((*identity, recall.epoch, counts, recall.due_before_ms, number))
        self._found.clear()
        table = table_from(rows, _RECALLED_SCHEMA)
        self._runs.add(divided(table, [column.to_numpy() for column in table.columns[2:]]))

    def _ids_deleted(self) -> Iterator[MessageId]:
        for _, key in self._deleted:
            # A key that Delayline did not write has no row.
            with suppress(ValueError):
                yield read_recall_key(key)[1]
