"""The health and the metrics of a forwarder: what its probes are told while it starts, waits, or stands still."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from streaming.forward.counts import ForwardCounts
from streaming.monitor.forward_metrics import ForwardMetrics, forward_health
from streaming.monitor.server import registry_of
from tests.streaming.monitor.groups import group

_LANES = {0: (True, False), 1: (False, True), 2: (False, False)}


def lane(is_reading: bool = True, is_idle: bool = False, still_s: float = 0, behind: int = 0) -> SimpleNamespace:
    stepped_s = time.monotonic() - still_s
    return SimpleNamespace(is_forwarding=is_reading or is_idle, stepped_s=stepped_s, behind=behind)


def forwarder(numbers: set[int], lanes: dict[int, SimpleNamespace], **of_group: Any) -> Any:
    own = group(**of_group)
    own.numbers = numbers
    return cast(Any, SimpleNamespace(lanes=lanes, group=own, counts=ForwardCounts()))


@pytest.mark.parametrize(
    ("assigned", "opened", "reasons"),
    [
        ({0, 1}, {0, 1}, []),
        (
            {0, 2},
            {0, 2},
            ["lanes [2] are not read or not written: the job has them, or they wait for brokers or for the job"],
        ),
        # One that another owner took is opened again in a while.
        (
            {0, 1},
            {0},
            ["lanes [1] are not read or not written: the job has them, or they wait for brokers or for the job"],
        ),
        (set(), set(), ["the process has no lanes"]),
    ],
)
def test_a_forwarder_is_ready_when_all_of_its_lanes_are_read_and_live_in_any_case(
    assigned: set[int], opened: set[int], reasons: list[str]
) -> None:
    health = forward_health(forwarder(assigned, {number: lane(*_LANES[number]) for number in opened}))
    assert (health.live, health.ready, health.reasons) == (True, not reasons, reasons)


def test_a_forwarder_that_stands_still_or_has_a_lane_that_hangs_is_not_live() -> None:
    still = forward_health(forwarder({0}, {0: lane()}, silent_s=41))
    assert (still.live, still.ready, still.reasons) == (
        False,
        False,
        ["the process has not polled its consumer group for 41 s"],
    )
    hangs = forward_health(forwarder({0, 1}, {0: lane(), 1: lane(still_s=121)}))
    reason = "lanes [1] hang: no progress for 120 s"
    assert (hangs.live, hangs.ready, hangs.reasons) == (False, False, [reason])


def test_a_forwarder_is_not_ready_while_its_group_refuses_it_or_has_members_that_forward_nothing() -> None:
    refused = forward_health(forwarder({0}, {0: lane()}, refusal="group g does not take north: full"))
    assert (refused.live, refused.ready, refused.reasons) == (True, False, ["group g does not take north: full"])
    beside = forward_health(forwarder({0}, {0: lane()}, strangers={"tool at 10.0.0.9": [1]}))
    reason = "consumer tool at 10.0.0.9 is not a forwarder, and blocks lanes [1]"
    assert (beside.live, beside.ready, beside.reasons) == (True, False, [reason])


def test_a_lane_that_nobody_reads_is_told_from_one_that_has_nothing_to_read() -> None:
    process = forwarder({0, 1, 2, 3}, {number: lane(*own, behind=number) for number, own in _LANES.items()})
    process.counts.claimed(0, 5, 1_000)
    process.counts.claimed(0, 2, 3_000)
    text = generate_latest(registry_of(ForwardMetrics(process))).decode()
    samples = {
        (sample.name.removeprefix("delayline_"), sample.labels["lane"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "lane" in sample.labels
    }
    assert {lane: samples["lane_forwarding", lane] for lane in "0123"} == {"0": 1, "1": 1, "2": 0, "3": 0}
    assert {lane: samples["lane_behind_records", lane] for lane in "0123"} == {"0": 0, "1": 1, "2": 2, "3": 0}
    assert samples["forwarded_messages_total", "0"] == 7
    assert samples["lane_last_claim_timestamp_seconds", "0"] == 3
