"""`delayline status` from outside: exact while the job is down, usable while it runs, and always read-only."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from streaming.local.free_port import free_port
from tests.eventually import assert_eventually
from tests.system.conftest import Application, MakeService
from tests.system.ledger import Ledger
from tests.system.load import publish_mixed

_TWO_HOURS_MS = 7_200_000


def _status(application: Application, *arguments: str) -> str:
    command = [sys.executable, "-m", "streaming.cli", "status", *arguments]
    for override in application.overrides():
        command += ["--set", override]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert (result.returncode, result.stderr) == (0, ""), result.stderr[-3000:]
    return result.stdout


def _json(application: Application, *arguments: str) -> dict[str, Any]:
    (line,) = _status(application, "--format", "json", *arguments).splitlines()
    status: dict[str, Any] = json.loads(line)
    waiting = status["waiting"]
    assert sum(status["due"].values()) == waiting["total"] == waiting["ready"] + waiting["mutable"] + waiting["sealed"]
    for place in ("ready", "mutable", "sealed"):
        merged = waiting["merged"] if place == "sealed" else 0
        assert waiting[place] == sum(shard[place] for shard in status["shards"]) + merged
    return status


def _until_the_job_says(application: Application, *arguments: str) -> dict[str, Any]:
    """Return the first status that the job itself says: it has to know what each mutable bucket holds."""
    for _ in range(10):
        status = _json(application, *arguments)
        if status["read_from"] == "job":
            return status
    raise AssertionError("the job did not return its status")


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    stats = {str(path): path.stat() for path in folder.rglob("*")}
    return {name: (stat.st_mtime_ns, stat.st_size) for name, stat in stats.items()}


def _publish_far(ledger: Ledger, application: Application, count: int) -> None:
    for number in range(count):
        headers = [("deliver-after", b"2h")]
        value = f"far/{number}".encode()
        ledger.publish(application.input, value, headers, output=application.output, delay_ms=_TWO_HOURS_MS)
    ledger.flush()


def _wait_until_idle(ledger: Ledger) -> None:
    """Wait until the ledger has all committed records: no record arrived for two seconds."""
    seen = -1
    while seen != len(ledger.got):
        seen = len(ledger.got)
        time.sleep(2)


@pytest.mark.thorough
def test_before_the_first_batch_status_counts_the_unread_input(
    application: Application, make_service: MakeService
) -> None:
    _, ledger = make_service()
    _publish_far(ledger, application, 7)
    output = _status(application)
    assert output.startswith("no batch is committed yet")
    assert "input lag          7 records" in output
    assert "lease              not held" in output
    assert not (application.folder / "storage").exists()


@pytest.mark.thorough
@pytest.mark.takes(60)
def test_status_counts_waiting_messages_while_the_job_runs_and_exactly_after_ctrl_c(
    application: Application, make_service: MakeService
) -> None:
    answers_at = f"monitor.job=127.0.0.1:{free_port()}"
    service, ledger = make_service(answers_at)
    service.in_own_group = True
    service.start()
    _publish_far(ledger, application, 100)
    publish_mixed(ledger, application, 400, seed=1, longest_ms=90_000)
    assert_eventually(lambda: len(ledger.got) >= 100, 60, "deliveries")
    for running in (_json(application), _until_the_job_says(application, "--set", answers_at)):
        assert running["committed_batch"]["age_ms"] < 60_000
        assert 100 <= running["waiting"]["total"] <= 400
        assert running["waiting"]["sealed"] > 0
        assert running["sealed"]["buckets"] > 0
        # The job takes the few messages of a segment, due in seconds and in hours, for evenly spread.
        assert running["due"]["6h"] == 100 or (running["read_from"], running["due_is_estimated"]) == ("job", True)
        assert 0 < running["due"]["6h"] <= running["waiting"]["total"]
        assert running["holder"]["pid"] == service.pid
        assert running["holder"]["command"] == "run"

    # Interrupted while messages fall due, so that segments are partly delivered.
    before = len(ledger.got)
    publish_mixed(ledger, application, 300, seed=3, longest_ms=40_000)
    assert_eventually(lambda: len(ledger.got) >= before + 100, 60, "more deliveries")
    assert service.interrupt() == 0, service.log[-3000:]
    assert "Traceback" not in service.log
    _wait_until_idle(ledger)
    received_ids = {record.id for record in ledger.got}
    waiting_due_ms = [sent.deliver_at_ms for identity, sent in ledger.sent.items() if identity not in received_ids]
    publish_mixed(ledger, application, 9, seed=2)
    stored = _files(application.folder / "storage")
    down = _json(application)
    assert down["waiting"]["total"] == len(waiting_due_ms) > 100
    assert down["next_due_ms"] == min(due for due in waiting_due_ms if due is not None)
    assert down["input_lag"]["total"] == 9
    assert down["holder"] is None
    assert _files(application.folder / "storage") == stored
