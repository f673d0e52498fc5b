"""The paths of a job's parts under `storage.path`."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlparse

from conf.settings import Settings


def storage_path(settings: Settings) -> str:
    """Return `storage.path`. A local path is made absolute, since the JVM has another working folder."""
    path = settings.storage.path
    return path.rstrip("/") if "://" in path or path.startswith("file:") else str(Path(path).absolute())


def checkpoint_path(settings: Settings) -> str:
    """Return the path of the query's checkpoint."""
    return f"{storage_path(settings)}/checkpoint"


def next_checkpoint_path(settings: Settings) -> str:
    """Return the path at which a new checkpoint is made, before it replaces another."""
    return f"{storage_path(settings)}/checkpoint-next"


def buckets_path(settings: Settings) -> str:
    """Return the path of the table of sealed buckets."""
    return f"{storage_path(settings)}/buckets"


def local_folder(path: str) -> Path | None:
    """Return the folder that `path` names on this machine, or None if it is the URI of another file system."""
    if path.startswith("file:"):
        return Path(unquote(urlparse(path).path))
    return None if "://" in path else Path(path)
