"""The lock of the jars: the SHA-256 of each, so that nobody runs others than those that were run together.

After a change of a version in `spark.xml`, `broker.xml` or `s3.xml`, `python -m conf.java.jar_lock` fetches the jars
and writes the locks anew. Their form is that of `sha256sum`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from conf.errors import JarsMissing

# Those that only some need are locked in a file of their own.
_LOCKS = {"spark": "jars.sha256", "broker": "jars.sha256", "s3": "s3.sha256"}


def lock_of(group: str) -> Path:
    """Return the file with the SHA-256 of each jar of `group`."""
    return Path(__file__).with_name(_LOCKS[group])


def locked(group: str) -> dict[str, str]:
    """Return the SHA-256 of each jar of `group`, by its file's name."""
    entries = (line.split("  ", 1) for line in lock_of(group).read_text().splitlines())
    return {name.removeprefix(f"{group}/"): digest for digest, name in entries if name.startswith(f"{group}/")}


def check_locked(group: str, folder: Path) -> None:
    """Raise JarsMissing unless `folder` has the jars of `group`, and no others."""
    wanted = locked(group)
    found = {jar.name: _digest(jar) for jar in folder.glob("*.jar")}
    problems = [
        *(f"{name} is not there" for name in sorted(wanted.keys() - found.keys())),
        *(f"{name} is there, and is not one of them" for name in sorted(found.keys() - wanted.keys())),
        *(
            f"{name} has the SHA-256 {found[name]}, and should have {wanted[name]}"
            for name in sorted(wanted.keys() & found.keys())
            if found[name] != wanted[name]
        ),
    ]
    if problems:
        raise JarsMissing(f"the {group} jars are not those of {lock_of(group).name}: {'; '.join(problems)}")


def write_lock(folders: Mapping[str, Path]) -> None:
    """Write the locks of the jars in the folder of each group."""
    lines: dict[Path, list[str]] = {}
    for group, folder in folders.items():
        jars = sorted(folder.glob("*.jar"))
        lines.setdefault(lock_of(group), []).extend(f"{_digest(jar)}  {group}/{jar.name}\n" for jar in jars)
    for lock, of_lock in lines.items():
        lock.write_text("".join(of_lock))


def _digest(jar: Path) -> str:
    with jar.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _main() -> None:
    from conf.java.jars import run_ivy

    with TemporaryDirectory() as folder:
        folders = {group: Path(folder, group) for group in _LOCKS}
        for group, own in folders.items():
            own.mkdir()
            run_ivy(group, own, print)
        write_lock(folders)


if __name__ == "__main__":
    _main()
