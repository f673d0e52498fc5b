"""The output topics of messages, and for how many partitions of each topic messages were accepted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

# The number of partitions by topic.
Needs = Mapping[str, int]


def needs_of(messages: pa.Table) -> Needs:
    """Return the output topics of `messages`, and how many partitions of each they need."""
    highest = messages.group_by("output_topic").aggregate([("output_partition", "max")])
    pairs = zip(
        highest.column("output_topic").to_pylist(), highest.column("output_partition_max").to_pylist(), strict=True
    )
    return {topic: partition + 1 for topic, partition in pairs}


def united_needs(needs: Iterable[Needs]) -> dict[str, int]:
    """Return all topics of `needs`, each with the most partitions that one of these has for it."""
    most: dict[str, int] = {}
    for each in needs:
        for topic, partitions in each.items():
            most[topic] = max(partitions, most.get(topic, 0))
    return most
