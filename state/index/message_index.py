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
from state.index.due_counts import Bounds, DueCounts, TimeSlot, slot_number, time_slot
from state.index.source_pages import SourcePages

# Ids that are staged, beyond a share of those that are there: to take them in may write all pages anew.
_MOST_STAGED = 1 << 20
# Ids that are kept beside the pages: a question after each id must not write a page for each.
_MOST_SINGLE = 4096

_NO_FLOOR = -(1 << 63)

_Source = tuple[str, int]


class MessageIndex:
    """Ids that wait, (topic, partition, offset), each in one tick of 2^`precision_bits` ms.

    It answers what Pulsar's TimeBucket (PR 23611) answers, which maps tick -> source -> Roaring bitmap of offsets,
    in fewer bytes: a source has its offsets in Roaring bitmaps, cut into pages, and beside them the ticks in offset
    order, packed. `benchmarks/index.py` measures the two.

    Ids come in by arrays, and are staged until there are many or until a question is asked. So adding takes
    amortised constant time, and so does asking after each.
    """

    def __init__(self, precision_bits: int) -> None:
        self._due = DueCounts(precision_bits)
        self._pages: dict[_Source, SourcePages] = {}
        # Offsets and ticks that no question was asked about, not counted yet; an id may be there twice.
        self._staged: dict[_Source, list[tuple[np.ndarray, np.ndarray]]] = {}
        self._staged_ids = 0
        # The ticks of ids that are counted, but in no page.
        self._single: dict[_Source, dict[int, int]] = {}
        self._single_ids = 0
        # The number of the first tick that is not forgotten.
        self._floor = _NO_FLOOR

    def __len__(self) -> int:
        """How many ids wait."""
        self._settle()
        return len(self._due)

    def __contains__(self, message_id: tuple[str, int, int]) -> bool:
        """Whether this (topic, partition, offset) waits."""
        return self.slot_of(*message_id) is not None

    @property
    def nbytes(self) -> int:
        """Bytes of ids and ticks, without Python's objects around them."""
        self._write_pages()
        return sum(pages.nbytes for pages in self._pages.values())

    def add(self, topic: str, partition: int, offsets: np.ndarray, deliver_at_ms: np.ndarray) -> None:
        """Take in ids of one source: int64 `offsets`, 0 or more, and when each is due, epoch ms; in any order.

        An id that waits already keeps its tick. What is due before the last `forget_before` is left out.
        """
        self._stage((topic, partition), offsets, deliver_at_ms >> self._due.precision_bits)

    def add_entries(self, entries: Iterable[Mapping[str, Any]], precision_bits: int) -> None:
        """Take in what `index_entries` made at `precision_bits`: all of it, or nothing and `BucketUnreadable`.

        Finer ticks than the index has go into its own, which hold them whole. Coarser ones it cannot tell apart, so
        that an index of rows of several precisions has the coarsest.
        """
        finer_by = self._due.precision_bits - precision_bits
        if finer_by < 0:
            raise ValueError(
                f"entries of {precision_bits} bits do not fit an index of {self._due.precision_bits}: "
                f"make it with the coarsest precision of the metadata"
            )
        read: dict[_Source, tuple[list[np.ndarray], list[int]]] = {}
        for entry in entries:
            offsets, numbers = read.setdefault((entry["topic"], entry["partition"]), ([], []))
            numbers.append(slot_number(entry["tick_ms"], precision_bits) >> finer_by)
            offsets.append(_offsets(entry))
        for source, (offsets, numbers) in read.items():
            self._stage(source, np.concatenate(offsets), np.repeat(numbers, list(map(len, offsets))))

    def slot_of(self, topic: str, partition: int, offset: int) -> TimeSlot | None:
        """Return when an id is due, to precision, or None when it does not wait."""
        self._settle()
        number = self._number_of((topic, partition), offset)
        return None if number is None else time_slot(number, self._due.precision_bits)

    def offsets_of(self, topic: str, partition: int) -> BitMap64:
        """Return the offsets that wait of one source."""
        self._settle()
        source = topic, partition
        offsets = BitMap64(self._single.get(source, ()))
        for some in self._pages[source].offsets(self._floor) if source in self._pages else ():
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

    def next_due(self) -> TimeSlot | None:
        """Return the earliest tick in which something is due, or None when nothing waits."""
        self._settle()
        return self._due.next_due()

    def forget_before(self, cutoff_ms: int) -> int:
        """Drop the ids whose tick ends at or before `cutoff_ms`, epoch ms, and return how many those are."""
        self._write_pages()
        self._floor = max(self._floor, cutoff_ms >> self._due.precision_bits)
        gone = self._due.forget_before(cutoff_ms)
        # Pages are written anew when as many ids are forgotten as wait: each pays for one other.
        if sum(map(len, self._pages.values())) > 2 * len(self._due):
            for pages in self._pages.values():
                pages.sweep(self._floor)
            self._pages = {source: pages for source, pages in self._pages.items() if len(pages)}
        return gone

    def _number_of(self, source: _Source, offset: int) -> int | None:
        """Return the number of the tick in which a counted id waits."""
        number = self._single.get(source, {}).get(offset)
        if number is None and source in self._pages:
            number = self._pages[source].slot_of(offset)
        return number if number is not None and number >= self._floor else None

    def _stage(self, source: _Source, offsets: np.ndarray, slots: np.ndarray) -> None:
        waiting = slots >= self._floor
        if not waiting.any():
            return
        # What is picked is copied: the arrays remain the caller's.
        self._staged.setdefault(source, []).append((offsets[waiting], slots[waiting]))
        self._staged_ids += len(offsets)
        if self._staged_ids > _MOST_STAGED + len(self._due) // 16:
            self._write_pages()

    def _settle(self) -> None:
        """Count what is staged, each id once: a few of them one by one, many by their pages."""
        if self._single_ids + self._staged_ids > _MOST_SINGLE:
            self._write_pages()
        for source, offsets, slots in self._take_staged():
            for offset, number in zip(offsets.tolist(), slots.tolist(), strict=True):
                if self._number_of(source, offset) is None:
                    self._single.setdefault(source, {})[offset] = number
                    self._single_ids += 1
                    self._due.add(number << self._due.precision_bits, 1)

    def _write_pages(self) -> None:
        """Put all ids into pages, and count those that were staged."""
        single, self._single, self._single_ids = self._single, {}, 0
        for source, slots in single.items():
            self._add_to_pages(source, *(np.fromiter(each, np.int64) for each in (slots.keys(), slots.values())))
        fresh = [self._add_to_pages(*staged) for staged in self._take_staged()]
        if fresh:
            self._due.add_instants(np.concatenate(fresh) << self._due.precision_bits)

    def _add_to_pages(self, source: _Source, offsets: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """Return the ticks of those that were in no page."""
        order = np.argsort(offsets, kind="stable")
        return self._pages.setdefault(source, SourcePages()).add(offsets[order], slots[order], self._floor)

    def _take_staged(self) -> list[tuple[_Source, np.ndarray, np.ndarray]]:
        staged, self._staged, self._staged_ids = self._staged, {}, 0
        return [(source, *_concatenated(pieces)) for source, pieces in staged.items()]


def index_entries(messages: pa.Table, precision_bits: int) -> list[dict[str, object]]:
    """Return what a segment's metadata says of its ids: a dict for each tick and source, in the order of ticks.

    Each has `slot_ms` (where the tick begins, epoch ms), `topic`, `partition`, `count`, and `offsets`: a 64-bit
    Roaring bitmap in its portable format, run-optimised. `messages` needs the columns of these, as in `state.message`.
    """
    topics = messages.column("topic").dictionary_encode().combine_chunks()
    names, partitions = np.asarray(topics.indices), messages.column("partition").to_numpy()
    slots = messages.column("deliver_at_ms").to_numpy() >> precision_bits
    offsets = messages.column("offset").to_numpy()
    order = np.lexsort((offsets, partitions, names, slots))
    keys = np.stack((slots, names, partitions))[:, order]
    offsets = offsets[order]
    starts = np.flatnonzero(np.any(np.diff(keys, prepend=keys[:, :1] - 1), axis=0))
    words = topics.dictionary.to_pylist()
    entries: list[dict[str, object]] = []
    bounds = pairwise([*starts.tolist(), len(offsets)])
    for (number, name, partition), (start, end) in zip(keys[:, starts].T.tolist(), bounds, strict=True):
        bitmap = _bitmap(offsets[start:end])
        entries.append(
            {
                "tick_ms": number << precision_bits,
                "topic": words[name],
                "partition": partition,
                "count": len(bitmap),
                "offsets": bitmap.serialize(),
            }
        )
    return entries


def offsets_by_source(
    entries: Iterable[Mapping[str, Any]], precision_bits: int, from_ms: int
) -> dict[tuple[str, int], BitMap64]:
    """Return the offsets of `index_entries`, by topic and partition, but for ticks that end before `from_ms`.

    Raises BucketUnreadable if an entry is damaged.
    """
    found: dict[tuple[str, int], BitMap64] = {}
    for entry in entries:
        if entry["tick_ms"] + (1 << precision_bits) > from_ms:
            known = found.setdefault((entry["topic"], entry["partition"]), BitMap64())
            known |= _bitmap(_offsets(entry))
    return found


def _offsets(entry: Mapping[str, Any]) -> np.ndarray:
    """Read an entry's bitmap, and check it against the count beside it."""
    try:
        bitmap = BitMap64.deserialize(bytes(entry["offsets"]))
    # pyroaring raises IndexError for no bytes at all, and ValueError for what is no bitmap.
    except (IndexError, ValueError) as error:
        size = len(entry["offsets"])
        raise BucketUnreadable(f"{_named(entry)} are no 64-bit Roaring bitmap in {size} bytes: {error}") from error
    offsets = np.frombuffer(bitmap.to_array(), dtype=np.int64)
    # Ascending without a sign: a negative one could only be the last.
    if not 0 < len(offsets) == entry["count"] or offsets[-1] < 0:
        raise BucketUnreadable(
            f"{_named(entry)} are stored as {len(offsets)} offsets; the metadata says {entry['count']}, below 2^63"
        )
    return offsets


def _named(entry: Mapping[str, Any]) -> str:
    return f"the message ids of {entry['topic']}/{entry['partition']} due from {entry['tick_ms']} ms"


def _concatenated(pieces: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([offsets for offsets, _ in pieces]), np.concatenate([slots for _, slots in pieces])


def _bitmap(offsets: np.ndarray) -> BitMap64:
    # pyroaring copies an array.array's memory; it takes a NumPy array one value at a time, several times slower.
    return BitMap64(array("Q", offsets.tobytes()))
