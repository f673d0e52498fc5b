"""A fixture for the tests of forwarders: an application with two shards and lanes, and two input partitions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from streaming.local.broker import EmbeddedBroker
from tests.streaming.forward.bench import ForwardBench, new_bench

MakeBench = Callable[..., ForwardBench]


@pytest.fixture
def make_bench(broker: EmbeddedBroker) -> MakeBench:
    """A function that makes the topics of a new application: `make_bench("clock.horizon=10s")`."""
    return partial(new_bench, broker)


@pytest.fixture
def bench(make_bench: MakeBench) -> ForwardBench:
    """A new application with lanes that are not open."""
    return make_bench()
