"""The message-id index: which ids wait and in which time slot each is due, built from metadata alone."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from conf.errors import BucketUnreadable
from state.index.due_counts import Bounds, DueCounts, TimeSlot, slot_number, time_slot
from state.index.source_pages import PAGE_IDS, SourcePages

# The most staged ids, besides a share of the waiting ones: moving them into pages may rewrite all pages.
_MOST_STAGED = 1 << 20
# The most ids that are counted without a page: queries after each id must not write a page for each id.
_MOST_SINGLE = 4096

_NO_FLOOR = -(1 << 63)

_Source = tuple[str, int]


class MessageIndex:
    """The ids that wait, (topic, partition, offset), each in one time slot of 2^`precision_bits` ms.

    Answers the same queries as Pulsar's TimeBucket (PR 23611), which maps slot -> source -> Roaring bitmap of offsets.
    It needs fewer bytes: a source's offsets are in Roaring bitmaps, cut into pages, with the packed slots in offset
    order next to them. `benchmarks/index.py` measures both.

    Ids are added as arrays, and staged until there are many or until a query. So adding takes amortised constant time,
    even with a query after each addition.
    """

    def __init__(
        self,
        precision_bits: int,
        page_ids: int = PAGE_IDS,
        most_staged: int = _MOST_STAGED,
        most_single: int = _MOST_SINGLE,
    ) -> None:
        self._due = DueCounts(precision_bits)
        self._page_ids, self._most_staged, self._most_single = page_ids, most_staged, most_single
        self._pages: dict[_Source, SourcePages] = {}
        # Offsets and slots added since the last query, not counted yet; an id may be there twice.
        self._staged: dict[_Source, list[tuple[np.ndarray, np.ndarray]]] = {}
        self._staged_ids = 0
        # The slots of ids that are counted, but in no page.
        self._single: dict[_Source, dict[int, int]] = {}
        self._single_ids = 0
        # The number of the first slot that is not dropped.
        self._floor = _NO_FLOOR

    def __len__(self) -> int:
        """The number of ids that wait."""
        self._settle()
        return len(self._due)

    def __contains__(self, message_id: tuple[str, int, int]) -> bool:
        """Return whether this (topic, partition, offset) waits."""
        return self.slot_of(*message_id) is not None

    @property
    def nbytes(self) -> int:
        """Bytes of ids and slots, without the Python objects around them."""
        self._write_pages()
        return sum(pages.nbytes for pages in self._pages.values())

    def add(self, topic: str, partition: int, offsets: np.ndarray, deliver_at_ms: np.ndarray) -> None:
        """Add ids of one source: `offsets` (int64, 0 or more, in any order) and the due time of each, epoch ms.

        An id that waits already keeps its slot. Ids due before the last `forget_before` are left out.
        """
        self._stage((topic, partition), offsets, deliver_at_ms >> self._due.precision_bits)

    def add_entries(self, entries: Iterable[Mapping[str, Any]], precision_bits: int) -> None:
        """Add entries that `index_entries` made at `precision_bits`: all of them, or none and raise BucketUnreadable.

        Each finer slot lies within one slot of the index. A coarser slot cannot be divided, and raises ValueError: an
        index of entries with several precisions needs the coarsest.
        """
        finer_by = self._due.precision_bits - precision_bits
        if finer_by < 0:
            raise ValueError(
                f"entries of {precision_bits} bits do not fit an index of {self._due.precision_bits}: "
                f"give it the coarsest precision of the metadata"
            )
        read: dict[_Source, tuple[list[np.ndarray], list[int]]] = {}
        for entry in entries:
            offsets, numbers = read.setdefault((entry["topic"], entry["partition"]), ([], []))
            numbers.append(slot_number(entry["tick_ms"], precision_bits) >> finer_by)
            offsets.append(stored_offsets(entry))
        for source, (offsets, numbers) in read.items():
            self._stage(source, np.concatenate(offsets), np.repeat(numbers, list(map(len, offsets))))

    def slot_of(self, topic: str, partition: int, offset: int) -> TimeSlot | None:
        """Return the time slot in which an id is due, or None if it does not wait."""
        self._settle()
        number = self._number_of((topic, partition), offset)
        return None if number is None else time_slot(number, self._due.precision_bits)

    def offsets_of(self, topic: str, partition: int) -> BitMap64:
        """Return the offsets of one source that wait."""
        self._settle()
        source = topic, partition
        offsets = BitMap64(self._single.get(source, ()))
        for page_offsets in self._pages[source].offsets(self._floor) if source in self._pages else ():
            offsets |= bitmap_of(page_offsets)
        return offsets

    def before(self, instant_ms: int) -> Bounds:
        """Return how many ids are due before `instant_ms`, epoch ms; exact if a slot begins there."""
        self._settle()
        return self._due.before(instant_ms)

    def between(self, start_ms: int, end_ms: int) -> Bounds:
        """Return how many ids are due in [start_ms, end_ms), epoch ms; exact if slots begin at both ends."""
        self._settle()
        return self._due.between(start_ms, end_ms)

    def next_due(self) -> TimeSlot | None:
        """Return the earliest slot in which an id is due, or None if no id waits."""
        self._settle()
        return self._due.next_due()

    def forget_before(self, cutoff_ms: int) -> int:
        """Drop the ids with a slot that ends at or before `cutoff_ms`, epoch ms, and return their number."""
        self._write_pages()
        self._floor = max(self._floor, cutoff_ms >> self._due.precision_bits)
        dropped = self._due.forget_before(cutoff_ms)
        # Pages are rewritten once more of their ids are dropped than wait: each dropped id pays for one that stays.
        if sum(map(len, self._pages.values())) > 2 * len(self._due):
            for pages in self._pages.values():
                pages.sweep(self._floor)
            self._pages = {source: pages for source, pages in self._pages.items() if len(pages)}
        return dropped

    def _number_of(self, source: _Source, offset: int) -> int | None:
        """Return the number of the slot in which a counted id waits, or None if it does not wait."""
        number = self._single.get(source, {}).get(offset)
        if number is None and source in self._pages:
            number = self._pages[source].slot_of(offset)
        return number if number is not None and number >= self._floor else None

    def _stage(self, source: _Source, offsets: np.ndarray, slots: np.ndarray) -> None:
        waiting = slots >= self._floor
        if not waiting.any():
            return
        # Indexing with a mask copies, so the arrays remain the caller's.
        self._staged.setdefault(source, []).append((offsets[waiting], slots[waiting]))
        self._staged_ids += len(offsets)
        if self._staged_ids > self._most_staged + len(self._due) // 16:
            self._write_pages()

    def _settle(self) -> None:
        """Count the staged ids, each once: a few of them one by one, many through their pages."""
        if self._single_ids + self._staged_ids > self._most_single:
            self._write_pages()
        for source, offsets, slots in self._take_staged():
            for offset, number in zip(offsets.tolist(), slots.tolist(), strict=True):
                if self._number_of(source, offset) is None:
                    self._single.setdefault(source, {})[offset] = number
                    self._single_ids += 1
                    self._due.add(number << self._due.precision_bits, 1)

    def _write_pages(self) -> None:
        """Move all ids into pages, and count the staged ones."""
        single, self._single, self._single_ids = self._single, {}, 0
        for source, slots in single.items():
            self._add_to_pages(source, *(np.fromiter(each, np.int64) for each in (slots.keys(), slots.values())))
        added = [self._add_to_pages(*staged) for staged in self._take_staged()]
        if added:
            self._due.add_instants(np.concatenate(added) << self._due.precision_bits)

    def _add_to_pages(self, source: _Source, offsets: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """Add ids to their source's pages, and return the slots of the ids that were in no page."""
        order = np.argsort(offsets, kind="stable")
        pages = self._pages.setdefault(source, SourcePages(self._page_ids))
        return pages.add(offsets[order], slots[order], self._floor)

    def _take_staged(self) -> list[tuple[_Source, np.ndarray, np.ndarray]]:
        staged, self._staged, self._staged_ids = self._staged, {}, 0
        return [(source, *_concatenated(pieces)) for source, pieces in staged.items()]


