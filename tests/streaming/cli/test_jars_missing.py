"""Commands that start Java, in an environment without the jars: they print one sentence and leave nothing behind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.internal_topics.lease import read_lease
from sinks.topics.topics import ensure_topics
from streaming.cli.app import app


@pytest.fixture(autouse=True)
def no_jars(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An environment without the jars."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))


def _error(*arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments], env={"DELAYLINE_CONFIG": None})
    assert (result.exit_code, result.stdout) == (1, "")
    # `broker` prints its folder before.
    return result.stderr.splitlines()[-1]


def _missing(group: str, tmp_path: Path) -> str:
    folder = tmp_path / "share" / "delayline" / "jars" / group
    found = f"the {group} jars are missing from {folder}, or have another version"
    return f"error: jars-missing: {found}. Run `delayline jars`"


def test_the_embedded_broker_names_its_jars_and_the_command_that_fetches_them(tmp_path: Path) -> None:
    assert _error("broker", "--port", "0", "--dir", str(tmp_path / "data")) == _missing("broker", tmp_path)


def test_submit_files_names_sparks_jars(tmp_path: Path) -> None:
    assert _error("submit-files", str(tmp_path / "files")) == _missing("spark", tmp_path)


def test_the_job_names_sparks_jars_and_releases_its_lease(settings: Settings, tmp_path: Path) -> None:
    ensure_topics(settings, 1)
    topics = settings.topics
    overrides = [
        f"application_id={settings.application_id}",
        f"kafka.bootstrap_servers={settings.kafka.bootstrap_servers}",
        f"topics.input={topics.input[0]}",
        f"topics.output={topics.output}",
        f"topics.dead_letter={topics.dead_letter}",
        f"storage.path={tmp_path / 'storage'}",
    ]
    assert _error("run", *(part for one in overrides for part in ("--set", one))) == _missing("spark", tmp_path)
    lease = read_lease(librdkafka_options(settings.kafka), settings.lease_topic)
    assert lease is not None
    assert lease.released
