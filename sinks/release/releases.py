"""The messages that a shard has released: for requests, for the position, and for metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from sinks.internal_topics.position import Position
from sinks.release.context import ReleaseContext
from sinks.release.lateness import LatenessWindow
from sinks.release.recently_released import RecentlyReleased
from sinks.release.reports import Offsets
from sinks.release.wall_clock import now_ms


class Releases:
    """Notes the messages that a shard releases. `recent` has the ones that it has released recently."""

    def __init__(self, context: ReleaseContext) -> None:
        self.recent = RecentlyReleased(context.settings.topics.dead_letter)
        self._context = context
        self._lateness = LatenessWindow()

    def add(self, messages: pa.Table, replaced: Mapping[int, str], offsets: Offsets, released_ms: int) -> None:
        """Add the messages of a transaction (`ring.OnReleased`)."""
        self.recent.add(messages, replaced, offsets, released_ms)
        self._lateness.add(messages.column("deliver_at_ms"), released_ms)
        self._context.counts.add(messages, replaced, released_ms)

    def signed(self, position: Position) -> Position:
        """Return `position` with who writes it, when, and how late messages were released lately."""
        clock_ms = now_ms()
        lateness = self._lateness.quantiles(clock_ms)
        return replace(position, member=self._context.member, at_ms=clock_ms, lateness=lateness)
