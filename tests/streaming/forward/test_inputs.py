"""Which input partitions a lane has."""

from __future__ import annotations

from sinks.topics.topic_ids import PresentTopic
from state.claims import Terms
from state.lanes import lane_of
from streaming.forward.inputs import Inputs
from tests.messages import some_batch_settings

LANES = 3
SETTINGS = some_batch_settings(
    forbidden_outputs=("a", "b", "dead"), input_ids={"a": ["old", "new"], "b": ["b"], "former": ["f"]}
)
TERMS = Terms(1, LANES, SETTINGS)


def test_each_partition_of_a_topic_that_the_batches_read_is_in_the_lane_of_its_hash() -> None:
    present = {"a": PresentTopic("new", 5), "b": PresentTopic("b", 4), "former": PresentTopic("f", 2)}
    found = {lane: Inputs(TERMS, present).of_lane(lane) for lane in range(LANES)}
    expected = [("a", number) for number in range(5)] + [("b", number) for number in range(4)]
    assert sorted(place for places in found.values() for place in places) == expected
    for lane, places in found.items():
        assert {lane_of(*place, LANES) for place in places} <= {lane}


def test_a_topic_that_was_created_again_or_is_gone_is_not_read() -> None:
    places = [place for lane in range(LANES) for place in Inputs(TERMS, {"a": PresentTopic("old", 5)}).of_lane(lane)]
    assert places == []


def test_no_lane_has_anything_without_terms_or_beyond_the_number_of_lanes() -> None:
    present = {"a": PresentTopic("new", 50)}
    assert Inputs(None, present).of_lane(0) == []
    assert Inputs(Terms(1, 0, SETTINGS), present).of_lane(0) == []
    assert Inputs(TERMS, present).of_lane(LANES) == []
