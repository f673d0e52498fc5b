"""The Python worker daemon of the job's executors: pyspark's own, with a short import path.

Every Python task calls `importlib.invalidate_caches()`, which below Python 3.12 reads the directory of each
archive on the path again (python/cpython#103200): 170 ms a task for pyspark's own zip files and Spark's jar.
The archives go off the path where pyspark is installed, which is what is imported then.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path


def shorten_path() -> None:
    """Take archives off the import path if pyspark can be had without them."""
    folders = [entry for entry in sys.path if not Path(entry).is_file()]
    if any((Path(entry) / "pyspark" / "daemon.py").is_file() for entry in folders):
        sys.path[:] = folders
        for entry in list(sys.path_importer_cache):
            if Path(entry).is_file():
                del sys.path_importer_cache[entry]


if __name__ == "__main__":
    shorten_path()
    # The workers' modules are imported before they are forked, once for all tasks.
    import pandas  # noqa: F401
    import pyarrow.compute  # noqa: F401
    from pyspark.daemon import manager

    import conf.logs
    import sinks.delivery.task  # noqa: F401
    import sources.intake.accept  # noqa: F401
    import state.buckets.operator  # noqa: F401

    conf.logs.configure_worker_logging()
    # A worker collects garbage after every task: 29 ms if all those modules are looked through, nothing if not.
    gc.freeze()
    manager()  # type: ignore[no-untyped-call]
