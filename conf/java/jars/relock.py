"""Rewrites the locks after a version in one of the lists has changed.

`python -m conf.java.jars.relock` fetches the jars of the broker, and of the installed line of Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from conf.java.jars.ivy import run_ivy
from conf.java.jars.jar_lock import digest_of, lock_of

_GROUPS = ("spark", "broker", "s3")


def write_locks(folders: Mapping[str, Path]) -> None:
    """Write the locks of the jars in the folder of each group."""
    for group, folder in folders.items():
        jars = sorted(folder.glob("*.jar"))
        lock_of(group).write_text("".join(f"{digest_of(jar)}  {group}/{jar.name}\n" for jar in jars))


def _main() -> None:
    with TemporaryDirectory() as folder:
        folders = {group: Path(folder, group) for group in _GROUPS}
        for group, own in folders.items():
            own.mkdir()
            run_ivy(group, own, print)
        write_locks(folders)


if __name__ == "__main__":
    _main()
