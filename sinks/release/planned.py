"""A transaction of a shard as it is planned, before it is written."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from sinks.internal_topics.position import Position
from sinks.release.removals import Removal


@dataclass(frozen=True)
class Planned:
    """A transaction: its messages in delivery order, and the position after it.

    It also has requests for the next shard, if any, and the messages recalled for the requests that it answers.
    """

    messages: pa.Table
    position: Position
    largest_bytes: int
    passed_on: pa.Table | None = None
    recalled: tuple[Removal, ...] = ()

    @cached_property
    def topics(self) -> frozenset[str]:
        """The output topics of its messages."""
        return frozenset(self.messages.column("output_topic").unique().to_pylist())

    @property
    def last_due_ms(self) -> int:
        """When its last message is due, epoch ms; 0 without messages."""
        if not self.messages.num_rows:
            return 0
        return int(self.messages.column("deliver_at_ms")[-1].as_py())
