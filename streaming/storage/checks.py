"""Whether the storage can be written, asked before anything is started that would fail on it half way."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from conf.errors import StorageFailed
from conf.settings import Settings
from streaming.storage.paths import buckets_path, checkpoint_path, local_folder

# More than a batch writes into its logs, and less than anyone would miss.
_PROBE_BYTES = 64 * 1024


def check_storage(settings: Settings) -> None:
    """Raise StorageFailed if `storage.path`, or what lies in it already, cannot be written; leave nothing behind.

    Of a local path: what another file system says is known when Spark runs.
    """
    checkpoint, buckets = local_folder(checkpoint_path(settings)), local_folder(buckets_path(settings))
    if checkpoint is None or buckets is None:
        return
    # Each may be a mount of its own.
    logs = [checkpoint / name for name in ("offsets", "commits", "state")]
    for folder in (checkpoint.parent, checkpoint, *logs, buckets, buckets / "_delta_log"):
        if folder == checkpoint.parent or folder.exists():
            _check(folder)


def free_space(path: str) -> str:
    """Say in a clause how much is free where `path` lies; nothing if that is not on this machine."""
    folder = local_folder(path)
    if folder is None:
        return ""
    try:
        usage = shutil.disk_usage(_existing(folder))
    except OSError as problem:
        return f", which cannot even be asked for its free space ({problem.strerror})"
    return f", of whose {usage.total:,} bytes {usage.free:,} are free"


def _check(folder: Path) -> None:
    there = folder
    try:
        there = _existing(folder)
        with tempfile.TemporaryFile(dir=there) as probe:
            probe.write(b"\0" * _PROBE_BYTES)
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as problem:
        above = "" if there == folder else f" (of it there is {there})"
        raise StorageFailed(
            f"{folder}{above} cannot be written: {problem.strerror or problem}. Mount it, free some space, let the "
            "job's user write there, or set storage.path to another place; then start again. Nothing was begun"
        ) from problem


def _existing(folder: Path) -> Path:
    """Return `folder`, or what is nearest above it, which it would be made in."""
    return next(above for above in (folder, *folder.parents) if above.exists())
