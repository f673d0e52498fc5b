"""Fixtures for operations on the table of sealed buckets and on dead letters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from conf.settings import Settings
from sinks.topics.topics import ensure_topics
from streaming.local.broker import EmbeddedBroker
from streaming.storage import guarded_log
from tests.conftest import MakeSettings
from tests.streaming.operations.letter_desk import Desk
from tests.streaming.sealed import repairing


@pytest.fixture
def replaceable(make_settings: MakeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings of an application with its topics, in a storage where files can be replaced, as on S3."""
    monkeypatch.setattr(guarded_log, "is_on_s3", lambda _: True)
    settings = make_settings(f"storage.path={tmp_path}")
    ensure_topics(settings, 1)
    return settings


@pytest.fixture
def repair_options(spark: SparkSession) -> Iterator[None]:
    """The session options of a repair."""
    with repairing(spark):
        yield


@pytest.fixture
def desk_of(make_settings: MakeSettings, broker: EmbeddedBroker) -> Callable[..., Desk]:
    """A function that makes the desk of an application with the given `--set` overrides."""

    def make(*overrides: str) -> Desk:
        settings = make_settings(*overrides)
        ensure_topics(settings, 3)
        return Desk(settings, broker)

    return make


@pytest.fixture
def desk(desk_of: Callable[..., Desk]) -> Desk:
    """The desk of an application with the default settings."""
    return desk_of()
