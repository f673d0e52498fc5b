"""Fixtures for operations on the table of sealed buckets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from conf.settings import Settings
from sinks.topics.topics import ensure_topics
from streaming.storage import guarded_log
from tests.conftest import MakeSettings
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
