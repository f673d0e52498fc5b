"""A file of numbers on the driver's local disk, mapped into memory. It has no name, and vanishes with the process."""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import Any

import numpy as np
import numpy.typing as npt
from pyspark import SparkFiles

Array = npt.NDArray[Any]


class LocalFile:
    """A file that is written once, and read through memory.

    It is open for writing until `close`. Its mapping then keeps it open until no array of it is left.
    """

    def __init__(self, size: int) -> None:
        """Begin with `size` bytes, at least one. They take disk space once they are written. Raises OSError."""
        # Next to Spark's own files, which have room.
        self._file = tempfile.TemporaryFile(  # noqa: SIM115
            prefix="delayline-", dir=SparkFiles.getRootDirectory(), buffering=0
        )
        self._file.truncate(size)
        self._memory = mmap.mmap(self._file.fileno(), 0, prot=mmap.PROT_READ)
        # How many bytes are appended.
        self.end = 0

    def write(self, array: Array, offset: int) -> None:
        """Write all of an array, from `offset` on. Raises OSError, also if the disk is full."""
        left = memoryview(array.tobytes())
        while left:
            # A disk that gets full takes a part, and refuses the next one.
            count = os.pwrite(self._file.fileno(), left, offset)
            left, offset = left[count:], offset + count

    def append(self, array: Array) -> Array:
        """Write an array behind those appended before, and return it as it is in the file. Raises OSError."""
        begin = self.end
        self.write(array, begin)
        self.end += room_of(array)
        return self.array(array.dtype, len(array), begin)

    def has_room(self, nbytes: int) -> bool:
        """Return whether `nbytes` can be appended."""
        return self.end + nbytes <= len(self._memory)

    def array(self, kind: npt.DTypeLike, count: int, offset: int) -> Array:
        """Return the `count` numbers of a `kind` from `offset` on. They are in the file, not in memory."""
        return np.frombuffer(self._memory, kind, count, offset)

    def close(self) -> None:
        """Write no more. The numbers can still be read."""
        self._file.close()

    def let_go(self) -> None:
        """Give back the memory that reading has taken. The system's cache keeps the file as long as there is room."""
        self._memory.madvise(mmap.MADV_DONTNEED)


def room_of(array: Array) -> int:
    """Return how many bytes an array takes in a file. Each begins at a multiple of eight bytes."""
    return -(-array.nbytes // 8) * 8
