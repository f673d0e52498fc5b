"""What is read of the table of sealed buckets beside the batches, after a batch has stored something.

The next batch needs it: so the reading is done when that asks, or nearly.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from sinks.buckets.bucket_table import BucketTable
from streaming.job.requests.desk import RequestDesk


class LookAhead:
    """Works out what the newest version of the table has, and copies the ids that are new in it."""

    def __init__(
        self, store: BucketTable, cancels: RequestDesk, start: Callable[[Callable[[], None]], Future[None]]
    ) -> None:
        """Take the table, who needs its ids, and `start`, which runs a function in another thread."""
        self._store = store
        self._cancels = cancels
        self._start = start
        self._version, self._ids = Future[None](), Future[None]()
        for future in (self._version, self._ids):
            future.set_result(None)
        # The version that was read last, and the table's size in it.
        self._read = -1
        self._size: tuple[int, int] | None = None

    def wait(self) -> None:
        """Wait for the version: the next commit would work it out a second time. Raises the error of the reading."""
        self._version.result()

    def begin(self) -> None:
        """Begin to read the version that was just committed."""
        self._version = self._start(self._read_version)
        # No commit waits for it: after a large merge it takes a while. A batch that needs more than is there reads it.
        if self._ids.done():
            self._ids.result()
            self._ids = self._start(self._cancels.look_ahead)

    def size(self) -> tuple[int, int] | None:
        """Return how many bytes and files the table had lately (`BucketTable.size`), and wait for nothing.

        None if that is not known. While a version is read, Delta answers nobody: for half a second, and for longer
        after a merge.
        """
        if self._version.done() and self._read != self._store.version():
            self._version.result()
            self._version = self._start(self._read_version)
        return self._size

    def _read_version(self) -> None:
        version = self._store.version()
        self._size = self._store.size()
        self._store.look_ahead()
        self._read = version
