"""The class archive: Spark's classes as Java has them in memory, made once at set-up, and mapped at each start.

A start of Spark loads and verifies thousands of classes, a third of its CPU time. Java writes them to a file at the end
of a training run (JEP 350), and takes them from it where its version and class path are the same; where they are not,
it loads them as ever.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from conf.java.jars import java_path, pyspark_jars, spark_jars

_NAME = "spark-classes"
_TRAINING = "streaming.spark.cds_training"
_LIMIT_S = 600
# An archive that does not fit is no news: another Java may have been installed.
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"


def cds_archive() -> Path:
    """Where it is kept: inside the Python environment, beside the jars; of another name for another Java or other jars.

    Raises JarsMissing, JavaMissing.
    """
    facts = [os.path.realpath(java_path()), *map(_fact, spark_jars()), *map(_fact, pyspark_jars())]
    fingerprint = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]
    return Path(sys.prefix) / "share" / "delayline" / f"{_NAME}-{fingerprint}.jsa"


def cds_options() -> str:
    """Return the options with which Java takes classes from the archive; none if there is no archive."""
    archive = cds_archive()
    return f"-XX:SharedArchiveFile={archive} {_QUIET}" if archive.is_file() else ""


def training_options(archive: Path) -> str:
    """Return the options with which Java writes `archive` when it ends."""
    return f"-XX:ArchiveClassesAtExit={archive} {_QUIET}"


def make_cds_archive(progress: Callable[[str], None] = print) -> None:
    """Make the archive if there is none, and say so through `progress`; without one all works, and starts slower."""
    archive = cds_archive()
    if archive.is_file():
        progress(f"classes: archived in {archive}")
        return
    progress(f"classes: archiving Spark's into {archive}")
    for other in archive.parent.glob(f"{_NAME}*"):
        other.unlink()
    partial = archive.with_suffix(f".partial-{os.getpid()}")
    try:
        done = subprocess.run(
            [sys.executable, "-m", _TRAINING, str(partial)],
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        if done.returncode == 0 and partial.is_file():
            partial.rename(archive)
        else:
            why = [f"exit code {done.returncode}", *done.stderr.strip().splitlines()][-1]
            progress(f"classes: not archived ({why}); starts are slower")
    except subprocess.TimeoutExpired:
        progress(f"classes: not archived within {_LIMIT_S} s; starts are slower")
    finally:
        partial.unlink(missing_ok=True)


def _fact(jar: Path) -> str:
    # What Java holds against the archive.
    about = jar.stat()
    return f"{jar} {about.st_size} {about.st_mtime_ns}"
