"""A thread that watches something until it is told to stop."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self


class Watch(threading.Thread):
    """The base of all watches; `run` ends when `_ended` is set. A context manager that starts and stops it."""

    def __init__(self, name: str) -> None:
        super().__init__(daemon=True, name=name)
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the watch, and wait until it has ended."""
        self._ended.set()
        self.join()
