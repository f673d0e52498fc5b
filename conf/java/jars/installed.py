"""The jars that are there: those that pyspark ships, and those that `delayline jars` has fetched."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path

from conf.errors import JarsMissing
from conf.java.jars.jar_lock import list_of, lock_of

# Only for a storage on S3.
S3 = "s3"
# In the folder of a group, once it is complete.
MARKER = "complete"


def jars_folder(group: str) -> Path:
    """Return the folder of the jars of `group` ("spark", "broker" or "s3"), in the Python environment."""
    return Path(sys.prefix) / "share" / "delayline" / "jars" / group


def spark_jars() -> list[Path]:
    """Return the jars of Spark's Kafka connector and of Delta, for `spark.jars`.

    Raises SparkUnsupported, JarsMissing.
    """
    return _fetched("spark")


def broker_jars() -> list[Path]:
    """Return the jars of the embedded broker. Raises JarsMissing."""
    return _fetched("broker")


def s3_jars() -> list[Path]:
    """Return the jars of Hadoop's S3 client and Spark's checkpoint file manager for it.

    Raises SparkUnsupported, JarsMissing.
    """
    return _fetched(S3)


def pyspark_jars() -> list[Path]:
    """Return the jars that pyspark ships; none if it is not installed."""
    # Importing pyspark takes a second; only its folder is needed.
    spec = importlib.util.find_spec("pyspark")
    return sorted(Path(spec.origin).parent.glob("jars/*.jar")) if spec and spec.origin else []


def is_complete(group: str) -> bool:
    """Return whether all jars of `group` are fetched, in the versions of this Delayline. Raises SparkUnsupported."""
    marker = jars_folder(group) / MARKER
    return marker.is_file() and marker.read_text() == fingerprint(group)


def fingerprint(group: str) -> str:
    """Return what tells the versions of the jars of `group` from others. Raises SparkUnsupported."""
    return hashlib.sha256(list_of(group).read_bytes() + lock_of(group).read_bytes()).hexdigest()


def _fetched(group: str) -> list[Path]:
    if not is_complete(group):
        how = "delayline jars --s3" if group == S3 else "delayline jars"
        raise JarsMissing(
            f"the {group} jars are missing from {jars_folder(group)}, or have another version. Run `{how}`"
        )
    return jars_in(jars_folder(group))


def jars_in(folder: Path) -> list[Path]:
    """Return the jars in a folder, by name."""
    return sorted(folder.glob("*.jar"))
