"""The state of the job's table of sealed buckets, as its batches report it to the metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from state.buckets.segments import Segment
from streaming.monitor.job_status import Merges


@dataclass(frozen=True)
class StepFailures:
    """Steps of maintenance of one kind: how many have failed since the start, and how many items are set aside."""

    failed: int
    set_aside: int


@dataclass(frozen=True)
class TableState:
    """The contents of the table of sealed buckets, and the merges.

    - `segments`: the segments of all `buckets`
    - `size`: bytes and files of the table, if they are known
    - `failures`: the failures of maintenance, by kind of step
    """

    segments: Sequence[Segment] = ()
    buckets: int = 0
    merges: Merges = field(default_factory=Merges)
    size: tuple[int, int] | None = None
    failures: Mapping[str, StepFailures] = field(default_factory=dict)
