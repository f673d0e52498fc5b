"""Fixtures for the tests of lanes: an application with two shards, and so two lanes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.lanes.writer import LaneWriter
from sinks.topics.topics import ensure_topics
from state.claims import Claim
from tests.conftest import MakeSettings

Open = Callable[..., LaneWriter]
IDS = {"in": "A"}


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    """Settings of a new application with two shards and with its topics."""
    made = make_settings("bucket.shards=2")
    ensure_topics(made, 1)
    return made


@pytest.fixture
def open_writer(settings: Settings) -> Open:
    """A function that opens a writer of a lane, by default of the first one."""
    return lambda lane=0: LaneWriter(settings, librdkafka_options(settings.kafka), lane)


def claim(before: Claim | None, position: int, *taken: int) -> Claim:
    """Return the claim after `before` up to `position` of in/0. The first one has epoch 1."""
    return (before or Claim(epoch=1)).next("test", {("in", 0): position}, {("in", 0): taken}, IDS)
