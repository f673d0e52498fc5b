"""A file of numbers on the driver's local disk, mapped into memory. It has no name, and vanishes with the process."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from pyspark import SparkFiles

from conf.errors import StorageFailed
from streaming.storage.checks import free_space

Array = npt.NDArray[Any]


class LocalFile:
    """A file that is written once, and read through memory.

    It is open for writing until `close`. Its mapping then keeps it open until no array of it is left.
    """

    def __init__(self, size: int) -> None:
        """Begin with `size` bytes, at least one. They take disk space once they are written. Raises StorageFailed."""
        # Next to Spark's own files, which have room.
        self._folder = SparkFiles.getRootDirectory()
        with self._refusals_named():
            self._file = tempfile.TemporaryFile(prefix="delayline-", dir=self._folder, buffering=0)  # noqa: SIM115
            self._file.truncate(size)
        self._memory = mmap.mmap(self._file.fileno(), 0, prot=mmap.PROT_READ)
        # How many bytes are appended.
        self.end = 0

    def write(self, array: Array, offset: int) -> None:
        """Write all of an array, from `offset` on. Raises StorageFailed, also if the disk is full."""
        left = memoryview(array.tobytes())
        with self._refusals_named():
            while left:
                # A disk that gets full takes a part, and refuses the next one.
                count = os.pwrite(self._file.fileno(), left, offset)
                left, offset = left[count:], offset + count

    def append(self, array: Array) -> Array:
        """Write an array behind those appended before, and return it as it is in the file. Raises StorageFailed."""
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

    @contextmanager
    def _refusals_named(self) -> Iterator[None]:
        try:
            yield
        except OSError as problem:
            raise StorageFailed(
                f"the ids of messages, which requests need, could not be written in {self._folder}"
                f"{free_space(self._folder)} ({problem.strerror}). Free space there, or set spark.local.dir to a "
                "folder with more, and run the same command again. Nothing is lost"
            ) from problem

    def close(self) -> None:
        """Write no more. The numbers can still be read."""
        self._file.close()

    def let_go(self) -> None:
        """Give back the memory that reading has taken. The system's cache keeps the file as long as there is room."""
        self._memory.madvise(mmap.MADV_DONTNEED)


def room_of(array: Array) -> int:
    """Return how many bytes an array takes in a file. Each begins at a multiple of eight bytes."""
    return -(-array.nbytes // 8) * 8
