"""The rows of ids that earlier batches have stored: which messages are cancelled, and which have a name.

They are copied from the table to the local disk once: in the background during the first batches, or when the first
request comes. A query of the table would cost each batch half a second of Spark, and more with many rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sinks.buckets.bucket_table import BucketTable
from state.buckets.cancelled import CancelledIds, cancelled_columns
from state.buckets.id_rows import id_table
from state.buckets.parts import IdRows
from state.cancel import NONE_REPLACED, MessageId, Successor, requests_of
from state.checkpoint.origin import CheckpointOrigin, by_partition
from state.kinds import Mask
from state.message_ids import Ids, contains_mask, id_text, ids_in, is_below
from state.names import HASH_BYTES, NAMED_SCHEMA, name_columns
from streaming.job.requests.runs import Numbers, Runs, Source, divided

_HASH = f"S{HASH_BYTES}"
# Names have no source: a lookup of a name knows no partition.
_NAMES: Source = ("", 0)
# The fraction of old rows from which on it is worth writing a run again.
_OLD = 0.125


class _Cancelled(NamedTuple):
    """Cancelled messages by offset: the bucket of the batch, the last due time (epoch ms), and the successor.

    The successor is 0 for a message without one (`_number_of`). If an input topic was created again, an id that was
    cancelled in several batches belongs to several messages.
    """

    offsets: Numbers
    buckets: Numbers
    dues: Numbers
    successors: Numbers


class _Named(NamedTuple):
    """Names by their hashes, with the columns of `NAMED_SCHEMA`, but a number for the topic.

    If several messages got a name, the newest has it. If a message repeats, its last occurrence counts. Its row is
    needed for as long as any other row of the name: without it, an earlier holder would have the name again.
    """

    hashes: npt.NDArray[Any]
    buckets: Numbers
    partitions: Numbers
    offsets: Numbers
    dues: Numbers
    untils: Numbers
    keeps: Mask
    topics: Numbers


class _Keeping(NamedTuple):
    """Messages that keep or kept their names, by offset: the hash of the name, and until when its row is needed."""

    offsets: Numbers
    hashes: npt.NDArray[Any]
    untils: Numbers


class StoredIds:
    """The ids that were stored before the running batch. Not thread-safe."""

    def __init__(self, store: BucketTable) -> None:
        """Take the table. Nothing is read yet."""
        self._store = store
        self._is_open = False
        self.close()

    def open(self, before_bucket: int, origin: CheckpointOrigin) -> None:
        """Read the ids that batches before the one of `before_bucket` have stored, unless they are read already.

        A lost batch of a checkpoint before the one of `origin` may have stored names of records that are read again.
        These names do not count.
        """
        if self._is_open:
            return
        self._is_open = True
        for ids in self._store.ids_before(IdRows.CANCELLED, before_bucket):
            self._add_cancelled(ids)
        for names in self._store.ids_before(IdRows.NAMED, before_bucket):
            self._add_names(names.filter(pa.array(~_are_read_again(names, origin))))

    def add(
        self,
        cancelled: pa.Table,
        names: pa.Table,
        bucket: int,
        replaced: Mapping[MessageId, Successor] = NONE_REPLACED,
    ) -> None:
        """Add the ids that the batch of `bucket` stores (`CANCELLED_SCHEMA`, `NAMED_SCHEMA`), with those `replaced`."""
        if self._is_open:
            self._add_cancelled(id_table(bucket, cancelled_columns(cancelled, replaced)))
            self._add_names(id_table(bucket, name_columns(names)))

    def _add_cancelled(self, ids: pa.Table) -> None:
        texts = ids.column("name")
        successors = np.zeros(ids.num_rows, dtype=np.int64)
        for row in np.flatnonzero(np.asarray(pc.is_valid(texts))).tolist():
            successors[row] = _number_of(texts[row].as_py())
        offsets, buckets, dues = (ids.column(name).to_numpy() for name in ("offset", "bucket", "max_deliver_at_ms"))
        self._cancelled.add(divided(ids, _Cancelled(offsets, buckets, dues, successors)))

    def _add_names(self, ids: pa.Table) -> None:
        hashes = _array_of(ids.column("name").to_pylist())
        encoded = ids.column("topic").combine_chunks().dictionary_encode()
        numbers = [self._topics.setdefault(topic, len(self._topics)) for topic in encoded.dictionary.to_pylist()]
        columns = ("bucket", "partition", "offset", "deliver_at_ms", "max_deliver_at_ms")
        buckets, partitions, offsets, dues, untils = (ids.column(name).to_numpy() for name in columns)
        keeps = np.asarray(ids.column("keeps").fill_null(False))
        topics = np.array(numbers, dtype=np.int64)[encoded.indices.to_numpy()]
        rows = _Named(hashes, buckets, partitions, offsets, dues, untils, keeps, topics)
        self._named.add([(_NAMES, rows)])
        keeping = _Keeping(*(each[keeps] for each in (rows.offsets, hashes, rows.untils)))
        self._keeping.add(divided(ids.filter(pa.array(keeps)), keeping))

    def cancelled_among(self, ids: Ids) -> CancelledIds:
        """Return the cancelled messages among `ids`."""
        found = self._cancelled.find(ids)
        offsets = {source: rows.offsets for source, rows in found.items()}
        return CancelledIds(offsets, {source: rows.buckets for source, rows in found.items()})

    def moved_among(self, ids: Ids) -> Ids:
        """Return the messages among `ids` that a batch has moved and staged."""
        found = self._cancelled.find(ids).items()
        return {source: rows.offsets[rows.successors < 0] for source, rows in found if (rows.successors < 0).any()}

    def replaced_by(self, requests: pa.Table) -> dict[MessageId, MessageId]:
        """Return the messages that `requests` (`REQUEST_SCHEMA`) have replaced by the stored rows, with the new ids."""
        successors = {
            (*source, offset): number
            for source, rows in self._cancelled.find(ids_in(requests)).items()
            for offset, number in zip(rows.offsets.tolist(), rows.successors.tolist(), strict=True)
        }
        return {
            request.asked: request.id
            for request in requests_of(requests)
            if successors.get(request.asked) == _number_of(id_text(request.id).encode())
        }

    def named_among(self, names: Iterable[bytes], from_ms: int) -> pa.Table:
        """Return which messages have one of `names` (`state.names.named`), as a table of `NAMED_SCHEMA`.

        Rows that are useless since `from_ms` (epoch ms) are left out.
        """
        found = self._named.find({_NAMES: np.unique(_array_of(names))})
        if _NAMES not in found:
            return NAMED_SCHEMA.empty_table()
        rows = found[_NAMES]
        topics = pa.array(list(self._topics), pa.string()).take(pa.array(rows.topics))
        columns = [_hashes_in(rows.hashes), topics, rows.partitions, rows.offsets, rows.dues, rows.untils, rows.keeps]
        return pa.table(columns, names=NAMED_SCHEMA.names).cast(NAMED_SCHEMA).filter(pa.array(rows.untils >= from_ms))

    def keeping_among(self, ids: Ids) -> pa.Table:
        """Return which messages among `ids` keep their names, as a table of `NAMED_SCHEMA`."""
        kept = (_hashes_in(rows.hashes) for rows in self._keeping.find(ids).values())
        named = self.named_among((each for hashes in kept for each in hashes.to_pylist()), 0)
        # Another message may have the name by now.
        return named.filter(pa.array(contains_mask(named, ids))).filter(pc.field("keeps"))

    def forget(self, before_ms: int, old_below: Mapping[tuple[str, int], int]) -> None:
        """Forget the names and cancelled ids that are useless since `before_ms`, epoch ms.

        A message that was cancelled must also be below the offset that `old_below` has for its input partition.
        """
        self._cancelled.forget(
            lambda source, rows: (rows.dues < before_ms) & (rows.offsets < old_below.get(source, 0)), _OLD
        )
        self._named.forget(lambda _, rows: rows.untils < before_ms, _OLD)
        self._keeping.forget(lambda _, rows: rows.untils < before_ms, _OLD)

    def close(self) -> None:
        """Release the files. The next use opens them again from the table."""
        self._is_open = False
        self._cancelled = Runs(_Cancelled, [np.int64] * 4)
        kinds: list[npt.DTypeLike] = [_HASH, np.int64, np.int32, *[np.int64] * 3, np.bool_, np.int32]
        self._named = Runs(_Named, kinds, lasting=_Named._fields.index("untils"))
        # If an input topic was created again, two messages may have the same id.
        self._keeping = Runs(_Keeping, [np.int64, _HASH, np.int64], keys=2)
        self._topics: dict[str, int] = {}


def _number_of(successor: bytes) -> int:
    """Return a number for a successor, as the table has it: below 0 for a due time, and a hash for a replacement."""
    if successor.isdigit():
        return -1 - int(successor)
    return int.from_bytes(blake2b(successor, digest_size=8).digest()) >> 1 | 1


def _array_of(hashes: Iterable[bytes]) -> npt.NDArray[Any]:
    return np.frombuffer(b"".join(hashes), dtype=_HASH)


def _hashes_in(array: npt.NDArray[Any]) -> pa.Array:
    # Not as a list: that would lose zero bytes at the end.
    return pa.Array.from_buffers(pa.binary(HASH_BYTES), len(array), [None, pa.py_buffer(array.tobytes())])


def _are_read_again(names: pa.Table, origin: CheckpointOrigin) -> Mask:
    """Return which rows a lost batch has stored for records that the checkpoint of `origin` reads.

    Ignores the offsets read since, which differ from one process to the next: an input topic that was created again
    starts with low offsets.
    """
    is_earlier = names.column("bucket").to_numpy() < origin.first_bucket
    return np.asarray(is_earlier & ~is_below(names, by_partition(origin.offsets)))
