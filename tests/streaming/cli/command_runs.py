"""Runs of a command in the test's own process, with the broker and the topics of the test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from conf.settings import Settings
from streaming.cli.app import app

ROOT = Path(__file__).parents[3]


def run(settings: Settings, *args: str, stdin: str = "") -> Result:
    """Run a command with the settings of the test."""
    return CliRunner().invoke(app, [*args, *options(settings)], input=stdin, env={"DELAYLINE_CONFIG": None})


def options(settings: Settings) -> list[str]:
    """Return the options that select the test's broker and topics."""
    sets = [
        f"kafka.bootstrap_servers={settings.kafka.bootstrap_servers}",
        f"application_id={settings.application_id}",
        f"topics.input={','.join(settings.topics.input)}",
        f"topics.output={settings.topics.output}",
        f"topics.dead_letter={settings.topics.dead_letter}",
    ]
    return [part for one in sets for part in ("--set", one)]


def json_lines(result: Result) -> list[dict[str, Any]]:
    """Return the lines that a command has printed, if it has ended well."""
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]
