"""Lanes, among which the input partitions are divided, and the claims with which lanes begin.

A lane's claims are in the partition of the claims topic with the lane's number plus one. Partition 0 has the terms.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace

from state.checkpoint.origin import Offsets
from state.claims import JOB, Claim, Terms

# The partition of the claims topic that has the terms.
TERMS_PARTITION = 0


def lane_of(topic: str, partition: int, lanes: int) -> int:
    """Return the lane of an input partition: the partitions of a topic are in lanes next to each other."""
    return (zlib.crc32(topic.encode()) + partition) % lanes


def partition_of_lane(lane: int) -> int:
    """Return the partition of the claims topic that has the claims of `lane`."""
    return lane + 1


def first_claims(
    terms: Terms, positions: Offsets, newest: Mapping[int, Claim], topic_ids: Mapping[str, str]
) -> dict[int, Claim]:
    """Return the claim with which each lane of `terms` begins. It takes nothing.

    It says that all records below `positions` are decided, and repeats the decisions of `newest` in the same epoch.
    `newest` has the newest claim of each lane that ever existed, since a partition may have been in another lane. So
    the claim also has their leader epochs and cuts. `topic_ids` are the present ids of the input topics.
    """
    own = {lane: claim for lane, claim in newest.items() if claim.epoch == terms.epoch}
    reached = {
        (topic, int(partition)): offset
        for topic, offsets in positions.items()
        if topic in topic_ids
        for partition, offset in offsets.items()
    }
    leader_epochs: dict[tuple[str, int], int] = {}
    cut: Offsets = {}
    for claim in own.values():
        for topic, offsets in claim.positions.items():
            for number in map(int, offsets) if topic in topic_ids else ():
                decided = claim.position(topic, number, topic_ids[topic])
                if decided >= reached.get((topic, number), 0):
                    reached[topic, number] = decided
                    leader_epochs[topic, number] = claim.leader_epoch(topic, number, topic_ids[topic])
        for topic, offsets in claim.cut.items():
            if claim.topic_ids[topic] == topic_ids.get(topic):
                cut.setdefault(topic, {}).update(offsets)
    due_before_ms = max((claim.due_before_ms for claim in newest.values()), default=0)

    def first(lane: int) -> Claim:
        of_lane = {source: offset for source, offset in reached.items() if lane_of(*source, terms.lanes) == lane}
        # A lane's positions only grow, even for partitions that have moved to another lane.
        claim = own.get(lane, Claim(terms.epoch))
        claim = claim.next(JOB, of_lane, {}, topic_ids, due_before_ms, leader_epochs=leader_epochs)
        return replace(claim, cut={topic: offsets for topic, offsets in cut.items() if topic in claim.positions})

    return {lane: first(lane) for lane in range(terms.lanes)}
