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
