"""How far forwarders are in each lane, as an operator sees it, against a real broker."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.lanes.terms import write_terms
from sinks.lanes.writer import LaneWriter
from sinks.topics.partitions import partition_counts
from sinks.topics.topic_ids import input_ids
from state.checkpoint.batch_settings import batch_settings_from
from state.checkpoint.origin import CheckpointOrigin
from state.claims import Claim, Terms
from state.lanes import lane_of
from streaming.status.broker import ask_broker
from streaming.status.formats import as_lines
from streaming.status.input_lag import PartitionLag
from streaming.status.lanes import LaneStatus, lane_statuses
from tests.streaming.status.sample_status import status_of

_EPOCH, _LANES = 5, 2
_ORIGIN = CheckpointOrigin("c", 1, 2)


def _open(settings: Settings, lanes: int = _LANES) -> dict[str, str]:
    """Write terms, and return the ids of the input topics."""
    ids = input_ids(settings)
    known = {topic: [found] for topic, found in ids.items()}
    own = batch_settings_from(settings, partition_counts(settings), range(2), _ORIGIN, input_ids=known)
    write_terms(settings, Terms(_EPOCH, lanes, own), lambda: None)
    return ids


def _claim(settings: Settings, lane: int, claim: Claim) -> None:
    with closing(LaneWriter(settings, librdkafka_options(settings.kafka), lane)) as writer:
        writer.write(claim)


def test_a_lane_has_what_its_newest_claim_of_the_epoch_has_not_decided(prepared: Settings) -> None:
    (topic,) = prepared.topics.input
    inputs = [PartitionLag(topic, number, 0, 100 + number, 0) for number in range(8)]
    assert lane_statuses(prepared, inputs) == []
    ids = _open(prepared)
    ends = {lane: [each for each in inputs if lane_of(topic, each.partition, _LANES) == lane] for lane in range(_LANES)}
    assert all(ends.values())
    assert sum(lane.undecided for lane in lane_statuses(prepared, inputs)) == sum(each.end_offset for each in inputs)
    reached = {(topic, each.partition): each.end_offset - 3 for each in ends[0]}
    _claim(prepared, 0, Claim(_EPOCH).next("north", reached, {}, ids))
    # That of an earlier epoch says nothing any more.
    _claim(prepared, 1, Claim(_EPOCH - 1).next("south", {(topic, each.partition): 50 for each in ends[1]}, {}, ids))
    assert lane_statuses(prepared, inputs) == [
        LaneStatus(0, "north", 3 * len(ends[0])),
        LaneStatus(1, "", sum(each.end_offset for each in ends[1])),
    ]
    _open(prepared, lanes=0)
    assert lane_statuses(prepared, inputs) == []


def test_the_status_has_the_lanes_and_says_nothing_of_forwarders_where_there_are_none(prepared: Settings) -> None:
    answer = ask_broker(prepared, {}, -1)
    assert (answer.lanes, answer.forwarders, answer.forward_problem) == ([], [], "")
    assert not any("forward" in line or "lane" in line for line in as_lines(replace(status_of(), broker=answer)))
    _open(prepared)
    answer = ask_broker(prepared, {}, -1)
    lines = list(as_lines(replace(status_of(), broker=answer)))
    assert "forwarders         no process runs; 0 undecided records" in lines
    assert "       1           0  -" in lines
