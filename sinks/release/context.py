"""The context that all shards of a release process share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.release.closed_topics import ClosedTopics
from sinks.release.counts import ReleaseCounts
from sinks.release.known_topics import MOST_REFUSALS
from sinks.release.waits import DEFAULT_WAITS, Waits


@dataclass(frozen=True)
class ReleaseContext:
    """The context that all shards of a release process share. `member` is the name of the process.

    After `most_refusals` of a topic in a minute, its refused records are no longer searched for.
    """

    settings: Settings
    member: str
    counts: ReleaseCounts = field(default_factory=ReleaseCounts)
    most_refusals: int = MOST_REFUSALS
    waits: Waits = DEFAULT_WAITS

    @cached_property
    def options(self) -> Mapping[str, str]:
        """The options of librdkafka's clients."""
        return librdkafka_options(self.settings.kafka)

    @cached_property
    def closed(self) -> ClosedTopics:
        """The output topics that do not take records any more."""
        return ClosedTopics(self.settings, self.options, self.waits)
