"""Finding Java, and fetching the jars that pip does not install.

`delayline jars` fetches them once into the environment (`<sys.prefix>/share/delayline/jars`), with the Ivy that pyspark
ships. Spark gets them as `spark.jars`. Jars of `spark.jars.packages` would also be on the path of every Python worker
and cost each task a directory scan.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from conf.errors import JarsMissing, JavaMissing
from conf.java.jar_lock import check_locked, list_of, lock_of, locked, wrong_jars
from conf.java.mirror import ivy_settings

JAVA_FILES = Path(__file__).parent
GROUPS = ("spark", "broker")
# Only for a storage on S3.
S3 = "s3"
OLDEST_JAVA = 17
# Far more than a slow line needs for 60 MB.
FETCH_TIMEOUT_S = 1_800
_MARKER = "complete"


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


def fetch_jars(
    progress: Callable[[str], None] = print,
    mirror: str = "",
    offline: Path | None = None,
    groups: Sequence[str] = GROUPS,
) -> None:
    """Fetch the groups of jars that are not complete, and report each line to `progress`.

    Args:
        progress: takes the lines.
        mirror: the URL of a Maven repository to ask in place of Maven Central; a login in it is written
            `https://user:password@host/`.
        offline: a folder that has all jars, to copy them from there and ask nobody.
        groups: the groups to fetch.

    Raises:
        SparkUnsupported: there are no jars for the installed Spark.
        JarsMissing: a download failed, or brought other jars than those of `jar_lock`.
        JavaMissing: there is no Java to run Ivy.
    """
    for group in groups:
        folder = jars_folder(group)
        if is_complete(group):
            progress(f"{group}: complete in {folder}")
            continue
        progress(f"{group}: fetching into {folder}")
        with _replaced(group, folder) as partial:
            if offline is None:
                run_ivy(group, partial, progress, mirror)
                _forget(wrong_jars(group, partial), _ivy_cache(mirror))
            else:
                _copy(group, offline, partial)
            check_locked(group, partial)
        progress(f"{group}: {len(_jars_in(folder))} jars")


def java_command() -> str:
    """Return the path of a Java that is new enough: in JAVA_HOME if set (Spark uses no other), else in PATH.

    Raises JavaMissing.
    """
    java = java_path()
    version = java_version(java)
    if version < OLDEST_JAVA:
        raise JavaMissing(f"{java} is Java {version}; set JAVA_HOME to Java {OLDEST_JAVA} or newer")
    return java


def java_path() -> str:
    """Return the path of the Java that Spark uses, without checking its version. Raises JavaMissing."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")
    where = f"JAVA_HOME ({home})" if home else "PATH"
    if java is None:
        raise JavaMissing(f"no java in {where}; install Java {OLDEST_JAVA} or newer, or set JAVA_HOME to one")
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
        raise JavaMissing(f"{java} -version says {done.stderr[:200]!r}, which names no version")
    return int(match[1])


def _fetched(group: str) -> list[Path]:
    if not is_complete(group):
        how = "delayline jars --s3" if group == S3 else "delayline jars"
        raise JarsMissing(f"the {group} jars are not in {jars_folder(group)}, or of another version; run `{how}`")
    return _jars_in(jars_folder(group))


def _jars_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jar"))


def is_complete(group: str) -> bool:
    """Return whether all jars of `group` are fetched, in the versions of this Delayline. Raises SparkUnsupported."""
    marker = jars_folder(group) / _MARKER
    return marker.is_file() and marker.read_text() == _fingerprint(group)


def _fingerprint(group: str) -> str:
    return hashlib.sha256(list_of(group).read_bytes() + lock_of(group).read_bytes()).hexdigest()


@contextmanager
def _replaced(group: str, folder: Path) -> Iterator[Path]:
    """Give a new folder that takes the place of `folder`, complete, unless something is raised."""
    # Fetched beside the folder and then renamed: an interrupted fetch leaves no folder that looks complete.
    partial = folder.with_name(f"{group}.partial-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        (partial / _MARKER).write_text(_fingerprint(group))
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _copy(group: str, offline: Path, folder: Path) -> None:
    for name in locked(group):
        # Below it in any place: as `delayline jars` keeps them, or all in one.
        jar = next(offline.rglob(name), None)
        if jar is None:
            raise JarsMissing(f"{offline} has no {name}; put all files of {lock_of(group).name} there")
        shutil.copyfile(jar, folder / name)


def _ivy_cache(mirror: str) -> Path:
    """Return the folder in which Ivy keeps what it has fetched."""
    # What came from elsewhere is not the mirror's.
    return Path(os.path.expanduser("~/.ivy2")) / ("delayline-mirror" if mirror else "cache")


def _forget(jars: Sequence[str], cache: Path) -> None:
    # Ivy would take them from its cache for ever, whatever the repository has by then.
    for kept in [path for name in jars for path in cache.rglob(name)]:
        kept.unlink()


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
            # It may have ended before it reads them. What it says then is below.
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
    if code != 0 or not _jars_in(folder):
        shown = "\n".join(line for line in last if line.strip())
        raise JarsMissing(f"Ivy could not fetch the {group} jars (exit code {code}):\n{shown}")


def pyspark_jars() -> list[Path]:
    """Return the jars that pyspark ships; none if it is not installed."""
    # Importing pyspark takes a second; only its folder is needed.
    spec = importlib.util.find_spec("pyspark")
    return sorted(Path(spec.origin).parent.glob("jars/*.jar")) if spec and spec.origin else []


def _ivy_jar() -> Path:
    found = [jar for jar in pyspark_jars() if jar.name.startswith("ivy-")]
    if not found:
        raise JarsMissing("pyspark with its jars/ivy-*.jar is not installed in this Python environment")
    return found[0]
