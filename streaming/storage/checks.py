"""Checks whether the storage can be written, before anything starts that would fail on it half way."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from conf.errors import StorageFailed
from conf.settings import Settings
from streaming.storage.paths import buckets_path, local_checkpoint, local_folder, storage_path

# More than a batch writes into its logs, and too little to matter.
_PROBE_BYTES = 64 * 1024


def check_storage(settings: Settings) -> None:
    """Raise StorageFailed if `storage.path`, or a folder that exists in it, cannot be written. Leaves nothing behind.

    Checks only a local path. Another file system is checked when Spark uses it. Raises CheckpointUnreadable
    if the pointer to the checkpoint is damaged.
    """
    storage, buckets = local_folder(storage_path(settings)), local_folder(buckets_path(settings))
    if storage is None or buckets is None:
        return
    _check(storage)
    try:
        checkpoint = local_checkpoint(storage)
        # Each folder may be a separate mount.
        logs = [checkpoint / name for name in ("offsets", "commits", "state")]
        existing = [folder for folder in (checkpoint, *logs, buckets, buckets / "_delta_log") if folder.exists()]
    except OSError as problem:
        raise StorageFailed(
            f"{problem.filename} cannot be read: {problem.strerror}. Give the job's user access to all of {storage}. "
            "Then start again. Nothing was started"
        ) from problem
    for folder in existing:
        _check(folder)


def free_space(path: str) -> str:
    """Return a clause for an error: how much space is free at `path`. Empty if `path` is not on this machine."""
    folder = local_folder(path)
    if folder is None:
        return ""
    try:
        usage = shutil.disk_usage(_existing(folder))
    except OSError as problem:
        return f" (its free space is unknown: {problem.strerror})"
    return f", where {usage.free:,} of {usage.total:,} bytes are free"


def _check(folder: Path) -> None:
    existing = folder
    try:
        existing = _existing(folder)
        with tempfile.TemporaryFile(dir=existing) as probe:
            probe.write(b"\0" * _PROBE_BYTES)
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as problem:
        above = "" if existing == folder else f" (only {existing} exists)"
        raise StorageFailed(
            f"{folder}{above} is not writable: {problem.strerror or problem}. Mount it, free some space, "
            "give the job's user write access, or change storage.path. Then start again. Nothing was "
            "started"
        ) from problem


def _existing(folder: Path) -> Path:
    """Return `folder`, or the nearest parent that exists, in which `folder` would be created."""
    return next(above for above in (folder, *folder.parents) if above.exists())
