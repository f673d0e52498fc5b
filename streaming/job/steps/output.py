"""The output of a batch's state stage, as the later steps use it."""

from __future__ import annotations

from pyspark.sql import DataFrame, Row

from state.buckets.operator import SEALED
from state.buckets.segments import Segment
from streaming.job.requests.search import driver_rows


class BatchOutput:
    """Rows of `SHARD_OUTPUT_SCHEMA`: as `frame`, in Spark's cache, and without chunks of messages as `rows`.

    If it `is_spread`, the rows of a shard may be in several partitions. Otherwise they are in the partition of its
    state.
    """

    def __init__(self, frame: DataFrame, is_spread: bool = False) -> None:
        """Let Spark keep the rows of `frame` once they are computed, until `close`."""
        self.frame = frame.persist()
        self.is_spread = is_spread
        self.rows: list[Row] = []

    def compute(self) -> None:
        """Run the plan of the frame, and read its rows."""
        self.rows = driver_rows(self.frame)

    @property
    def sealed(self) -> list[Row]:
        """The rows of sealed segments."""
        return [row for row in self.rows if row["kind"] == SEALED]

    @property
    def segments(self) -> list[Segment]:
        """The metadata of the sealed segments."""
        return [Segment(**{name: row[name] for name in Segment.__dataclass_fields__}) for row in self.sealed]

    def close(self) -> None:
        """Release the cached rows."""
        self.frame.unpersist()
