"""Where the parts of a job lie beneath `storage.path`."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlparse

from conf.settings import Settings


def storage_path(settings: Settings) -> str:
    """Return `storage.path`; a local one absolute, since the JVM runs in a folder of its own."""
    path = settings.storage.path
    return path.rstrip("/") if "://" in path or path.startswith("file:") else str(Path(path).absolute())


def checkpoint_path(settings: Settings) -> str:
    """Return where the query's checkpoint lies."""
    return f"{storage_path(settings)}/checkpoint"


def next_checkpoint_path(settings: Settings) -> str:
    """Return where a checkpoint is made that is to take the place of another."""
    return f"{storage_path(settings)}/checkpoint-next"


def buckets_path(settings: Settings) -> str:
    """Return where the table of sealed buckets lies."""
    return f"{storage_path(settings)}/buckets"


def local_folder(path: str) -> Path | None:
    """Return the folder that `path` names on this machine's file system, or None if it is a URI of another."""
    if path.startswith("file:"):
        return Path(unquote(urlparse(path).path))
    return None if "://" in path else Path(path)
