"""The files of a checkpoint that the judge reads, as Spark and the service write them to a local disk."""

from __future__ import annotations

import json
import os
from pathlib import Path


def begin(folder: Path, name: str, cutoff_ms: int = 0, offsets: dict[str, dict[str, int]] | None = None) -> None:
    """Write the checkpoint's origin."""
    (folder / "commits").mkdir(parents=True)
    (folder / "offsets").mkdir()
    origin = {"format": 1, "checkpoint": name, "generation": 1, "cutoff_ms": cutoff_ms, "offsets": offsets or {}}
    _write(folder / "delayline-origin.json", json.dumps(origin), 0)


def point_to(folder: Path, generation: int) -> None:
    """Write the pointer that makes the checkpoint in `folder` the current one."""
    pointers = folder.parent / "checkpoints"
    pointers.mkdir(exist_ok=True)
    _write(pointers / str(generation), json.dumps({"folder": folder.name}), 0)


def plan(folder: Path, batch_id: int, ends: dict[str, dict[str, int]], cutoff_ms: int = 10**9) -> None:
    """Write a batch into the offset log."""
    metadata = {"batchWatermarkMs": cutoff_ms, "batchTimestampMs": 7, "conf": {}}
    lines = ["v1", json.dumps(metadata), json.dumps(ends) if ends else "-", json.dumps({"offset": 3, "timestamp": 9})]
    (folder / "offsets" / str(batch_id)).write_text("\n".join(lines))


def commit(folder: Path, batch_id: int, at_ms: int) -> None:
    """Write a batch into the commit log, at `at_ms` (epoch ms)."""
    (folder / "commits" / f".{batch_id}.crc").write_text("")
    _write(folder / "commits" / str(batch_id), 'v1\n{"nextBatchWatermarkMs":7}', at_ms)


def _write(file: Path, text: str, at_ms: int) -> None:
    # A file appears with its time, as on a host with a clock that shows this time.
    new = file.with_name(f".{file.name}.new")
    new.write_text(text)
    os.utime(new, ns=(at_ms * 1_000_000, at_ms * 1_000_000))
    new.rename(file)
