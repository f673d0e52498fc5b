"""A fixture for the tests of forwarders: an application with two shards and lanes, and two input partitions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from conf.load import load_settings
from sinks.topics.topics import ensure_topics
from streaming.local.broker import EmbeddedBroker
from tests.conftest import MakeSettings
from tests.streaming.forward.bench import LANES, ForwardBench

MakeBench = Callable[..., ForwardBench]


@pytest.fixture
def make_bench(broker: EmbeddedBroker, make_settings: MakeSettings) -> MakeBench:
    """A function that makes the topics of a new application: `make_bench("clock.horizon=10s")`.

    `on` is another broker than the one that tests share.
    """

    def make(*overrides: str, on: EmbeddedBroker = broker) -> ForwardBench:
        application_id = make_settings().application_id
        topics = [f"topics.{role}={application_id}-{role}" for role in ("input", "output", "dead_letter")]
        servers = f"kafka.bootstrap_servers={on.bootstrap}"
        own = (f"application_id={application_id}", servers, *topics, "monitor.job=", f"bucket.shards={LANES}")
        settings = load_settings(None, [*own, *overrides], environ={})
        ensure_topics(settings, 2)
        return ForwardBench(on, settings, (*own, *overrides))

    return make


@pytest.fixture
def bench(make_bench: MakeBench) -> ForwardBench:
    """A new application whose lanes are not open."""
    return make_bench()
