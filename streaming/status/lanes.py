"""How far forwarders are in each lane, and who has it: from the claims topic."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.internal_topics.newest_record import newest_value
from sinks.lanes.terms import read_terms
from state.claims import Claim, Terms
from state.lanes import lane_of, partition_of_lane
from streaming.status.input_lag import PartitionLag

_LANES_AT_ONCE = 8


@dataclass(frozen=True)
class LaneStatus:
    """A lane: who wrote its newest claim, and how many records of its input partitions no claim has decided yet."""

    lane: int
    owner: str
    undecided: int


def lane_statuses(settings: Settings, inputs: Sequence[PartitionLag]) -> list[LaneStatus]:
    """Return the lanes; empty if forwarders take nothing. `inputs` has the ends of the partitions.

    Raises BrokerUnreachable, TopicMissing, RightMissing, CheckpointMismatch, FormatMismatch.
    """
    options = librdkafka_options(settings.kafka)
    terms = read_terms(settings, options)
    if terms is None:
        return []

    def status(lane: int) -> LaneStatus:
        value = newest_value(options, settings.claims_topic, partition_of_lane(lane))
        return _lane_status(terms, lane, None if value is None else Claim.from_bytes(value), inputs)

    with ThreadPoolExecutor(_LANES_AT_ONCE) as threads:
        return list(threads.map(status, range(terms.lanes)))


def _lane_status(terms: Terms, lane: int, claim: Claim | None, inputs: Sequence[PartitionLag]) -> LaneStatus:
    claim = claim if claim is not None and claim.epoch == terms.epoch else Claim(terms.epoch)
    undecided = 0
    for each in inputs:
        known = terms.topic_ids.get(each.topic)
        if known is not None and lane_of(each.topic, each.partition, terms.lanes) == lane:
            undecided += max(0, each.end_offset - claim.position(each.topic, each.partition, known))
    return LaneStatus(lane, claim.owner, undecided)
