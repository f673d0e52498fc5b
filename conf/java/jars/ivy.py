"""Running Ivy, which pyspark ships: it downloads the jars of a group from Maven Central or a mirror."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from conf.errors import JarsMissing
from conf.java.command import java_command
from conf.java.jars.installed import jars_in, pyspark_jars
from conf.java.jars.jar_lock import list_of
from conf.java.jars.mirror import ivy_settings

# Far more than a slow line needs for 60 MB.
FETCH_TIMEOUT_S = 1_800


def run_ivy(group: str, folder: Path, progress: Callable[[str], None], mirror: str = "") -> None:
    """Fetch the jars of `group` into `folder`, from Maven Central or a `mirror`.

    Raises SparkUnsupported, JarsMissing, JavaMissing.
    """
    command = [
        *(java_command(), "-jar", str(_ivy_jar()), "-ivy", str(list_of(group))),
        *("-retrieve", f"{folder}/[artifact]-[revision](-[classifier]).[ext]"),
        # Some (snappy-java, scala-logging) are OSGi bundles, a type of its own for Ivy.
        *("-types", "jar", "bundle"),
        *("-cache", str(_ivy_cache(mirror))),
    ]
    settings = ivy_settings(mirror, group) if mirror else ""
    if mirror:
        # They may have a password, and a file would stay if this process is killed.
        command += ["-settings", "/dev/stdin"]
    last: deque[str] = deque(maxlen=20)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as ivy:
        assert ivy.stdin is not None
        assert ivy.stdout is not None
        # Also ends the loop below, which reads until Ivy ends.
        limit = threading.Timer(FETCH_TIMEOUT_S, ivy.kill)
        limit.start()
        try:
            # Ivy may have ended before it reads the settings. The loop below reads its error messages.
            with suppress(BrokenPipeError), ivy.stdin:
                ivy.stdin.write(settings)
            for line in ivy.stdout:
                last.append(line.rstrip())
                if match := re.match(r"downloading \S*/(\S+\.jar) ", line):
                    progress(f"{group}: {match[1]}")
            code = ivy.wait()
        except BaseException:
            ivy.kill()
            raise
        finally:
            limit.cancel()
    if code != 0 or not jars_in(folder):
        shown = "\n".join(line for line in last if line.strip())
        raise JarsMissing(f"Ivy could not fetch the {group} jars (exit code {code}):\n{shown}")


def forget(jars: Sequence[str], mirror: str) -> None:
    """Remove `jars` from Ivy's cache of the repository that it has used."""
    # Otherwise Ivy would always take them from its cache, even if the repository has other files by then.
    for kept in [path for name in jars for path in _ivy_cache(mirror).rglob(name)]:
        kept.unlink()


def _ivy_cache(mirror: str) -> Path:
    """Return the folder in which Ivy keeps the files that it has fetched."""
    # A mirror has a cache of its own, because jars from other repositories may differ.
    return Path(os.path.expanduser("~/.ivy2")) / ("delayline-mirror" if mirror else "cache")


def _ivy_jar() -> Path:
    found = [jar for jar in pyspark_jars() if jar.name.startswith("ivy-")]
    if not found:
        raise JarsMissing("pyspark with its jars/ivy-*.jar is not installed in this Python environment")
    return found[0]
