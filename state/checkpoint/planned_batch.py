"""One entry of Spark's offset log, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

from state.checkpoint.origin import Offsets

# A host's clock may be behind the clock of the newest batch by as much. Up to this the job waits, with a warning.
TOLERANCE_MS = 60_000


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
