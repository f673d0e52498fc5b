"""Entries of the logs of a checkpoint, as Spark writes them."""

from __future__ import annotations

import json
from pathlib import Path


def plan(checkpoint: Path, batch_id: int, clock_ms: int = 20) -> None:
    """Add a batch to the offset log."""
    (checkpoint / "offsets").mkdir(exist_ok=True)
    metadata = json.dumps({"batchTimestampMs": clock_ms, "batchWatermarkMs": 10})
    (checkpoint / "offsets" / str(batch_id)).write_text(f'v1\n{metadata}\n{{"in":{{"0":7}}}}')


def commit(checkpoint: Path, batch_id: int) -> None:
    """Add a batch to the commit log."""
    (checkpoint / "commits").mkdir(exist_ok=True)
    (checkpoint / "commits" / str(batch_id)).write_text('v1\n{"nextBatchWatermarkMs":10}')


def add_entry(folder: Path, log: str, number: int, offsets: dict[str, dict[str, int]]) -> None:
    """Add an entry with `offsets` to a log: "offsets" or "commits"."""
    (folder / log).mkdir(exist_ok=True)
    metadata = {"batchTimestampMs": 20, "batchWatermarkMs": 10, "nextBatchWatermarkMs": 10}
    (folder / log / str(number)).write_text(f"v1\n{json.dumps(metadata)}\n{json.dumps(offsets)}")
