"""Forwarders with a real broker: which records they take, and that they take each once, whatever happens to them."""

from __future__ import annotations

import math
import os
import signal
import time
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from conf.errors import BrokerUnreachable
from conf.failpoints import FORWARD_POINTS
from conf.settings import Settings
from sinks.lanes.writer import LaneTaken, LaneWriter
from sinks.topics.topic_ids import input_ids
from state.claims import JOB, Claim
from state.lanes import lane_of
from state.order import ORDER
from state.shards import shard_of
from streaming.forward import engine
from streaming.forward.engine import LaneForwarder
from streaming.forward.process import ForwardProcess
from tests.eventually import assert_eventually
from tests.streaming.forward.bench import LANES, ForwardBench, ids
from tests.streaming.forward.conftest import MakeBench
from tests.thorough import some_thorough
from tests.unreadable_headers import write_unreadable


def test_what_is_due_soon_is_staged_with_a_claim_and_the_rest_is_left(bench: ForwardBench) -> None:
    bench.open_lanes()
    with bench.forwarder():
        bench.publish(3)
        bench.publish(2, headers=[("deliver-after", b"50s")])
        bench.publish(4, headers=[("deliver-after", b"2h")])
        bench.publish(2, 1)
        assert_eventually(lambda: bench.decided(p0=9, p1=2))
        assert not any(claim.is_urgent for own in bench.claims().values() for claim in own)
        bench.publish(1, 1, [("deliver-at", b"soon")])
        bench.publish(1, 1, [("delayline-cancel", b"a/0/1")])
        write_unreadable(bench.broker.bootstrap, bench.input, b"v", partition=1)
        bench.publish(1, 1)
        assert_eventually(lambda: bench.decided(p0=9, p1=6))
    assert bench.forwarded() == ids(bench.input, {0: range(5), 1: [0, 1, 5]})
    messages, claims = bench.messages(), bench.claims()
    assert {row["output_topic"] for row in messages} == {bench.settings.topics.output}
    assert any(claim.is_urgent for claim in claims[lane_of(bench.input, 1, LANES)])
    newest_due_ms = max(row["deliver_at_ms"] for row in messages)
    assert max(own[-1].due_before_ms for own in claims.values()) == newest_due_ms + 1
    assert {claim.owner for own in claims.values() for claim in own[1:]} == {"north"}


def test_chunks_are_in_the_partition_of_their_shard_in_delivery_order(bench: ForwardBench) -> None:
    bench.open_lanes()
    for number in range(30):
        bench.publish(1, number % 2, [("deliver-after", b"%ds" % (30 - number))])
    with bench.forwarder():
        assert_eventually(lambda: bench.decided(p0=15, p1=15))
    messages = bench.messages()
    assert len(messages) == 30
    shards = [shard_of(row["output_topic"], row["output_partition"], LANES) for row in messages]
    assert shards == sorted(shards)
    for partition in (0, 1):
        keys = [tuple(row[name] for name in ORDER) for row in messages if row["partition"] == partition]
        assert len(keys) == 15
        # All of a partition was read at once, so each shard's part of it is in one transaction.
        assert sum(later < earlier for earlier, later in pairwise(keys)) <= LANES - 1


@pytest.mark.parametrize("point", some_thorough(FORWARD_POINTS, always=("near-claimed",)))
def test_a_forwarder_that_is_killed_anywhere_leaves_its_successor_each_record_once(
    bench: ForwardBench, point: str
) -> None:
    bench.open_lanes()
    for _ in range(3):
        bench.publish(5)
        bench.publish(5, 1, [("deliver-after", b"1h")])
    with bench.forwarder_process(failpoint=f"{point}=kill") as process:
        if point == "lanes-revoked":
            # A second member, to which one of its lanes goes.
            assert process.stdout is not None
            assert process.stdout.readline() == "joined\n"
            with bench.forwarder("south"):
                assert process.wait(60) == -signal.SIGKILL
        assert process.wait(60) == -signal.SIGKILL
    bench.publish(5)
    with bench.forwarder():
        assert_eventually(lambda: bench.decided(p0=20, p1=15), 20)
        bench.publish(2, 1)
        assert_eventually(lambda: bench.decided(p0=20, p1=17), 20)
    assert bench.forwarded() == ids(bench.input, {0: range(20), 1: [15, 16]})


