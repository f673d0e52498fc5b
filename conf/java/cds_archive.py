"""The class archive: Spark's classes as Java holds them in memory, written once at set-up and mapped at each start.

A start of Spark loads and verifies thousands of classes, which takes a third of its CPU time. At the end of a training
run Java writes them to a file (JEP 350). It uses the file if its version and class path are the same, and otherwise
loads the classes as usual.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from conf.java.command import java_path
from conf.java.jars.installed import pyspark_jars, spark_jars

_NAME = "spark-classes"
_TRAINING = "streaming.spark.cds_training"
_LIMIT_S = 600
# No warning for an archive that does not fit: another Java may have been installed.
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
# Java 17 maps an archive at a random address by default, and so patches a copy of each page: 180 MB.
_IN_PLACE = "-XX:+UnlockDiagnosticVMOptions -XX:ArchiveRelocationMode=0"


def cds_archive() -> Path:
    """Return the path of the archive, which is next to the jars. Its name depends on Java and the jars.

    Raises JarsMissing, JavaMissing.
    """
    facts = [os.path.realpath(java_path()), *map(_fact, spark_jars()), *map(_fact, pyspark_jars())]
    fingerprint = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]
    return Path(sys.prefix) / "share" / "delayline" / f"{_NAME}-{fingerprint}.jsa"


def cds_options() -> str:
    """Return the Java options that use the archive, or "" if the archive does not exist."""
    archive = cds_archive()
    return f"-XX:SharedArchiveFile={archive} {_IN_PLACE} {_QUIET}" if archive.is_file() else ""


def training_options(archive: Path) -> str:
    """Return the Java options that write `archive` when Java ends."""
    return f"-XX:ArchiveClassesAtExit={archive} {_QUIET}"


def make_cds_archive(progress: Callable[[str], None] = print) -> None:
    """Write the archive if it is missing, and report to `progress`. Without it, everything works but starts slower."""
    archive = cds_archive()
    if archive.is_file():
        progress(f"classes: already archived in {archive}")
        return
    progress(f"classes: writing an archive of Spark's classes to {archive}")
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
            progress(f"classes: no archive was written ({why}). Starts take longer")
    except subprocess.TimeoutExpired:
        progress(f"classes: no archive was written within {_LIMIT_S} s. Starts take longer")
    finally:
        partial.unlink(missing_ok=True)


def _fact(jar: Path) -> str:
    # Java compares these with the archive. A layer of an image keeps whole seconds only.
    about = jar.stat()
    return f"{jar} {about.st_size} {int(about.st_mtime)}"
