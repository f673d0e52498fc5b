"""A page of the message-id index: many ids of one source in offset order, each with its time slot, in few bits."""

from __future__ import annotations

from array import array

import numpy as np
from pyroaring import BitMap

# A page stores the distance of each offset from its first one in 32 bits.
PAGE_SPAN = 1 << 32
# About the bits that a bitmap takes for an isolated value.
_START_BITS = 16


class SlotPage:
    """Ids of one source, each with its slot number. Immutable: a page is replaced, not changed.

    The offsets are a Roaring bitmap. The slots are stored next to it in offset order. Each is stored as its distance
    from the page's first slot, with the number of bits that the largest distance needs. If that takes fewer bits, one
    value stands for a run of ids with the same slot, and a second bitmap marks where the runs start.
    """

    __slots__ = ("_ids", "_packed", "_starts", "first_offset", "first_slot", "last_slot")

    def __init__(self, offsets: np.ndarray, slots: np.ndarray) -> None:
        """Take `offsets` (int64, one or more, ascending, distinct, less than `PAGE_SPAN` apart) and each one's slot."""
        self.first_offset = int(offsets[0])
        self.first_slot, self.last_slot = int(slots.min()), int(slots.max())
        self._ids = self._starts = _bitmap(offsets - self.first_offset)
        runs = np.flatnonzero(np.diff(slots, prepend=slots[0] - 1))
        if len(runs) * (self._width + _START_BITS) < len(offsets) * self._width:
            self._starts = _bitmap(offsets[runs] - self.first_offset)
            slots = slots[runs]
        self._packed = _pack(slots - self.first_slot, self._width)

    def __len__(self) -> int:
        """The number of ids."""
        return len(self._ids)

    @property
    def nbytes(self) -> int:
        """Bytes of the content, as if written: bitmaps, packed slots, and the three numbers of 8 bytes."""
        bitmaps = [self._ids] if self._starts is self._ids else [self._ids, self._starts]
        return sum(len(bitmap.serialize()) for bitmap in bitmaps) + len(self._packed) + 3 * 8

    def slot_of(self, offset: int) -> int | None:
        """Return the number of an id's slot, or None if the page does not have the id."""
        at = offset - self.first_offset
        if not 0 <= at < PAGE_SPAN or at not in self._ids:
            return None
        bit = (self._starts.rank(at) - 1) * self._width
        octets = self._packed[bit // 8 : (bit + self._width + 7) // 8]
        return self.first_slot + (int.from_bytes(octets, "little") >> bit % 8 & (1 << self._width) - 1)

    def content(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all offsets, ascending, and the slot of each, both int64."""
        ids = _values(self._ids)
        slots = _unpack(self._packed, len(self._starts), self._width) + self.first_slot
        if self._starts is not self._ids:
            slots = slots[np.searchsorted(_values(self._starts), ids, side="right") - 1]
        return ids.astype(np.int64) + self.first_offset, slots

    @property
    def _width(self) -> int:
        """Bits of a packed slot; 0 where all ids share one slot."""
        return (self.last_slot - self.first_slot).bit_length()


def _bitmap(values: np.ndarray) -> BitMap:
    # pyroaring copies an array.array's memory; it takes a NumPy array one value at a time, ten times slower.
    return BitMap(array("I", values.astype(np.uint32).tobytes()))


def _values(bitmap: BitMap) -> np.ndarray:
    return np.frombuffer(bitmap.to_array(), dtype=np.uint32)


def _pack(values: np.ndarray, width: int) -> bytes:
    """Return the low `width` bits of each value, one after the other, lowest bit first."""
    octets = values.astype("<i8").view(np.uint8).reshape(-1, 8)[:, : (width + 7) // 8]
    return np.packbits(np.unpackbits(octets, axis=1, count=width, bitorder="little"), bitorder="little").tobytes()


def _unpack(packed: bytes, count: int, width: int) -> np.ndarray:
    """Return the `count` values that `_pack` packed."""
    bits = np.unpackbits(np.frombuffer(packed, dtype=np.uint8), count=count * width, bitorder="little")
    return bits.reshape(count, width) @ (np.int64(1) << np.arange(width))
