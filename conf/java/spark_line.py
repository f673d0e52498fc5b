"""The line of Spark that is installed: which jars go with it, and where it has a class that moved between lines.

This starts no Spark, and imports no pyspark, which takes a second.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

from conf.errors import SparkUnsupported

# The version of pyspark that the jars of each line (`spark-<line>.xml`) were run with. Patch versions matter.
LINES = {"4.0": "4.0.4", "4.1": "4.1.1"}
_STREAMING = "org.apache.spark.sql.execution.streaming"
# The package of the classes that read and write checkpoint files.
_CHECKPOINT_PACKAGE = {"4.0": _STREAMING, "4.1": f"{_STREAMING}.checkpointing"}


@cache
def spark_line() -> str:
    """Return the line of the installed pyspark, a key of `LINES`. Raises SparkUnsupported."""
    try:
        installed = version("pyspark")
    except PackageNotFoundError as problem:
        raise SparkUnsupported("pyspark is not installed in this Python environment") from problem
    line = ".".join(installed.split(".")[:2])
    if LINES.get(line) != installed:
        raise SparkUnsupported(
            f"pyspark {installed} is installed. This Delayline requires {' or '.join(LINES.values())}"
        )
    return line


def checkpoint_class(name: str) -> str:
    """Return the full name of one of Spark's classes for checkpoint files. Raises SparkUnsupported."""
    return f"{_CHECKPOINT_PACKAGE[spark_line()]}.{name}"
