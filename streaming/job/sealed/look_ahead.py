"""Reads the table of sealed buckets in the background, after a batch has stored something.

The next batch needs the result. The reading is done by then, or nearly.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from sinks.buckets.bucket_table import BucketTable
from streaming.job.requests.desk import RequestDesk
from streaming.maintenance.failures import COPY_IDS, Failures

_IDS = ("ids",)


class LookAhead:
    """Reads the newest version of the table, and copies the ids that are new in it."""

    def __init__(
        self,
        store: BucketTable,
        cancels: RequestDesk,
        start: Callable[[Callable[[], None]], Future[None]],
        failures: Failures,
    ) -> None:
        """Take the table, the desk that needs its ids, `start`, which runs a function in a thread, and `failures`.

        No other thread may use `failures` during `begin`.
        """
        self._store = store
        self._cancels = cancels
        self._start = start
        self._failures = failures
        self._version = Future[None]()
        self._version.set_result(None)
        self._ids: Future[None] | None = None
        # The version that was read last, and the table's size in it.
        self._read = -1
        self._size: tuple[int, int] | None = None

    def wait(self) -> None:
        """Wait for the version, so that the next commit need not read it again. Raises the error of the reading."""
        self._version.result()

    def begin(self) -> None:
        """Begin to read the version that was just committed."""
        self._version = self._start(self._read_version)
        # No commit waits for the ids: after a large merge, they take a while. A batch that needs missing ids reads them
        # itself, and fails if it cannot.
        if self._ids is not None and self._ids.done():
            try:
                self._ids.result()
                self._failures.remove(COPY_IDS, _IDS)
            except Exception as problem:  # noqa: BLE001, the failures decide which ends the job
                self._failures.add(COPY_IDS, _IDS, "copying the ids of sealed messages", problem)
            self._ids = None
        if self._ids is None and self._failures.is_over(COPY_IDS, _IDS):
            self._ids = self._start(self._cancels.look_ahead)

    def size(self) -> tuple[int, int] | None:
        """Return how many bytes and files the table had recently (`BucketTable.size`), without waiting.

        Returns None if that is not known. While a version is read, Delta answers no other thread: for half a second,
        and for longer after a merge.
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
