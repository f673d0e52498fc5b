"""Tables and stand-ins for brokers, for tests of the decision about cancels and names."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from conf.settings import Settings
from sinks.topics.topics import ensure_topics
from state.cancel import MessageId
from state.checkpoint.progress import Progress
from state.message_ids import ids_of
from state.message_ids import to_set as each_id
from streaming.job.requests.recalled import RecalledMessages
from tests.conftest import MakeSettings
from tests.streaming.job.requests.desk_bench import BATCH, TOPIC, span
from tests.streaming.job.requests.memory_table import MemoryTable
from tests.streaming.job.requests.recalled_topic import EPOCH
from tests.streaming.job.requests.spark_table import SparkTable


@pytest.fixture
def memory_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryTable:
    """An empty table in memory. `test_decisions.py` shows that decisions on the real table are the same."""
    monkeypatch.setattr("pyspark.SparkFiles.getRootDirectory", lambda: str(tmp_path))
    return MemoryTable()


@pytest.fixture
def spark_table(spark: SparkSession, empty_table: Path, tmp_path: Path) -> SparkTable:
    """An empty real table."""
    shutil.copytree(empty_table, tmp_path / "spark" / "buckets")
    return SparkTable(spark, str(tmp_path / "spark" / "buckets"))


@pytest.fixture
def known_from(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, int], int]:
    """The offsets below which messages are old."""
    own = {(TOPIC, 0): 0}
    monkeypatch.setattr(RecalledMessages, "known_from", own)
    return own


@pytest.fixture
def markers(monkeypatch: pytest.MonkeyPatch) -> list[Progress | None]:
    """The last marker of each of two shards. The second one has staged nothing for long."""
    own: list[Progress | None] = [Progress(span(previous_ms=700)), Progress(span(BATCH - 1, 600))]
    monkeypatch.setattr("streaming.job.requests.desk.read_markers", lambda _: own)
    return own


@pytest.fixture
def recalled(monkeypatch: pytest.MonkeyPatch) -> list[MessageId]:
    """The messages that release processes have recalled. Their reader has a test of its own, with a broker."""
    ids: list[MessageId] = []
    monkeypatch.setattr(RecalledMessages, "read", lambda *_: None)
    monkeypatch.setattr(RecalledMessages, "only", lambda _, wanted: ids_of(each_id(wanted) & set(ids)))
    monkeypatch.setattr(RecalledMessages, "forget", lambda *_: None)
    return ids


@pytest.fixture
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder for the files of a reader of recalled messages."""
    monkeypatch.setattr("pyspark.SparkFiles.getRootDirectory", lambda: str(tmp_path))


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    """Settings of an application with three shards, and its topics."""
    made = make_settings("bucket.shards=3")
    ensure_topics(made, 1)
    return made


@pytest.fixture
def reader(settings: Settings) -> Iterator[RecalledMessages]:
    """A reader of the recalled topic."""
    with closing(RecalledMessages(settings, EPOCH)) as made:
        yield made
