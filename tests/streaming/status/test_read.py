"""That `delayline status` reads consistent values while the job runs, and what it prints for a broker's answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from conf.settings import Settings
from sinks.topics.topics import ensure_topics
from streaming.cli.app import app
from streaming.status import storage_reader as statuses
from streaming.status.broker import BrokerAnswer, ask_broker
from streaming.status.formats import as_json, as_lines
from streaming.status.status import Status
from streaming.status.storage_reader import consistent_versions


def status_of(broker: BrokerAnswer) -> Status:
    """Return a status that has no more information than the broker's answer."""
    return Status("storage", "/c", 0, None, None, [], 0, 0, 0, None, 0, 0, {}, False, broker)


def test_an_invalid_record_in_the_lease_topic_is_shown_with_the_other_lines(settings: Settings) -> None:
    ensure_topics(settings, 1)
    producer = Producer({"bootstrap.servers": settings.kafka.bootstrap_servers})
    producer.produce(settings.lease_topic, b"garbage", b"lease", 0)
    producer.produce(settings.topics.input[0], b"not read")
    producer.flush()
    lines = list(as_lines(status_of(ask_broker(settings, {}, -1))))
    assert "input lag          1 record" in lines
    (lease,) = (line for line in lines if line.startswith("lease "))
    assert lease.startswith("lease              unknown; checkpoint-mismatch: the lease topic holds b'garbage'")


def test_options_that_the_client_refuses_are_reported_before_spark_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statuses, "open_session", lambda *_: pytest.fail("Spark was to be started"))
    refused = CliRunner().invoke(app, ["status", "--set", "kafka.linger.ms=abc"], env={"DELAYLINE_CONFIG": None})
    assert refused.exit_code == 2
    assert refused.stderr.startswith("error: bad-setting: [kafka]: ")
    assert "linger.ms" in refused.stderr


def test_help_names_every_key_of_the_json_form() -> None:
    help_text = CliRunner().invoke(app, ["status", "--help"], env={"COLUMNS": "200"}).stdout
    assert not [key for key in as_json(status_of(BrokerAnswer([]))) if key not in help_text]


def test_the_table_version_is_that_of_the_last_committed_batch_while_others_are_committed() -> None:
    committed, versions = iter([1, 2, 2, 3, 4, 4]), iter([10, 11, 12, 13])
    checkpoint: Any = SimpleNamespace(last_committed=lambda: next(committed))
    store: Any = SimpleNamespace(exists=lambda: True, newest_version=lambda: next(versions))
    assert consistent_versions(checkpoint, store) == (4, 13)


def test_before_the_first_start_there_is_neither_batch_nor_table() -> None:
    checkpoint: Any = SimpleNamespace(last_committed=lambda: None)
    store: Any = SimpleNamespace(exists=lambda: False)
    assert consistent_versions(checkpoint, store) == (None, None)
