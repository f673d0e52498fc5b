"""The command line as a whole: options, help, topics and plans, in process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from kafka.admin import KafkaAdminClient
from typer.main import get_command
from typer.testing import CliRunner

from conf.settings import Settings
from streaming.cli.app import app
from tests.streaming.cli.command_runs import ROOT, json_lines, run


def options_of(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], set[str]]]:
    """Yield each command at or below `command`, with its options."""
    if not hasattr(command, "commands"):
        yield path, {option for each in command.params for option in each.opts}
    for name, own in getattr(command, "commands", {}).items():
        yield from options_of(own, *path, name)


def test_every_command_that_reads_settings_has_the_common_options() -> None:
    known = dict(options_of(get_command(app)))
    without = {path for path, options in known.items() if not {"--config", "--set"} <= options}
    assert without == {("submit-files",), ("demo",)}
    assert CliRunner().invoke(app, ["--help"]).exit_code == 0


def test_help_of_publish_loads_neither_spark_nor_a_kafka_client() -> None:
    program = (
        "import sys; from typer.testing import CliRunner; from streaming.cli.app import app\n"
        "assert CliRunner().invoke(app, ['publish', '--help']).exit_code == 0\n"
        "print(sorted({'pyspark', 'kafka', 'confluent_kafka', 'pyarrow', 'pandas'} & set(sys.modules)))"
    )
    completed = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert completed.stdout == "[]\n"


def test_topics_are_created_and_shown(settings: Settings) -> None:
    missing = run(settings, "topics", "show")
    assert missing.exit_code == 1
    assert "error: topic-missing: " in missing.stderr
    first = json_lines(run(settings, "topics", "create", "--partitions", "3", "--format", "json"))
    assert [(topic["role"], topic["partitions"], topic["state"]) for topic in first] == [
        ("input", 3, "created"),
        ("output", 3, "created"),
        ("dead letter", 3, "created"),
        ("results", 3, "created"),
        ("progress", 2, "created"),
        ("lease", 1, "created"),
        ("ready", 2, "created"),
        ("position", 2, "created"),
        ("near", 2, "created"),
        ("claims", 3, "created"),
        ("recalled", 3, "created"),
    ]
    again = run(settings, "topics", "create")
    assert (again.exit_code, again.stdout.count("exists")) == (0, 11)
    assert run(settings, "topics", "show").exit_code == 0


def test_a_progress_topic_with_another_configuration_is_an_error(settings: Settings, admin: KafkaAdminClient) -> None:
    topic = {"num_partitions": 5, "replication_factor": 1}
    admin.create_topics({settings.progress_topic: topic}, wait_for_metadata=True)
    result = run(settings, "topics", "create")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: topic-mismatch: ")


def test_an_unreachable_broker_gives_exit_code_1_with_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("sinks.topics.admin_client", "sources.publisher"):
        monkeypatch.setattr(f"{module}.CONNECT_TIMEOUT_MS", 500)
    monkeypatch.setattr("sources.subscriber.CONNECT_TIMEOUT_S", 0.5)
    for command in (["topics", "show"], ["publish", "x"], ["subscribe"]):
        result = CliRunner().invoke(app, [*command, "--set", "kafka.bootstrap_servers=127.0.0.1:1"])
        assert result.exit_code == 1
        assert result.stderr.startswith("error: broker-unreachable: ")
        assert "127.0.0.1:1" in result.stderr


def test_existing_jars_are_kept(settings: Settings) -> None:
    result = CliRunner().invoke(app, ["jars"])
    assert result.exit_code == 0
    assert result.stdout.count("complete") == 2


@pytest.mark.parametrize(
    ("command", "quoted"),
    [
        (["topics", "create"], ["progress, ready, position and near", "claims and recalled", "lease", "one partition"]),
        (["topics", "show"], ["cleanup.policy than compact", "a limited retention"]),
        (["publish"], ["1, 2, ...; 0 means no delay"]),
    ],
)
def test_help_describes_the_checks_and_the_created_topics(command: list[str], quoted: list[str]) -> None:
    help_text = " ".join(CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"}).stdout.split())
    assert not [words for words in quoted if words not in help_text]


def test_plan_prints_what_a_load_takes_and_refuses_what_is_no_load() -> None:
    asked = ["plan", "--rate", "1000", "--spread", "30d", "--size", "1000"]
    table = CliRunner().invoke(app, asked, env={"DELAYLINE_CONFIG": None})
    assert table.exit_code == 0
    assert f"{'messages that wait':<36}{1000 * 15 * 86_400:>14,}" in table.output
    answer = json.loads(CliRunner().invoke(app, [*asked, "--format", "json"], env={"DELAYLINE_CONFIG": None}).output)
    assert (answer["spread_s"], answer["retention_s"], answer["waiting"]) == (30 * 86_400, 7 * 86_400, 1_296_000_000)
    for option, value in (
        ("--rate", "nan"),
        ("--rate", "-1"),
        ("--rate", "inf"),
        ("--spread", "a while"),
        ("--size", "-1"),
    ):
        refused = CliRunner().invoke(app, [*asked, option, value], env={"DELAYLINE_CONFIG": None})
        assert refused.exit_code == 2, refused.output
        assert option in refused.output
