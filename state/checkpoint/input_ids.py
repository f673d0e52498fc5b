"""Kafka's ids of the input topics: a topic that was deleted and created again has another id, and other records.

Message ids have only the topic's name. So a message of the new topic may have the id of a message of the old topic.

A topic that was read, and is no longer an input, is left out: a mark stands before its ids. Nothing records up to
which offset it was read, so it cannot come back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from state.checkpoint.origin import InputIds, Offsets

_LEFT_OUT = ""


def newest_ids(known: InputIds) -> dict[str, str]:
    """Return the last known id of each topic. The job reads the topic that has it."""
    return {topic: ids[-1] for topic, ids in known.items()}


def recreated(known: InputIds, present: Mapping[str, str]) -> list[str]:
    """Return the topics, in order of their names, with a `present` id other than the last known id."""
    return sorted(topic for topic, own in present.items() if topic in known and known[topic][-1] != own)


def with_present(known: InputIds, present: Mapping[str, str], unread: Collection[str] = ()) -> InputIds:
    """Return `known` with the `present` id of each topic as its last one.

    For an `unread` topic it replaces the last known id, since no message came from the topic with that id.
    """
    newer = {topic: own for topic, own in present.items() if known.get(topic, [])[-1:] != [own]}
    before = {topic: known.get(topic, [])[: -1 if topic in unread else None] for topic in newer}
    return known | {topic: [*before[topic], own] for topic, own in newer.items()}


def unread_topics(known: InputIds, *offsets: Offsets) -> set[str]:
    """Return the topics of `known` from which nothing was read: each of their `offsets` is 0 or missing.

    Topics that are left out were read.
    """
    unread = (topic for topic in known if not any(end for each in offsets for end in each.get(topic, {}).values()))
    return {*unread} - left_out(known)


def left_out(known: InputIds) -> set[str]:
    """Return the topics of `known` that are left out."""
    return {topic for topic, ids in known.items() if _LEFT_OUT in ids}


def with_left_out(known: InputIds, inputs: Collection[str], *offsets: Offsets) -> InputIds:
    """Return `known` with exactly those topics left out that are not `inputs` and were read, by `offsets`."""
    left = known.keys() - unread_topics(known, *offsets) - {*inputs}
    return {topic: [*[_LEFT_OUT][: topic in left], *_ids(own)] for topic, own in known.items()}


def same_topic(first: InputIds, second: InputIds, topic: str) -> bool:
    """Return whether `topic` is the same topic of Kafka in both."""
    return first.get(topic, [])[-1:] == second.get(topic, [])[-1:]


def shared_ids(known: InputIds) -> list[str]:
    """Return the topics in which two messages may have the same id: there were several topics of the name."""
    return sorted(topic for topic, ids in known.items() if len(_ids(ids)) > 1)


def with_offsets(offsets: Offsets, topics: Collection[str], new: Offsets) -> Offsets:
    """Return `offsets` with the partitions of `topics` as in `new`."""
    kept = {topic: own for topic, own in offsets.items() if topic not in topics}
    return kept | {topic: own for topic, own in new.items() if topic in topics}


def _ids(ids: list[str]) -> list[str]:
    return [each for each in ids if each != _LEFT_OUT]
