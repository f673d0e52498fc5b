"""Fixtures of the tests of starts: an application with a table, and the lease of a start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from conf.settings import Settings
from sinks.buckets.bucket_table import BucketTable
from sinks.internal_topics.lease import HeldLease
from sinks.topics.topics import ensure_topics
from tests.conftest import MakeSettings


@pytest.fixture
def settings(make_settings: MakeSettings, store: BucketTable, tmp_path: Path) -> Settings:
    """Settings of an application with existing topics and the table `store`."""
    settings = make_settings(f"storage.path={tmp_path}")
    ensure_topics(settings)
    return settings


@pytest.fixture
def lease(settings: Settings) -> Iterator[HeldLease]:
    """The lease that a start needs."""
    with closing(HeldLease(settings, "run")) as lease:
        yield lease