def index_entries(messages: pa.Table, precision_bits: int) -> list[dict[str, object]]:
    """Return the index entries of a segment: a dict for each time slot and source, ordered by slot.

    Each has `tick_ms` (the slot's begin, epoch ms), `topic`, `partition`, `count`, and `offsets`: a 64-bit Roaring
    bitmap in its portable format, run-optimised. `messages` needs the due time and the message id (`state.message`).
    """
    topics = messages.column("topic").dictionary_encode().combine_chunks()
    topic_numbers, partitions = np.asarray(topics.indices), messages.column("partition").to_numpy()
    slots = messages.column("deliver_at_ms").to_numpy() >> precision_bits
    offsets = messages.column("offset").to_numpy()
    order = np.lexsort((offsets, partitions, topic_numbers, slots))
    keys = np.stack((slots, topic_numbers, partitions))[:, order]
    offsets = offsets[order]
    starts = np.flatnonzero(np.any(np.diff(keys, prepend=keys[:, :1] - 1), axis=0))
    topic_names = topics.dictionary.to_pylist()
    entries: list[dict[str, object]] = []
    bounds = pairwise([*starts.tolist(), len(offsets)])
    for (number, topic_number, partition), (start, end) in zip(keys[:, starts].T.tolist(), bounds, strict=True):
        bitmap = bitmap_of(offsets[start:end])
        entries.append(
            {
                "tick_ms": number << precision_bits,
                "topic": topic_names[topic_number],
                "partition": partition,
                "count": len(bitmap),
                "offsets": bitmap.serialize(),
            }
        )
    return entries


