"""When the job takes a lane over from its forwarder, and when it gives the lane back. No broker."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest

from conf.errors import CheckpointMismatch
from conf.load import load_settings
from conf.settings import Settings
from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.progress import BatchSpan
from state.claims import JOB, Claim
from state.lanes import lane_of
from streaming.job.lanes import claim_watch
from streaming.job.lanes.claim_watch import ClaimWatch
from streaming.job.steps import checks
from streaming.job.steps.checks import OutputCheck

_EPOCH, _LANES = 1, 2
_TOPIC, _ID = "in", "A"
_LANE = lane_of(_TOPIC, 0, _LANES)


@dataclass
class ClaimsTopic:
    """The claims of one lane. Stands in for `ClaimsReader`, and its `writer` for `LaneWriter`."""

    unread: list[tuple[int, Claim]] = field(default_factory=list)
    newest: Claim | None = None

    def add(self, lane: int, claim: Claim) -> None:
        self.newest = claim
        self.unread.append((lane, claim))

    def read_there(self) -> Iterator[tuple[int, Claim]]:
        yield from self.read(0)

    def read(self, _: float) -> list[tuple[int, Claim]]:
        found, self.unread = self.unread, []
        return found

    def writer(self, _: object, __: object, lane: int) -> Writer:
        return Writer(self, lane)

    def close(self) -> None:
        pass


class Writer:
    def __init__(self, topic: ClaimsTopic, lane: int) -> None:
        self._topic, self._lane = topic, lane
        self.claim = topic.newest
        self.is_spent = False

    def write(self, claim: Claim) -> None:
        self._topic.add(self._lane, claim)
        self.claim = claim

    def close(self) -> None:
        pass


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> ClaimsTopic:
    made = ClaimsTopic()
    monkeypatch.setattr(claim_watch, "ClaimsReader", lambda *_: made)
    monkeypatch.setattr(claim_watch, "LaneWriter", made.writer)
    return made


@pytest.fixture
def settings() -> Settings:
    return load_settings(None, [f"topics.input={_TOPIC}"], environ={})


def _batch(number: int, ends: int) -> BatchSpan:
    """Return batch `number`, which reads one record, up to the offset `ends`."""
    starts, read = {_TOPIC: {"0": ends - 1}}, {_TOPIC: {"0": ends}}
    return BatchSpan(CheckpointOrigin("c", _EPOCH, 1), number, 0, 0, starts, read, {_TOPIC: [_ID]})


def test_a_lane_is_taken_over_until_a_forwarder_claims_something_in_it_again(
    topic: ClaimsTopic, settings: Settings
) -> None:
    other = 1 - _LANE

    def decides(owner: str, end: int) -> None:
        before = topic.newest or Claim(_EPOCH)
        topic.add(_LANE, before.next(owner, {(_TOPIC, 0): end}, {}, {_TOPIC: _ID}))

    with closing(ClaimWatch(settings, _LANES, _EPOCH, {}, {_TOPIC: [_ID]})) as watch:
        assert watch.taken_over == {0: False, 1: False}
        decides("pod-8", 1)
        watch.wait(_batch(0, 1))
        assert (watch.taken_over, watch.is_forwarded) == ({0: False, 1: False}, True)
        # Nobody decides the record of the next batch, and the batch waits no longer than it must.
        watch.wait(_batch(1, 2))
        assert topic.newest is not None
        assert topic.newest.owner == JOB
        assert (watch.taken_over, watch.is_forwarded) == ({_LANE: True, other: False}, False)
        # The job's own claim does not count as a forwarder's.
        watch.wait(_batch(2, 3))
        assert watch.taken_over[_LANE]
        decides("pod-8", 4)
        watch.wait(_batch(3, 4))
        assert (watch.taken_over, watch.is_forwarded) == ({0: False, 1: False}, True)


def test_a_cut_ends_batches_that_read_records_of_its_topic_and_no_others(
    topic: ClaimsTopic, settings: Settings
) -> None:
    claim = Claim(_EPOCH).next("pod-8", {(_TOPIC, 0): 2}, {}, {_TOPIC: _ID})
    topic.add(_LANE, claim.found_cut("pod-8", [(_TOPIC, 0)]))
    batch = _batch(1, 2)
    with closing(ClaimWatch(settings, _LANES, _EPOCH, {}, {_TOPIC: [_ID]})) as watch:
        with pytest.raises(CheckpointMismatch, match="in/0 has lost records"):
            watch.wait(batch)
        # The replay of a batch that was cut off, once the topic is created again.
        assert watch.wait(replace(batch, starts=batch.ends)).offsets == {}


def test_a_replay_that_reads_nothing_of_a_cut_topic_may_read_other_topics(
    topic: ClaimsTopic, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "other"
    ids = {_TOPIC: [_ID], other: ["B"]}
    claim = Claim(_EPOCH).next("pod-8", {(_TOPIC, 0): 2, (other, 0): 2}, {}, {_TOPIC: _ID, other: "B"})
    for lane in range(_LANES):
        topic.add(lane, claim.found_cut("pod-8", [(_TOPIC, 0)]))
    both = replace(_batch(1, 2), ends={_TOPIC: {"0": 2}, other: {"0": 2}}, input_ids=ids)
    skipping = load_settings(None, [f"topics.input={_TOPIC},{other}", "topics.skip_expired=true"], environ={})
    # The cut topic is created again, and has no records yet.
    monkeypatch.setattr(checks, "read_bounds", lambda *_: {(_TOPIC, 0): (0, 0), (other, 0): (0, 2)})
    monkeypatch.setattr(checks, "InputWatch", lambda _: SimpleNamespace(check=lambda _: None))
    with closing(ClaimWatch(skipping, _LANES, _EPOCH, {}, ids)) as watch:
        check = OutputCheck(skipping, watch)
        with pytest.raises(CheckpointMismatch, match="in/0 has lost records"):
            check.check(both, [])
        replay = replace(both, starts={_TOPIC: {"0": 2}})
        watch.wait(replay)
        check.check(replay, [])
        # Records of the other topic are lost.
        monkeypatch.setattr(checks, "read_bounds", lambda *_: {(_TOPIC, 0): (0, 0), (other, 0): (0, 1)})
        with pytest.raises(CheckpointMismatch, match="other/0 ends at offset 1, but claims have decided"):
            check.check(replay, [])


def test_no_lane_is_taken_over_where_forwarders_are_off(topic: ClaimsTopic, settings: Settings) -> None:
    with closing(ClaimWatch(settings, 0, _EPOCH, {}, {_TOPIC: [_ID]})) as watch:
        watch.wait(_batch(0, 1))
        assert (watch.taken_over, topic.newest) == ({}, None)


def test_a_start_keeps_no_claims_but_the_newest_of_each_lane(
    topic: ClaimsTopic, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: list[weakref.ref[Claim]] = []

    def there() -> Iterator[tuple[int, Claim]]:
        claim = Claim(_EPOCH)
        for end in range(1, 101):
            claim = claim.next("pod-8", {(_TOPIC, 0): end}, {}, {_TOPIC: _ID})
            known.append(weakref.ref(claim))
            # The newest claim, this one, and the one that it replaces.
            assert sum(each() is not None for each in known) <= 3
            yield _LANE, claim

    monkeypatch.setattr(topic, "read_there", there)
    with closing(ClaimWatch(settings, _LANES, _EPOCH, {}, {_TOPIC: [_ID]})) as watch:
        assert len(known) == 100
        assert watch.wait(_batch(0, 100)).offsets == {}


def test_a_lane_without_any_claim_has_lost_them(topic: ClaimsTopic, settings: Settings) -> None:
    read, ids = {_TOPIC: {"0": 5}}, {_TOPIC: [_ID]}
    first = Claim(_EPOCH)
    topic.add(1 - _LANE, first)
    with closing(ClaimWatch(settings, _LANES, _EPOCH, {}, ids)) as watch:
        with pytest.raises(CheckpointMismatch, match=f"lost claims about all input partitions of lane {_LANE}\\."):
            watch.check_complete(read, ids, _LANES)
        topic.add(_LANE, first.next("pod-8", {(_TOPIC, 0): 5}, {}, {_TOPIC: _ID}))
        watch.look_for_urgent(0)
        watch.check_complete(read, ids, _LANES)
