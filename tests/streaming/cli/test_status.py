"""`delayline status`: its output for a job's answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from streaming.cli.app import app
from streaming.status import running
from tests.streaming.status.sample_status import status_of


def test_a_terminal_obeys_nothing_of_what_the_job_says(monkeypatch: pytest.MonkeyPatch) -> None:
    status = replace(status_of(), checkpoint="/data/\x1b[2J")
    monkeypatch.setattr(running, "status_of_job", lambda settings: status)
    result = CliRunner().invoke(app, ["status"])
    assert result.exit_code == 0
    assert "/data/\N{REPLACEMENT CHARACTER}[2J" in result.output
    assert all(line.isprintable() for line in result.output.splitlines())
