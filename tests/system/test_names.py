"""Names through the whole service: the newest message of each comes out, wherever the one before it is."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest

from conf.load import load_settings
from streaming.processes.drain import left_to_release
from tests.eventually import assert_eventually
from tests.system.conftest import Application, MakeService
from tests.system.named_load import NamedLoad
from tests.system.service import Service


def command(service: Service, *arguments: str) -> subprocess.CompletedProcess[str]:
    sets = [part for override in service.overrides for part in ("--set", override)]
    line = [sys.executable, "-m", "streaming.cli", *arguments, *sets]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=90)


@pytest.mark.thorough
@pytest.mark.takes(60)
@pytest.mark.parametrize(
    ("mode", "points"),
    [
        ("replace", ("cancelled", "transaction-committed", "batch-done")),
        ("replace", ("state-held", "sealing", "sealed", "staged")),
        ("replace", ("transaction-open", "transaction-filled", "transaction-ended", "position-read")),
        ("keep", ("cancelled", "staged", "sealed", "batch-done")),
        ("keep-time", ("cancelled", "staged", "sealed", "batch-done")),
        ("keep-time", ("transaction-open", "transaction-committed", "sealing", "state-held")),
    ],
    ids=str,
)
def test_after_kills_one_message_of_each_name_comes_out(
    application: Application, make_service: MakeService, mode: str, points: tuple[str, ...]
) -> None:
    service, ledger = make_service("policies.names=key", f"policies.name_mode={mode}")
    ledger.close()
    load = NamedLoad(application, mode)
    for seed, point in enumerate(points):
        load.publish_some(120, seed, longest_ms=40_000, names=60)
        service.start(f"{point}=kill", wait=False)
        assert service.wait(120) == -signal.SIGKILL, f"{point} was not reached:\n{service.log[-3000:]}"
    service.start()
    for seed in range(4, 8):
        load.publish_some(60, seed, longest_ms=40_000, names=60)
        time.sleep(2)
    load.verify(120)
    assert load.replaced()
    load.close()
    assert service.stop() == 0, service.log[-3000:]


@pytest.mark.thorough
@pytest.mark.takes(50)
def test_what_is_staged_is_taken_back_and_commands_work_by_name(
    application: Application, make_service: MakeService
) -> None:
    service, ledger = make_service("policies.names=header", "clock.horizon=1m")
    ledger.close()
    service.start()
    load = NamedLoad(application)
    settings = load_settings(None, service.overrides, environ={})

    def publish_all(delay_ms: int) -> None:
        for number in range(40):
            name = f"n{number}"
            load.publish(name, delay_ms, key=b"k%d" % number, headers=[("delayline-name", name.encode())])

    # The first batch stages nothing.
    load.publish("first", 0, key=b"k", headers=[("delayline-name", b"first")])
    assert_eventually(lambda: len(load.got) == 1, 60, "the first message")
    publish_all(50_000)
    assert_eventually(lambda: sum(left_to_release(settings).values()) == 40, 30, "the staging of all")
    publish_all(45_000)
    load.verify(120)
    results = [json.loads(answer.value or b"{}").get("result") for answer in load.answers]
    assert results == ["cancelled"] * 40, "the release processes took them back"
    load.close()
    first = command(service, "publish", "old", "--name", "call", "--after", "1h", "--key", "call").stdout.strip()
    second = command(service, "publish", "new", "--name", "call", "--after", "2h", "--key", "call").stdout.strip()
    assert first.count("/") == second.count("/") == 2
    run = command(service, "cancel", "--name", "call", "--name", "nobody", "--format", "json")
    answers = {answer["name"]: answer for answer in map(json.loads, run.stdout.splitlines())}
    assert run.returncode == 4, run.stderr
    assert (answers["call"]["id"], answers["call"]["result"]) == (second, "cancelled")
    assert (answers["nobody"]["id"], answers["nobody"]["result"]) == (None, "unknown")
    run = command(service, "cancel", first, "--format", "json")
    assert json.loads(run.stdout)["result"] == "cancelled", "the second has replaced it"
    assert service.stop() == 0, service.log[-3000:]
