"""The campaign: random faults on a cluster, judged by the judge of all deliveries."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from benchmarks.chaos import contention
from benchmarks.chaos.campaign import campaign
from benchmarks.stand import Stand
from tests.quick_java import QUICK_JAVA

_KINDS = {
    "broker-kill", "broker-pause", "driver-kill", "driver-pause", "forward-kill", "forward-pause", "release-kill",
    "worker-kill", "worker-pause",
}  # fmt: skip
# The seed among the first 20,000 that strikes each kind of fault soonest, and the seconds until it has.
_SEED, _SECONDS = 5697, 141


@pytest.fixture
def stand(java: str) -> Iterator[Stand]:
    """A separate broker for the campaign."""
    with Stand() as running:
        yield running


@pytest.mark.thorough
@pytest.mark.takes(200)
def test_no_kind_of_fault_breaks_the_contract(stand: Stand) -> None:
    assert _faults_in_a_campaign(stand, _SEED, _SECONDS / 60) == _KINDS


@pytest.mark.soak
@pytest.mark.takes(700)
def test_ten_minutes_of_random_faults_do_not_break_the_contract(stand: Stand) -> None:
    assert _faults_in_a_campaign(stand, random.SystemRandom().randrange(10**6), 10) == _KINDS


@pytest.mark.soak
@pytest.mark.takes(2200)
def test_half_an_hour_of_drivers_and_release_processes_that_contend_does_not_break_the_contract(stand: Stand) -> None:
    seed, minutes = random.SystemRandom().randrange(10**6), 30
    problems, outcome = contention.campaign(stand, seed, minutes)
    again = f"again: python -m benchmarks.chaos contention --minutes {minutes} --seed {seed}"
    assert not problems, "\n".join([*problems, again])
    # Two are started at once after each kill, and one of them gives up.
    assert outcome.figures["campaign"]["drivers that gave up"] > 0


def _faults_in_a_campaign(stand: Stand, seed: int, minutes: float) -> set[str]:
    """Run a campaign, assert the contract, and return the kinds of fault that struck."""
    quick = [f"spark.spark.{role}.extraJavaOptions={QUICK_JAVA}" for role in ("driver", "executor")]
    problems, outcome = campaign(stand, seed, minutes, tuple(quick))
    assert not problems, "\n".join(
        [*problems, f"again: python -m benchmarks.chaos --minutes {minutes:g} --seed {seed}"]
    )
    assert outcome.figures["campaign"]["refused"] > 0
    assert outcome.figures["campaign"]["cancelled or refused"] > outcome.figures["campaign"]["refused"]
    assert outcome.figures["campaign"]["messages with names that came out"] > 100
    return set(outcome.figures["faults"])
