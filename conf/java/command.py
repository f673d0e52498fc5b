"""Finding Java, and the files that configure what runs in it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from conf.errors import JavaMissing

JAVA_FILES = Path(__file__).parent
OLDEST_JAVA = 17


def java_command() -> str:
    """Return the path of a Java that is new enough: in JAVA_HOME if set (Spark uses no other), else in PATH.

    Raises JavaMissing.
    """
    java = java_path()
    version = java_version(java)
    if version < OLDEST_JAVA:
        raise JavaMissing(f"{java} is Java {version}. Set JAVA_HOME to Java {OLDEST_JAVA} or newer")
    return java


def java_path() -> str:
    """Return the path of the Java that Spark uses, without checking its version. Raises JavaMissing."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")
    where = f"JAVA_HOME ({home})" if home else "PATH"
    if java is None:
        raise JavaMissing(f"no java found in {where}. Install Java {OLDEST_JAVA} or newer, or set JAVA_HOME")
    return java


def java_version(java: str) -> int:
    """Return the major version of the `java` at this path. Raises JavaMissing if it cannot be found out."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise JavaMissing(f"{java} -version failed: {error}") from error
    # Up to Java 8 the version was written 1.8.
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    if match is None:
        raise JavaMissing(f"{java} -version printed {done.stderr[:200]!r}, which contains no version")
    return int(match[1])
