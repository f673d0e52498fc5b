"""The files of a checkpoint that the judge reads, as Spark and the service write them to a local disk."""

from __future__ import annotations

import json
from pathlib import Path


def begin(folder: Path, name: str, cutoff_ms: int = 0, offsets: dict[str, dict[str, int]] | None = None) -> None:
    """Write the checkpoint's origin."""
    (folder / "commits").mkdir(parents=True)
    (folder / "offsets").mkdir()
    origin = {"format": 1, "checkpoint": name, "generation": 1, "cutoff_ms": cutoff_ms, "offsets": offsets or {}}
    (folder / "delayline-birth.json").write_text(json.dumps(origin))


def plan(folder: Path, batch_id: int, cutoff_ms: int, ends: dict[str, dict[str, int]]) -> None:
    """Write a batch into the offset log."""
    metadata = {"batchWatermarkMs": cutoff_ms, "batchTimestampMs": 7, "conf": {}}
    lines = ["v1", json.dumps(metadata), json.dumps(ends) if ends else "-", json.dumps({"offset": 3, "timestamp": 9})]
    (folder / "offsets" / str(batch_id)).write_text("\n".join(lines))


def commit(folder: Path, batch_id: int) -> None:
    """Write a batch into the commit log."""
    (folder / "commits" / f".{batch_id}.crc").write_text("")
    (folder / "commits" / str(batch_id)).write_text('v1\n{"nextBatchWatermarkMs":7}')
