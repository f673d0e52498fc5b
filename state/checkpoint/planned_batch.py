"""One entry of Spark's offset log, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

from state.checkpoint.origin import Offsets


@dataclass(frozen=True)
class PlannedBatch:
    """One entry of the offset log. Instants are epoch ms.

    `offsets` is the offset up to which the batch reads each input partition; empty before any data. The cutoff is the
    batch's watermark, and never below the cutoff of the checkpoint origin.
    """

    batch_id: int
    clock_ms: int
    cutoff_ms: int
    offsets: Offsets
