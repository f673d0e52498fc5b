"""The Python worker daemon of the job's executors: pyspark's daemon with a short import path.

Every Python task calls `importlib.invalidate_caches()`. Below Python 3.12 this reads the directory of each archive on
the import path again (python/cpython#103200): 170 ms in each task for pyspark's zip files and Spark's jar. If pyspark
is installed, this daemon removes the archives from the path, and the installed pyspark is imported instead.
"""

from __future__ import annotations

import gc
import signal
import sys
from pathlib import Path


def shorten_path() -> None:
    """Remove archives from the import path if pyspark can be imported without them."""
    folders = [entry for entry in sys.path if not Path(entry).is_file()]
    if any((Path(entry) / "pyspark" / "daemon.py").is_file() for entry in folders):
        sys.path[:] = folders
        for entry in list(sys.path_importer_cache):
            if Path(entry).is_file():
                del sys.path_importer_cache[entry]


if __name__ == "__main__":
    # A service manager sends SIGTERM to all processes of the job, which needs the workers to finish its running batch.
    # Java ends this process by closing its standard input.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    shorten_path()
    # Import the tasks' modules once, before the workers are forked.
    import pandas  # noqa: F401
    import pyarrow.compute  # noqa: F401
    from pyspark.daemon import manager

    import conf.logs
    import sinks.ready_log.task  # noqa: F401
    import sources.intake.accept  # noqa: F401
    import state.buckets.operator  # noqa: F401
    from sinks.ready_log.writer_host import start_host

    conf.logs.configure_worker_logging()
    # A worker collects garbage after every task. Without the freeze it scans all these modules, which takes 29 ms.
    gc.freeze()
    start_host()
    manager()  # type: ignore[no-untyped-call]
