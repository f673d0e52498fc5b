"""The lists of jars, and their locks: the SHA-256 of each jar, so that nobody runs others than were run together.

The locks (`.sha256`) have the form of `sha256sum`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from conf.errors import JarsMissing
from conf.java.spark_line import spark_line

# The folder of both.
LISTS = Path(__file__).parent


def list_of(group: str) -> Path:
    """Return the file that lists the jars of `group` for Ivy. Raises SparkUnsupported."""
    return _file_of(group, "xml")


def lock_of(group: str) -> Path:
    """Return the file with the SHA-256 of each jar of `group`. Raises SparkUnsupported."""
    return _file_of(group, "sha256")


def locked(group: str) -> dict[str, str]:
    """Return the SHA-256 of each jar of `group`, by its file's name. Raises SparkUnsupported."""
    entries = (line.split("  ", 1) for line in lock_of(group).read_text().splitlines())
    return {name.removeprefix(f"{group}/"): digest for digest, name in entries}


def wrong_jars(group: str, folder: Path) -> list[str]:
    """Return the names of the jars of `group` in `folder` with a SHA-256 that differs from the lock."""
    return [
        name for name, digest in locked(group).items() if (jar := folder / name).exists() and digest_of(jar) != digest
    ]


def check_locked(group: str, folder: Path) -> None:
    """Raise JarsMissing unless `folder` has the jars of `group`, and no others."""
    wanted = locked(group)
    found = {jar.name: digest_of(jar) for jar in folder.glob("*.jar")}
    problems = [
        *(f"{name} is missing" for name in sorted(wanted.keys() - found.keys())),
        *(f"{name} is unexpected" for name in sorted(found.keys() - wanted.keys())),
        *(
            f"{name} has the SHA-256 {found[name]} instead of {wanted[name]}"
            for name in sorted(wanted.keys() & found.keys())
            if found[name] != wanted[name]
        ),
    ]
    if problems:
        raise JarsMissing(f"the {group} jars differ from {lock_of(group).name}: {'; '.join(problems)}")


def _file_of(group: str, ending: str) -> Path:
    # The broker runs without Spark.
    return LISTS / (f"{group}.{ending}" if group == "broker" else f"{group}-{spark_line()}.{ending}")


def digest_of(jar: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with jar.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
