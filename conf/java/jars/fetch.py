"""Fetching the jars that pip does not install.

`delayline jars` fetches them once into the environment (`<sys.prefix>/share/delayline/jars`), with the Ivy that pyspark
ships. Spark gets them as `spark.jars`. Jars of `spark.jars.packages` would also be on the path of every Python worker
and cost each task a directory scan.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from conf.errors import JarsMissing
from conf.java.jars.installed import MARKER, fingerprint, is_complete, jars_folder, jars_in
from conf.java.jars.ivy import forget, run_ivy
from conf.java.jars.jar_lock import check_locked, lock_of, locked, wrong_jars

GROUPS = ("spark", "broker")


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
        SparkUnsupported: Delayline has no list of jars for the installed Spark.
        JarsMissing: a download failed, or the jars differ from `jar_lock`.
        JavaMissing: Ivy needs Java, which was not found.
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
                forget(wrong_jars(group, partial), mirror)
            else:
                _copy(group, offline, partial)
            check_locked(group, partial)
        progress(f"{group}: {len(jars_in(folder))} jars")


@contextmanager
def _replaced(group: str, folder: Path) -> Iterator[Path]:
    """Give a new folder that takes the place of `folder`, complete, unless something is raised."""
    # Fetch next to the folder, then rename. An interrupted fetch leaves no folder that looks complete.
    partial = folder.with_name(f"{group}.partial-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        (partial / MARKER).write_text(fingerprint(group))
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _copy(group: str, offline: Path, folder: Path) -> None:
    for name in locked(group):
        # Below it in any place: as `delayline jars` keeps them, or all in one.
        jar = next(offline.rglob(name), None)
        if jar is None:
            raise JarsMissing(f"{name} is missing from {offline}. Put all files that {lock_of(group).name} lists there")
        shutil.copyfile(jar, folder / name)