@pytest.mark.parametrize(
    "point", some_thorough(["lane-opened", "near-filled", "near-claimed"], always=("near-claimed",))
)
def test_a_forwarder_that_was_paused_takes_nothing_that_the_next_owner_has(bench: ForwardBench, point: str) -> None:
    bench.open_lanes()
    bench.publish(5)
    bench.publish(5, 1)
    with bench.forwarder_process(failpoint=f"{point}=pause") as process:
        assert_eventually(lambda: os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT), 30)
        # The job takes the lanes, as it does from an owner that makes no progress.
        writers = [bench.writer(lane) for lane in {lane_of(bench.input, number, LANES) for number in (0, 1)}]
        for writer in writers:
            assert writer.claim is not None
            present = input_ids(bench.settings)
            own = {(bench.input, each): 5 for each in (0, 1) if lane_of(bench.input, each, LANES) == writer.lane}
            writer.write(writer.claim.next("job", own, {}, present))
        before = bench.forwarded()
        os.kill(process.pid, signal.SIGCONT)
        bench.publish(5)
        bench.publish(5, 1)
        assert_eventually(lambda: bench.decided(p0=10, p1=10), 30)
        assert bench.forwarded() == sorted([*before, *ids(bench.input, {0: range(5, 10), 1: range(5, 10)})])
        for writer in writers:
            assert writer.claim is not None
            with pytest.raises(LaneTaken):
                writer.write(writer.claim)


def test_a_lane_that_the_job_has_taken_is_claimed_by_the_next_forwarder_before_a_record_comes(
    bench: ForwardBench,
) -> None:
    bench.open_lanes()
    for lane in range(LANES):
        with closing(bench.writer(lane)) as writer:
            assert writer.claim is not None
            writer.write(writer.claim.next(JOB, {}, {}, {}))
    with bench.forwarder():
        assert_eventually(lambda: all(own[-1].owner == "north" for own in bench.claims().values()))
    assert all(later.follows(earlier) for own in bench.claims().values() for earlier, later in pairwise(own))


