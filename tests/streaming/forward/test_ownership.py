"""Who takes a record: a model of forwarders, of the job, and of the broker's part for both.

The broker of the model is in memory. It fences, it loses transactions, and it commits some without saying so. All else
is the real code: a forwarder's lane, claims, and the facts read from them. Each record must be taken exactly once, by a
forwarder or by a batch, whatever dies when; and a batch that is replayed must leave out the same records.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from conf.settings import Settings
from state.checkpoint.batch_settings import batch_settings_from
from state.checkpoint.origin import CheckpointOrigin, as_offsets
from state.claims import JOB, Claim, Terms
from state.decided import Claims
from state.lanes import first_claims, lane_of
from streaming.forward.lane import Lane, Place
from tests.streaming.forward.lane_broker import MOST_LANES, Broker, Failed, Fenced, Outcome, Record, Writer

_IDS = {"in": "A", "other": "B"}
_PLACES: list[Place] = [("in", 0), ("in", 1), ("in", 2), ("other", 0)]
_BATCH_SETTINGS = batch_settings_from(Settings(), {}, (0,), CheckpointOrigin("c", 1, 1))
_OUTCOMES: tuple[Outcome, ...] = ("lost", "committed", "committed", "committed", "unreported")


@dataclass
class Forwarder:
    """A forwarder's lane, and the claim that it is about to write, if it is."""

    writer: Writer
    lane: Lane
    next_claim: Claim | None = None


@dataclass
class Batch:
    """A batch with recorded offsets, and the records that it left out, once it has run."""

    starts: dict[Place, int]
    ends: dict[Place, int]
    left_out: set[Record] | None = None


@dataclass
class Job:
    """The facts that a running job knows: the claims that it has read in each lane, and the lanes that it has taken."""

    claims: Claims = field(default_factory=lambda: Claims(1))
    read: dict[int, int] = field(default_factory=dict)
    writers: dict[int, Writer] = field(default_factory=dict)


