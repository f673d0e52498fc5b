"""Measures an application's storage on the local disk: all files, and the live files of its Delta tables."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq

_LOG = "_delta_log"
_BLOCK_BYTES = 512


def used_bytes(folder: Path) -> int:
    """Return the disk usage of `folder` in bytes, like `du`; files may appear and vanish meanwhile."""
    used = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                used += os.lstat(os.path.join(place, name)).st_blocks * _BLOCK_BYTES
    return used


def delta_tables(folder: Path) -> list[Path]:
    """Return the Delta tables in `folder`."""
    return sorted(Path(place) for place, names, _ in os.walk(folder) if _LOG in names)


def live_files(table: Path) -> dict[str, int]:
    """Return the live files of a Delta table (newest version), with their bytes.

    Reads the table's log: the last checkpoint, and the commits after it.
    """
    log = table / _LOG
    live: dict[str, int] = {}
    version, pointer = -1, log / "_last_checkpoint"
    if pointer.exists():
        version = int(json.loads(pointer.read_text())["version"])
        for part in log.glob(f"{version:020d}.checkpoint*.parquet"):
            # Nested columns that are selected by name are returned as flat columns.
            added = pq.read_table(part, columns=["add.path", "add.size"]).to_pylist()
            live |= {add["path"]: add["size"] for add in added if add["path"] is not None}
    for commit in sorted(log.glob("[0-9]*.json")):
        if int(commit.name.split(".")[0]) > version:
            for action in map(json.loads, commit.read_text().splitlines()):
                if "add" in action:
                    live[action["add"]["path"]] = action["add"]["size"]
                elif "remove" in action:
                    live.pop(action["remove"]["path"], None)
    return live