def test_a_forwarder_with_slow_commits_says_so_and_takes_each_record_once(
    bench: ForwardBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class SlowWriter(LaneWriter):
        has_written = False

        @property
        def is_spent(self) -> bool:
            return self.has_written

        def write(self, *args: Any, **kwargs: Any) -> None:
            super().write(*args, **kwargs)
            self.has_written = True

    def warnings() -> list[str]:
        return [text for record in caplog.records if "commits are slow" in (text := record.getMessage())]

    monkeypatch.setattr(engine, "LaneWriter", SlowWriter)
    bench.open_lanes()
    with bench.forwarder():
        for count in range(1, 8):
            bench.publish(1)
            assert_eventually(lambda: bench.decided(p0=count))  # noqa: B023
            assert count > 3 or warnings() == []
    (warning,) = warnings()
    assert "raise kafka.retry.backoff.ms" in warning
    assert bench.forwarded() == ids(bench.input, {0: range(7)})


def test_two_members_share_the_lanes_and_each_gets_what_the_other_leaves(bench: ForwardBench) -> None:
    bench.open_lanes()
    with bench.forwarder() as north:
        with bench.forwarder("south") as south:
            assert_eventually(lambda: len(north.lanes) == len(south.lanes) == 1, 20)
            bench.publish(5)
            bench.publish(5, 1)
            assert_eventually(lambda: bench.decided(p0=5, p1=5))
        assert_eventually(lambda: len(north.lanes) == LANES, 20)
        bench.publish(5)
        bench.publish(5, 1)
        assert_eventually(lambda: bench.decided(p0=10, p1=10))
    assert bench.forwarded() == ids(bench.input, {0: range(10), 1: range(10)})


def test_lanes_are_left_alone_until_they_are_open_and_after_they_are_closed(bench: ForwardBench) -> None:
    bench.publish(3)
    with bench.forwarder() as forwarder:
        assert_eventually(lambda: len(forwarder.lanes) == LANES)
        time.sleep(1)
        assert bench.claims() == {}
        terms = bench.terms()
        # The terms of an epoch without claims of it.
        bench.write_terms(terms)
        time.sleep(3)
        assert bench.claims() == {}
        bench.open_lanes(terms)
        assert_eventually(lambda: bench.decided(p0=3), 20)
        # As at the start of a job: first the terms, then each lane is fenced.
        bench.write_terms(replace(terms, lanes=0))
        writers = [bench.writer(lane) for lane in range(LANES)]
        before = bench.claims()
        bench.publish(3)
        time.sleep(4)
        assert bench.claims() == before
        for writer in writers:
            assert writer.claim is not None
            writer.write(replace(writer.claim, epoch=2, decided={}, taken={}))
        bench.write_terms(replace(terms, epoch=2))
        assert_eventually(lambda: bench.decided(p0=6), 20)
    assert bench.forwarded() == ids(bench.input, {0: range(6)})


def test_a_forwarder_that_can_read_but_cannot_write_ends_after_the_limit_of_an_outage(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench("kafka.outage_limit=5s")
    bench.open_lanes()
    bench.publish(1)

    def refuse(*_: object) -> None:
        raise KafkaException(KafkaError(KafkaError.NOT_ENOUGH_REPLICAS))

    monkeypatch.setattr(LaneWriter, "write", refuse)
    given_up_s = time.monotonic() + 60
    with pytest.raises(BrokerUnreachable, match=r"lane \d: no broker answered for 5 s"):
        ForwardProcess(bench.settings, "north").run(lambda _: time.monotonic() > given_up_s)


def test_a_lane_that_is_taken_whenever_the_forwarder_has_something_to_write_is_left_to_the_batches(
    bench: ForwardBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench.open_lanes()
    write = LaneWriter.write

    # As if it could not reach the brokers of the near log, and the job had taken the lane over meanwhile.
    def refuse(writer: LaneWriter, claim: Claim, chunks: Any = (), *others: Any) -> None:
        if chunks:
            raise LaneTaken("another owner has taken it")
        write(writer, claim, {}, *others)

    with monkeypatch.context() as patch, bench.forwarder():
        patch.setattr(LaneWriter, "write", refuse)
        bench.publish(1)
        assert_eventually(lambda: "Leaving it to others for 2 s" in caplog.text)
        patch.undo()
        assert_eventually(lambda: bench.decided(p0=1))
    assert bench.forwarded() == ids(bench.input, {0: [0]})


def test_a_lane_that_was_taken_in_vain_counts_as_forwarded_once_it_has_staged_something() -> None:
    watch = SimpleNamespace(inputs=SimpleNamespace(terms="some", of_lane=lambda _: [("in", 0)]))
    lane = LaneForwarder(cast(Any, SimpleNamespace(watch=watch, settings=Settings())), 0)
    assert not lane.is_forwarding
    lane.is_reading = True
    assert lane.is_forwarding
    lane.in_doubt_until_s = math.inf
    assert not lane.is_forwarding
    lane.has_worked = True
    assert lane.is_forwarding


def test_terms_with_other_settings_hold_from_then_on(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.open_lanes()
    terms = bench.terms()
    with bench.forwarder():
        bench.publish(1)
        assert_eventually(lambda: bench.decided(p0=1))
        longer = replace(terms.settings, policy=replace(terms.settings.policy, fixed_ms=3_600_000))
        bench.write_terms(replace(terms, settings=longer))
        time.sleep(5)
        bench.publish(1)
        assert_eventually(lambda: bench.decided(p0=2))
    assert bench.forwarded() == ids(bench.input, {0: [0]})
