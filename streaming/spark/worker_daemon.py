"""The Python worker daemon of the job's executors: pyspark's daemon with a short import path.

Every Python task calls `importlib.invalidate_caches()`. Below Python 3.12 this reads the directory of each archive on
the import path again (python/cpython#103200): 170 ms in each task for pyspark's zip files and Spark's jar. If pyspark
is installed, this daemon removes the archives from the path, and the installed pyspark is imported instead.

Java writes a task to its worker in small pieces. The second piece stays in the kernel until the first is acknowledged
(Nagle's algorithm), and Linux puts that off for 40 ms while the worker writes nothing. A worker of this daemon
acknowledges each piece as it reads it.
"""

from __future__ import annotations

import gc
import io
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

# As pyspark reads.
_BUFFER_BYTES = 64 * 1024


def shorten_path() -> None:
    """Remove archives from the import path if pyspark can be imported without them."""
    folders = [entry for entry in sys.path if not Path(entry).is_file()]
    if any((Path(entry) / "pyspark" / "daemon.py").is_file() for entry in folders):
        sys.path[:] = folders
        for entry in list(sys.path_importer_cache):
            if Path(entry).is_file():
                del sys.path_importer_cache[entry]


class PromptReader(io.RawIOBase):
    """Reads what `stream` reads from a TCP socket, and acknowledges it at once."""

    def __init__(self, stream: io.BufferedReader, connection: socket.socket) -> None:
        """`stream` may have read ahead of `connection`."""
        self._stream = stream
        self._connection = connection

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into `buffer`, wait only if nothing has come, and return the number of bytes."""
        count = self._stream.readinto1(buffer)
        # Linux acknowledges what has come so far, and may put off what comes next.
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return count


def read_promptly(daemon: Any) -> None:
    """Let the workers that `daemon` (`pyspark.daemon`) will fork read by `PromptReader`, on Linux."""
    main = daemon.worker_main

    def prompt_main(infile: io.BufferedReader, outfile: io.BufferedWriter) -> None:
        with socket.socket(fileno=os.dup(infile.fileno())) as connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6):
                infile = io.BufferedReader(PromptReader(infile, connection), _BUFFER_BYTES)
            main(infile, outfile)

    if hasattr(socket, "TCP_QUICKACK"):
        daemon.worker_main = prompt_main


if __name__ == "__main__":
    # A service manager sends SIGTERM to all processes of the job, which needs the workers to finish its running batch.
    # Java ends this process by closing its standard input.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    shorten_path()
    # Import the tasks' modules once, before the workers are forked.
    import pandas  # noqa: F401
    import pyarrow.compute  # noqa: F401
    import pyspark.daemon

    import conf.logs
    import sinks.ready_log.task  # noqa: F401
    import sources.intake.accept  # noqa: F401
    import state.buckets.operator  # noqa: F401
    from sinks.ready_log.writer_host import start_host

    conf.logs.configure_worker_logging()
    # A worker collects garbage after every task. Without the freeze it scans all these modules, which takes 29 ms.
    gc.freeze()
    start_host()
    read_promptly(pyspark.daemon)
    pyspark.daemon.manager()  # type: ignore[no-untyped-call]
