"""Cancels through the whole service, wherever the message is: each is answered once, and the answers agree.

`tests/system/test_crashes.py` has those across a kill.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

from conf.load import load_settings
from streaming.processes.drain import left_to_release
from tests.eventually import assert_eventually
from tests.job_log import sealed_messages
from tests.system.conftest import Application, MakeService
from tests.system.load import cancel_some, publish_mixed, replace_some
from tests.system.service import Service


def cancel_command(service: Service, *ids: str) -> tuple[int, dict[str, str]]:
    """Run `delayline cancel`, and return its exit code and the result for each id."""
    sets = [part for override in service.overrides for part in ("--set", override)]
    command = [sys.executable, "-m", "streaming.cli", "cancel", "--format", "json", *ids, *sets]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=90)
    answers = map(json.loads, run.stdout.splitlines())
    return run.returncode, {answer["id"]: answer["result"] for answer in answers}


def replace_command(service: Service, *options: str) -> tuple[int, bool]:
    """Run `delayline publish`, and return its exit code, and whether it says that the message is accepted."""
    sets = [part for override in service.overrides for part in ("--set", override)]
    command = [sys.executable, "-m", "streaming.cli", "publish", "new", *options, *sets]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=90)
    assert run.stdout.count("/") == 2, "the id of the new message"
    return run.returncode, run.stderr.startswith("accepted; ")


@pytest.mark.thorough
@pytest.mark.takes(60)
def test_each_request_is_answered_once_and_the_answer_is_true(
    application: Application, make_service: MakeService
) -> None:
    service, ledger = make_service()
    service.start()
    ledger.is_steady = True
    for wave in range(6):
        # From plain messages to messages that wait in merged buckets.
        publish_mixed(ledger, application, 150, seed=wave, longest_ms=25_000)
        time.sleep(2)
        cancel_some(ledger, application, seed=wave, share=0.1)
        replace_some(ledger, application, seed=wave)
    ledger.wait_for_all(90)
    ledger.verify()
    cancelled = ledger.cancelled()
    assert len(cancelled) > 50, "most requests come in time"
    assert ledger.refused()
    assert ledger.conditions.keys() - ledger.refused(), "some replacements are accepted"
    assert sealed_messages(service.log) > 100, "the thresholds should be low enough to seal"
    # Long after they were due.
    cancel_some(ledger, application, seed=99, share=0.1)
    ledger.wait_for_all(30)
    ledger.verify()
    # The release processes have released all of them, and not many more since. The ledger compares with where they are.
    assert len(ledger.places()) > 30, "what comes too late is told where the message went"
    # Refused messages do not come out either.
    assert ledger.cancelled() - cancelled <= ledger.refused()
    # The requests of the command are not the ledger's.
    came_out = next(iter(got.id for got in ledger.got))
    ledger.publish(application.input, b"far", [("deliver-after", b"1h")], output=application.output, delay_ms=3_600_000)
    ledger.flush()
    far = next(identity for identity, message in ledger.sent.items() if message.value == b"far")
    ledger.close()
    unread = f"{application.input}/0/{10**12}"
    assert cancel_command(service, far) == (0, {far: "cancelled"})
    assert cancel_command(service, far, came_out) == (3, {far: "cancelled", came_out: "too-late"})
    assert cancel_command(service, came_out, unread) == (4, {came_out: "too-late", unread: "unknown"})
    assert replace_command(service, "--replaces", far) == (3, False)
    assert replace_command(service, "--replaces", came_out) == (4, False)
    assert replace_command(service, "--replaces", came_out, "--if", "always") == (0, True)
    assert service.stop() == 0, service.log[-3000:]


@pytest.mark.thorough
@pytest.mark.takes(50)
def test_what_is_staged_is_taken_back_also_across_a_kill(application: Application, make_service: MakeService) -> None:
    service, ledger = make_service("clock.horizon=1m")
    service.start()
    chosen = random.Random(7)
    for number in range(300):
        delay_ms = chosen.randrange(35_000, 55_000)
        headers = [("deliver-after", b"%dms" % delay_ms)]
        ledger.publish(application.input, b"%d" % number, headers, output=application.output, delay_ms=delay_ms)
    ledger.flush()
    settings = load_settings(None, service.overrides, environ={})
    assert_eventually(lambda: sum(left_to_release(settings).values()) == 300, 30, "the staging of all")
    cancel_some(ledger, application, seed=1)
    ledger.flush()
    assert_eventually(lambda: len(ledger.answers) >= len(ledger.requests), 60, "answers")
    answers = [json.loads(answer.value or b"") for answer in ledger.answers]
    assert sum(answer["reason"] == "recalled" for answer in answers) > 50, answers[:5]
    cancel_some(ledger, application, seed=2, share=0.2)
    replace_some(ledger, application, seed=2)
    ledger.flush()
    assert_eventually(lambda: len(ledger.answers) >= len(ledger.requests), 60, "answers")
    answers = [json.loads(answer.value or b"") for answer in ledger.answers]
    replaced = [answer for answer in answers if answer.get("accepted")]
    assert any(answer["reason"] == "recalled" for answer in replaced), replaced[:5]
    service.kill()
    service.start()
    cancel_some(ledger, application, seed=3, share=0.2)
    ledger.verify_after_outage(120)
    assert service.stop() == 0, service.log[-3000:]


@pytest.mark.thorough
@pytest.mark.takes(60)
def test_what_is_cancelled_stays_cancelled_after_a_rescale_and_a_rebuild(
    application: Application, make_service: MakeService
) -> None:
    service, ledger = make_service()
    publish_mixed(ledger, application, 300, seed=1, longest_ms=120_000)
    service.start()
    cancel_some(ledger, application, seed=1)
    ledger.flush()
    assert_eventually(lambda: len(ledger.answers) >= len(ledger.requests), 60, "answers")
    before = ledger.cancelled()
    service.kill()
    assert service.command("rescale", "--shards", "3") == 0, service.log[-3000:]
    service.overrides.append("bucket.shards=3")
    # Killed with requests that are decided and stored, and not answered.
    cancel_some(ledger, application, seed=2, share=0.1)
    replace_some(ledger, application, seed=2)
    service.start("cancelled=kill", wait=False)
    assert service.wait(120) == -signal.SIGKILL, service.log[-3000:]
    shutil.rmtree(application.checkpoint)
    ledger.is_rebuilt = True
    assert service.command("rebuild") == 0, service.log[-3000:]
    service.start()
    cancel_some(ledger, application, seed=3, share=0.1)
    ledger.verify_after_outage(180)
    assert before <= ledger.cancelled()
    assert service.stop() == 0, service.log[-3000:]
