"""Two minutes of the campaign: random faults on a cluster, judged by a checker that shares no code with the service."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from benchmarks.chaos import campaign
from benchmarks.chaos_check import FAULTS
from benchmarks.stand import Stand
from tests.quick_java import QUICK_JAVA


@pytest.fixture
def stand(java: str) -> Iterator[Stand]:
    """A broker of the campaign's own."""
    with Stand() as running:
        yield running


def test_random_faults_lose_double_hasten_misplace_and_disorder_nothing(stand: Stand) -> None:
    seed = random.SystemRandom().randrange(10**6)
    quick = tuple(f"spark.spark.{role}.extraJavaOptions={QUICK_JAVA}" for role in ("driver", "executor"))
    outcome = campaign(stand, seed, 2, quick)
    found = outcome.figures["campaign"]
    again = f"again: python -m benchmarks.chaos --minutes 2 --seed {seed}; found: {found}"
    assert {found[name] for name in FAULTS} == {0}, again
    assert found["faults"] >= 3, again
    # Or the order was not checked.
    assert found["in_order"] > 0, again