class World:
    """Forwarders, some of them dead without knowing it, and a job that dies again and again."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.broker = Broker()
        self.terms = Terms(1, 0, _BATCH_SETTINGS)
        self.ends = dict.fromkeys(_PLACES, 0)
        self.records: set[Record] = set()
        self.forwarders: list[Forwarder] = []
        self.planned = dict.fromkeys(_PLACES, 0)
        self.batch: Batch | None = None
        self.batched: set[Record] = set()
        self.job = Job()
        self.start_job(chance.randint(0, MOST_LANES))

    def step(self) -> None:
        """Let somebody do something."""
        weights: dict[Callable[[], None], int] = {
            self.publish: 6,
            self.open_forwarder: 4,
            self.read: 8,
            self.skip: 1,
            self.prepare_claim: 6,
            self.commit_claim: 6,
            self.plan_batch: 3,
            self.read_claims: 6,
            self.take_over: 4,
            self.run_batch: 6,
            self.restart: 1,
            self.change_lanes: 1,
            self.delete_claims: 1,
        }
        (does,) = self.chance.choices([*weights], [*weights.values()])
        does()
        # No owner takes records that another one has.
        assert len(set(self.broker.near)) == len(self.broker.near), does.__name__
        assert not self.batched.intersection(self.broker.near), does.__name__

    def finish(self) -> None:
        """Let the batches take all that is left, and count."""
        for _ in range(2):
            if self.batch is None:
                self.batch, self.planned = Batch(self.planned, dict(self.ends)), dict(self.ends)
            for lane in range(MOST_LANES):
                # The first try may find that a forwarder has fenced the job.
                for _ in range(2):
                    self.take_over(lane, "committed")
                self.read_claims(lane, 1_000)
            self.run_batch(is_cut=False)
            assert self.batch is None
        assert self.batched.symmetric_difference(self.broker.near) == self.records

    # The input.

    def publish(self) -> None:
        place = self.chance.choice(_PLACES)
        end, count = self.ends[place], self.chance.randint(1, 5)
        self.records |= {(*place, offset) for offset in range(end, end + count)}
        # The end of a publisher's transaction takes an offset too.
        self.ends[place] = end + count + self.chance.randint(0, 1)

    # Forwarders.

    def open_forwarder(self) -> None:
        lane = self.chance.randrange(MOST_LANES)
        writer = Writer(self.broker, lane)
        claim = writer.claim
        if lane < self.terms.lanes and claim is not None and claim.epoch == self.terms.epoch:
            places = [place for place in _PLACES if lane_of(*place, self.terms.lanes) == lane]
            self.forwarders.append(Forwarder(writer, Lane(claim, places, _IDS)))

    def read(self) -> None:
        if (forwarder := self.one_of(False)) is None or not forwarder.lane.positions:
            return
        place = self.chance.choice(sorted(forwarder.lane.positions))
        first = forwarder.lane.positions[place]
        # A new owner may begin behind all records that are there.
        position = self.chance.randint(first, max(first, self.ends[place]))
        there = sorted(offset for topic, number, offset in self.records if (topic, number) == place)
        near = [offset for offset in there if first <= offset < position and self.chance.random() < 0.7]
        if near:
            forwarder.lane.take({place: near}, 9, by_s=0.0)
        forwarder.lane.read(place, position, 0.0)

    def skip(self) -> None:
        if (forwarder := self.one_of(False)) is not None and forwarder.lane.positions:
            place = self.chance.choice(sorted(forwarder.lane.positions))
            forwarder.lane.skip({place: self.ends[place]}, 0.0)

    def prepare_claim(self) -> None:
        if (forwarder := self.one_of(False)) is not None:
            forwarder.next_claim = forwarder.lane.next_claim("f")

    def commit_claim(self) -> None:
        if (forwarder := self.one_of(True)) is None:
            return
        assert forwarder.next_claim is not None
        try:
            forwarder.writer.write(forwarder.next_claim, self.chance.choice(_OUTCOMES))
        except (Fenced, Failed):
            # It opens the lane again, sooner or later.
            self.forwarders.remove(forwarder)
        else:
            forwarder.lane.claimed(forwarder.next_claim)
            forwarder.next_claim = None

    def one_of(self, with_claim: bool) -> Forwarder | None:
        """Return a forwarder that is about to write a claim, or one that is not."""
        own = [each for each in self.forwarders if (each.next_claim is not None) == with_claim]
        return self.chance.choice(own) if own else None

    # The job.

    def plan_batch(self) -> None:
        if self.batch is None:
            starts = dict(self.planned)
            ends = {place: self.chance.randint(starts[place], self.ends[place]) for place in _PLACES}
            self.batch, self.planned = Batch(starts, ends), ends

    def read_claims(self, lane: int | None = None, count: int | None = None) -> None:
        lane = self.chance.randrange(MOST_LANES) if lane is None else lane
        count = self.chance.randint(1, 3) if count is None else count
        at = self.job.read[lane]
        for claim in self.broker.claims[lane][at : at + count]:
            # A reader goes on behind deleted claims.
            if claim is not None:
                self.job.claims.add(claim)
            self.job.read[lane] += 1

    def take_over(self, lane: int | None = None, outcome: Outcome | None = None) -> None:
        """Act as the job does with a lane if its owner has decided too little for a while."""
        lane = self.chance.randrange(MOST_LANES) if lane is None else lane
        ends = {place: end for place, end in self.undecided().items() if lane_of(*place, self.terms.lanes) == lane}
        if not ends:
            return
        writer = self.job.writers.pop(lane, None) or Writer(self.broker, lane)
        assert writer.claim is not None
        left = {place: end for place, end in ends.items() if writer.claim.position(*place, _IDS[place[0]]) < end}
        try:
            if left:
                claim = writer.claim.next(JOB, left, {}, _IDS)
                writer.write(claim, self.chance.choice(_OUTCOMES) if outcome is None else outcome)
        except (Fenced, Failed):
            return
        self.job.writers[lane] = writer

    def run_batch(self, is_cut: bool | None = None) -> None:
        """Run the batch if claims decide all of it. `is_cut`: the job dies before it has noted that it did."""
        if self.batch is None or self.undecided():
            return
        batch, left_out, taken_in = self.batch, set[Record](), set[Record]()
        for place, end in batch.ends.items():
            start = batch.starts[place]
            out = set(self.job.claims.taken(_IDS[place[0]], place[1], start, end))
            for record in self.records:
                if record[:2] == place and start <= record[2] < end:
                    (left_out if record[2] in out else taken_in).add(record)
        assert batch.left_out in (None, left_out), "a replay leaves out others"
        # A replay's effects are recognised.
        self.batched |= taken_in
        batch.left_out = left_out
        if self.chance.random() < 0.3 if is_cut is None else is_cut:
            self.restart()
        else:
            self.batch = None
            for place, end in batch.ends.items():
                self.job.claims.forget_below(_IDS[place[0]], place[1], end)

    def restart(self) -> None:
        self.start_job(self.terms.lanes)

    def change_lanes(self) -> None:
        self.start_job(self.chance.randint(0, MOST_LANES))

    def delete_claims(self) -> None:
        for lane, first in self.first_needed().items():
            self.broker.claims[lane][:first] = [None] * first

    def start_job(self, lanes: int) -> None:
        """Start the job, with `lanes` lanes, as `delayline run` and `rescale` do."""
        if lanes != self.terms.lanes:
            # Closing, and opening again if there are lanes.
            self.terms = Terms(1, 0, _BATCH_SETTINGS)
            writers = {lane: Writer(self.broker, lane) for lane in range(MOST_LANES)}
            newest = {lane: writer.claim for lane, writer in writers.items() if writer.claim is not None}
            wanted = Terms(1, lanes, _BATCH_SETTINGS)
            for lane, claim in first_claims(wanted, as_offsets(self.planned), newest, _IDS).items() if lanes else ():
                writers[lane].write(claim, "committed")
            self.terms = wanted
        self.job = Job(read=self.first_needed())
        for lane, own in self.broker.claims.items():
            self.read_claims(lane, len(own))

    def first_needed(self) -> dict[int, int]:
        """Return by lane where the claims begin that a start now must read."""
        needed = as_offsets(self.planned if self.batch is None else self.batch.starts)
        found = {}
        for lane, own in self.broker.claims.items():
            kept = [each for each in own if each is not None]
            beyond = [each.is_beyond(needed, _IDS, 1) for each in kept]
            assert beyond == sorted(beyond), "a search cannot divide"
            found[lane] = max(len(own) - len(kept), len(own) - sum(beyond) - 1)
        return found

    def undecided(self) -> dict[Place, int]:
        """Return up to which offsets claims must decide for the batch, but do not. Nobody waits for closed lanes."""
        if self.batch is None or not self.terms.lanes:
            return {}
        return {
            place: end
            for place, end in self.batch.ends.items()
            if self.batch.starts[place] < end and self.job.claims.position(_IDS[place[0]], place[1]) < end
        }


@pytest.mark.parametrize("first_seed", range(0, 1_000, 250))
def test_each_record_is_taken_once_whatever_dies(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 250):
        world = World(random.Random(seed))
        try:
            for _ in range(120):
                world.step()
            world.finish()
        except AssertionError as problem:
            raise AssertionError(f"seed {seed}") from problem
