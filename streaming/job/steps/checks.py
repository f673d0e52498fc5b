"""Checks of a batch's output, before any of it is stored or staged."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Row

from conf.errors import CutoffMismatch
from conf.settings import Settings
from state.buckets.operator import KEPT, SEALED
from state.checkpoint.progress import BatchSpan
from streaming.job.inputs.input_loss import read_bounds, warn_of_input_loss
from streaming.job.inputs.input_watch import InputWatch
from streaming.job.lanes.claim_watch import ClaimWatch


class OutputCheck:
    """Compares the output of a state stage, and the input that it has read, with the plan of the batch."""

    def __init__(self, settings: Settings, claims: ClaimWatch) -> None:
        self._settings, self._claims = settings, claims
        self._input = InputWatch(settings)

    def check(self, span: BatchSpan, rows: Iterable[Row]) -> None:
        """Check the rows of the state stage, and the input topics. Warn if records were deleted unread.

        Raises CutoffMismatch; CheckpointMismatch if an input topic is another one, or lacks records that claims have
        decided.
        """
        check_cutoffs(rows, span.cutoff_ms)
        self._input.check(span)
        # Without `skip_expired`, Spark has ended the query instead.
        if self._settings.topics.skip_expired and span.starts != span.ends:
            bounds = read_bounds(self._settings, span.batch_id)
            self._claims.check_ends_of_batch({source: end for source, (_, end) in bounds.items()}, span)
            warn_of_input_loss(bounds, span, self._claims.taken)


def check_cutoffs(rows: Iterable[Row], cutoff_ms: int) -> None:
    """Raise CutoffMismatch if the rows of a batch violate invariant 2 or 3."""
    for row in rows:
        if row["cutoff_ms"] != cutoff_ms:
            raise CutoffMismatch(
                f"shard {row['shard']} ran with cutoff {row['cutoff_ms']}, but its batch has {cutoff_ms}"
            )
        if row["kind"] in (SEALED, KEPT) and row["count"] and row["min_deliver_at_ms"] < cutoff_ms:
            raise CutoffMismatch(f"shard {row['shard']} kept a message that was due at {row['min_deliver_at_ms']}")