def offsets_by_source(
    entries: Iterable[Mapping[str, Any]], precision_bits: int, from_ms: int
) -> dict[tuple[str, int], BitMap64]:
    """Return the offsets of `index_entries` by topic and partition, without slots that end at or before `from_ms`.

    Raises BucketUnreadable if an entry is damaged.
    """
    by_source: dict[tuple[str, int], BitMap64] = {}
    for entry in entries:
        if entry["tick_ms"] + (1 << precision_bits) > from_ms:
            offsets = by_source.setdefault((entry["topic"], entry["partition"]), BitMap64())
            offsets |= bitmap_of(stored_offsets(entry))
    return by_source


def stored_offsets(entry: Mapping[str, Any]) -> np.ndarray:
    """Return the offsets of one of `index_entries`, ascending. Raises BucketUnreadable if it is damaged."""
    try:
        bitmap = BitMap64.deserialize(bytes(entry["offsets"]))
    # pyroaring raises IndexError for empty bytes, and ValueError for other bytes that are not a bitmap.
    except (IndexError, ValueError) as error:
        size = len(entry["offsets"])
        raise BucketUnreadable(f"{_named(entry)} are not a 64-bit Roaring bitmap ({size} bytes): {error}") from error
    offsets = np.frombuffer(bitmap.to_array(), dtype=np.int64)
    # Offsets ascend as unsigned numbers, so only the last one can be negative.
    if not 0 < len(offsets) == entry["count"] or offsets[-1] < 0:
        raise BucketUnreadable(
            f"{_named(entry)} are stored as {len(offsets)} offsets, but the metadata says {entry['count']}, "
            "each below 2^63"
        )
    return offsets


def _named(entry: Mapping[str, Any]) -> str:
    return f"the message ids of {entry['topic']}/{entry['partition']} due from {entry['tick_ms']} ms"


def _concatenated(pieces: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([offsets for offsets, _ in pieces]), np.concatenate([slots for _, slots in pieces])


def bitmap_of(offsets: np.ndarray) -> BitMap64:
    """Return `offsets`, int64, as a bitmap."""
    # pyroaring copies an array.array's memory; it takes a NumPy array one value at a time, several times slower.
    return BitMap64(array("Q", offsets.tobytes()))
