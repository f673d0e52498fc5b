"""The paths of a job's parts under `storage.path`."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlparse

from conf.settings import Settings
from state.checkpoint.pointer import FIRST_FOLDER, folder_in, newest_pointer

BUCKETS = "buckets"
_POINTERS = "checkpoints"


def storage_path(settings: Settings) -> str:
    """Return `storage.path`. A local path is made absolute, since the JVM has another working folder."""
    path = settings.storage.path
    return path.rstrip("/") if "://" in path or path.startswith("file:") else str(Path(path).absolute())


def checkpoint_path(settings: Settings, folder: str) -> str:
    """Return the path of the checkpoint in the folder of this name."""
    return f"{storage_path(settings)}/{folder}"


def pointers_path(settings: Settings) -> str:
    """Return the path of the folder of pointers (`state.checkpoint.pointer`)."""
    return f"{storage_path(settings)}/{_POINTERS}"


def buckets_path(settings: Settings) -> str:
    """Return the path of the table of sealed buckets."""
    return f"{storage_path(settings)}/{BUCKETS}"


def is_on_s3(settings: Settings) -> bool:
    """Return whether the storage is on S3."""
    return storage_path(settings).startswith("s3a:")


def local_folder(path: str) -> Path | None:
    """Return the folder that `path` names on this machine, or None if it is the URI of another file system."""
    if path.startswith("file:"):
        return Path(unquote(urlparse(path).path))
    return None if "://" in path else Path(path)


def local_checkpoint(storage: Path) -> Path:
    """Return the folder of the current checkpoint below `storage`, a folder on this machine. It may not exist.

    For those that have no Spark. `streaming.checkpoint.current` reads the pointer on any file system. Raises
    CheckpointUnreadable.
    """
    pointers = storage / _POINTERS
    newest = newest_pointer(file.name for file in pointers.iterdir()) if pointers.is_dir() else None
    if newest is None:
        return storage / FIRST_FOLDER
    file = pointers / str(newest)
    return storage / folder_in(file.read_text(errors="replace"), str(file))
