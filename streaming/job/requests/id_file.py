"""Ids, with some numbers about each, in a file on the driver's local disk.

The copies are derived, and no batch needs them after a crash: the file has no name, and goes with the process.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from pyspark import SparkFiles

# Topic and number of an input partition.
Source = tuple[str, int]
_Column = npt.NDArray[Any]


class IdFile:
    """Columns of numbers, those of each source together, by offset, which is the first column.

    `count` is how many ids there are, and `sources` has the first row of each source and the row after its last.
    """

    def __init__(
        self, several: Iterable[tuple[Source, Sequence[_Column]]], capacity: int, kinds: Sequence[npt.DTypeLike]
    ) -> None:
        """Write at most `capacity` ids, with a column of each of `kinds`.

        Those of a source come one after the other, with ascending offsets.
        """
        self.sources: dict[Source, tuple[int, int]] = {}
        self.count = 0
        types = [np.dtype(kind) for kind in kinds]
        # Each column begins at a multiple of eight bytes.
        room = -(-max(1, capacity) // 8) * 8
        begins = np.cumsum([0, *(each.itemsize * room for each in types)]).tolist()
        # Next to Spark's own files, which have room.
        with tempfile.TemporaryFile(prefix="delayline-", dir=SparkFiles.getRootDirectory()) as file:
            os.truncate(file.fileno(), begins[-1])
            for source, columns in several:
                for begin, kind, column in zip(begins, types, columns, strict=False):
                    os.pwrite(file.fileno(), column.astype(kind).tobytes(), begin + kind.itemsize * self.count)
                first = self.sources.get(source, (self.count, 0))[0]
                self.count += len(columns[0])
                self.sources[source] = first, self.count
            self._memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        self._columns = [
            np.frombuffer(self._memory, kind, self.count, begin) for begin, kind in zip(begins, types, strict=False)
        ]

    def columns_of(self, source: Source) -> list[_Column]:
        """Return the columns of one source."""
        rows = slice(*self.sources.get(source, (0, 0)))
        return [column[rows] for column in self._columns]

    def let_go(self) -> None:
        """Give back the memory that reading has taken. The system's cache keeps the file as long as there is room."""
        self._memory.madvise(mmap.MADV_DONTNEED)
