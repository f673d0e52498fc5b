"""The message-id index: which ids wait and in which tick each is due, to precision, built from metadata alone."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from conf.errors import BucketUnreadable
from state.due_counts import Bounds, DueCounts, Tick, tick, tick_number
from state.source_pages import SourcePages

# Ids that are taken in at once, beyond a share of those that are there: it may write all pages anew.
_MOST_STAGED = 1 << 20

_NO_FLOOR = -(1 << 63)
_LAST_OFFSET = (1 << 63) - 1

_Source = tuple[str, int]


class MessageIndex:
    """Ids that wait, (topic, partition, offset), each in one tick of 2^`precision_bits` ms.

    It answers what Pulsar's TimeBucket (PR 23611) answers, which maps tick -> source -> Roaring bitmap of offsets,
    in fewer bytes: a source has its offsets in Roaring bitmaps, cut into pages, and beside them the ticks in offset
    order, packed. `benchmarks/index.py` measures the two.

    Ids come in by arrays, and are staged until there are many or until a question is asked. So adding takes
    amortised constant time, while a question after each single id would write a page for each.
    """

    def __init__(self, precision_bits: int) -> None:
        self._due = DueCounts(precision_bits)
        self._sources: dict[_Source, SourcePages] = {}
        self._staged: dict[_Source, list[tuple[np.ndarray, np.ndarray]]] = {}
        self._staged_ids = 0
        # The number of the first tick that is not forgotten.
        self._floor = _NO_FLOOR

    def __len__(self) -> int:
        """How many ids wait."""
        self._settle()
        return len(self._due)

    def __contains__(self, message_id: tuple[str, int, int]) -> bool:
        """Whether this (topic, partition, offset) waits."""
        return self.tick_of(*message_id) is not None

    @property
    def nbytes(self) -> int:
        """Bytes of ids and ticks, without Python's objects around them."""
        self._settle()
        return sum(pages.nbytes for pages in self._sources.values())

    def add(self, topic: str, partition: int, offsets: np.ndarray, deliver_at_ms: np.ndarray) -> None:
        """Take in ids of one source: int64 `offsets`, 0 or more, and when each is due, epoch ms; in any order.

        An id that waits already keeps its tick. What is due before the last `forget_before` is left out.
        """
        self._stage((topic, partition), offsets, deliver_at_ms >> self._due.precision_bits)

    def add_entries(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Take in what `index_entries` made, of the same precision: all of it, or nothing and `BucketUnreadable`."""
        read: dict[_Source, list[tuple[np.ndarray, np.ndarray]]] = {}
        for entry in entries:
            offsets = _offsets(entry)
            number = tick_number(entry["tick_ms"], self._due.precision_bits)
            read.setdefault((entry["topic"], entry["partition"]), []).append((offsets, np.full(len(offsets), number)))
        for source, pieces in read.items():
            self._stage(source, *_concatenated(pieces))

    def tick_of(self, topic: str, partition: int, offset: int) -> Tick | None:
        """Return when an id is due, to precision, or None when it does not wait."""
        self._settle()
        pages = self._sources.get((topic, partition))
        number = pages.tick_of(offset) if pages else None
        return tick(number, self._due.precision_bits) if number is not None and number >= self._floor else None

    def offsets_of(self, topic: str, partition: int) -> BitMap64:
        """Return the offsets that wait of one source."""
        self._settle()
        offsets = BitMap64()
        pages = self._sources.get((topic, partition))
        for some in pages.offsets(self._floor) if pages else ():
            offsets |= _bitmap(some)
        return offsets

    def before(self, instant_ms: int) -> Bounds:
        """Return how many are due before `instant_ms`, epoch ms; exact where a tick begins there."""
        self._settle()
        return self._due.before(instant_ms)

    def between(self, start_ms: int, end_ms: int) -> Bounds:
        """Return how many are due in [start_ms, end_ms), epoch ms; exact where ticks begin at both."""
        self._settle()
        return self._due.between(start_ms, end_ms)

    def next_due(self) -> Tick | None:
        """Return the earliest tick in which something is due, or None when nothing waits."""
        self._settle()
        return self._due.next_due()

    def forget_before(self, cutoff_ms: int) -> int:
        """Drop the ids whose tick ends at or before `cutoff_ms`, epoch ms, and return how many those are."""
        self._settle()
        self._floor = max(self._floor, cutoff_ms >> self._due.precision_bits)
        gone = self._due.forget_before(cutoff_ms)
        # Pages are written anew when as many ids are forgotten as wait: each pays for one other.
        if sum(map(len, self._sources.values())) > 2 * len(self._due):
            for pages in self._sources.values():
                pages.sweep(self._floor)
            self._sources = {source: pages for source, pages in self._sources.items() if len(pages)}
        return gone

    def _stage(self, source: _Source, offsets: np.ndarray, ticks: np.ndarray) -> None:
        waiting = ticks >= self._floor
        if not waiting.any():
            return
        # What is picked is copied: the arrays remain the caller's.
        self._staged.setdefault(source, []).append((offsets[waiting], ticks[waiting]))
        self._staged_ids += len(offsets)
        if self._staged_ids > _MOST_STAGED + len(self._due) // 16:
            self._settle()

    def _settle(self) -> None:
        """Take in what is staged."""
        if not self._staged:
            return
        staged, self._staged, self._staged_ids = self._staged, {}, 0
        fresh = []
        for source, pieces in staged.items():
            offsets, ticks = _concatenated(pieces)
            order = np.argsort(offsets, kind="stable")
            fresh.append(self._sources.setdefault(source, SourcePages()).add(offsets[order], ticks[order], self._floor))
        self._due.add_instants(np.concatenate(fresh) << self._due.precision_bits)


def index_entries(messages: pa.Table, precision_bits: int) -> list[dict[str, object]]:
    """Return what a segment's metadata says of its ids: a dict for each tick and source, in the order of ticks.

    Each has `tick_ms` (where the tick begins, epoch ms), `topic`, `partition`, `count`, and `offsets`: a 64-bit
    Roaring bitmap in its portable format, run-optimised. `messages` needs the columns of these, as in `conf.message`.
    """
    topics = messages.column("topic").dictionary_encode().combine_chunks()
    names, partitions = np.asarray(topics.indices), messages.column("partition").to_numpy()
    ticks = messages.column("deliver_at_ms").to_numpy() >> precision_bits
    offsets = messages.column("offset").to_numpy()
    order = np.lexsort((offsets, partitions, names, ticks))
    keys = np.stack((ticks, names, partitions))[:, order]
    offsets = offsets[order]
    starts = np.flatnonzero(np.any(np.diff(keys, prepend=keys[:, :1] - 1), axis=0))
    entries: list[dict[str, object]] = []
    for start, end in pairwise([*starts.tolist(), len(offsets)]):
        number, name, partition = keys[:, start].tolist()
        bitmap = _bitmap(offsets[start:end])
        entries.append(
            {
                "tick_ms": number << precision_bits,
                "topic": topics.dictionary[name].as_py(),
                "partition": partition,
                "count": len(bitmap),
                "offsets": bitmap.serialize(),
            }
        )
    return entries


def _offsets(entry: Mapping[str, Any]) -> np.ndarray:
    """Read an entry's bitmap, and check it against the count beside it."""
    where = f"the message ids of {entry['topic']}/{entry['partition']} due from {entry['tick_ms']} ms"
    try:
        bitmap = BitMap64.deserialize(bytes(entry["offsets"]))
    # pyroaring raises IndexError for no bytes at all, and ValueError for what is no bitmap.
    except (IndexError, ValueError) as error:
        raise BucketUnreadable(
            f"{where} are not a 64-bit Roaring bitmap ({len(entry['offsets'])} bytes): {error}"
        ) from error
    if len(bitmap) != entry["count"] or not bitmap or bitmap.max() > _LAST_OFFSET:
        raise BucketUnreadable(f"{where} are not the {entry['count']} of the metadata: {len(bitmap)} are stored")
    return np.frombuffer(bitmap.to_array(), dtype=np.int64)


def _concatenated(pieces: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([offsets for offsets, _ in pieces]), np.concatenate([ticks for _, ticks in pieces])


def _bitmap(offsets: np.ndarray) -> BitMap64:
    # pyroaring copies an array.array's memory; it takes a NumPy array one value at a time, several times slower.
    return BitMap64(array("Q", offsets.tobytes()))
