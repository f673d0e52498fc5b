"""A page of the message-id index: many ids of one source in offset order, each with its tick, in few bits."""

from __future__ import annotations

from array import array

import numpy as np
from pyroaring import BitMap

# A page's offsets are counted from its first in 32 bits.
REACH = 1 << 32
# A bitmap takes about this for each value that stands alone.
_START_BITS = 16


class SlotPage:
    """Ids of one source and the number of each one's tick. Never changed: a page is replaced.

    The offsets are a Roaring bitmap. Beside it, in offset order, is each id's tick, as its distance to the
    earliest one in as many bits as the farthest needs. Where ids that follow each other share ticks, one value
    stands for such a run, and a second bitmap says where runs start.
    """

    __slots__ = ("_ids", "_packed", "_starts", "first_offset", "first_tick", "last_tick")

    def __init__(self, offsets: np.ndarray, slots: np.ndarray) -> None:
        """Take `offsets` (int64, one or more, ascending, none twice, less than `REACH` apart) and the tick of each."""
        self.first_offset = int(offsets[0])
        self.first_tick, self.last_tick = int(slots.min()), int(slots.max())
        self._ids = self._starts = _bitmap(offsets - self.first_offset)
        runs = np.flatnonzero(np.diff(slots, prepend=slots[0] - 1))
        if len(runs) * (self._width + _START_BITS) < len(offsets) * self._width:
            self._starts = _bitmap(offsets[runs] - self.first_offset)
            slots = slots[runs]
        self._packed = _pack(slots - self.first_tick, self._width)

    def __len__(self) -> int:
        """How many ids it holds."""
        return len(self._ids)

    @property
    def nbytes(self) -> int:
        """Bytes of the content, as if written: bitmaps, packed ticks, and the three numbers of 8 bytes."""
        bitmaps = [self._ids] if self._starts is self._ids else [self._ids, self._starts]
        return sum(len(bitmap.serialize()) for bitmap in bitmaps) + len(self._packed) + 3 * 8

    def slot_of(self, offset: int) -> int | None:
        """Return the number of an id's tick, or None for an id that is not here."""
        at = offset - self.first_offset
        if not 0 <= at < REACH or at not in self._ids:
            return None
        bit = (self._starts.rank(at) - 1) * self._width
        octets = self._packed[bit // 8 : (bit + self._width + 7) // 8]
        return self.first_tick + (int.from_bytes(octets, "little") >> bit % 8 & (1 << self._width) - 1)

    def content(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all offsets, ascending, and the tick of each, both int64."""
        ids = _values(self._ids)
        slots = _unpack(self._packed, len(self._starts), self._width) + self.first_tick
        if self._starts is not self._ids:
            slots = slots[np.searchsorted(_values(self._starts), ids, side="right") - 1]
        return ids.astype(np.int64) + self.first_offset, slots

    @property
    def _width(self) -> int:
        """Bits of a packed tick; none where all share one."""
        return (self.last_tick - self.first_tick).bit_length()


def _bitmap(values: np.ndarray) -> BitMap:
    # From an array.array pyroaring copies memory; from a NumPy array it takes one value at a time, ten times slower.
    return BitMap(array("I", values.astype(np.uint32).tobytes()))


def _values(bitmap: BitMap) -> np.ndarray:
    return np.frombuffer(bitmap.to_array(), dtype=np.uint32)


def _pack(values: np.ndarray, width: int) -> bytes:
    """Write the low `width` bits of each value, one after the other, lowest bit first."""
    octets = values.astype("<i8").view(np.uint8).reshape(-1, 8)[:, : (width + 7) // 8]
    return np.packbits(np.unpackbits(octets, axis=1, count=width, bitorder="little"), bitorder="little").tobytes()


def _unpack(packed: bytes, count: int, width: int) -> np.ndarray:
    """Read what `_pack` wrote of `count` values."""
    bits = np.unpackbits(np.frombuffer(packed, dtype=np.uint8), count=count * width, bitorder="little")
    return bits.reshape(count, width) @ (np.int64(1) << np.arange(width))
