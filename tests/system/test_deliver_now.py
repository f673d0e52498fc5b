"""Messages that are made due at once, through the whole service, wherever they wait: each comes out once, with its id.

`tests/system/test_crashes.py` has these requests across a kill.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable

import pytest

from tests.eventually import assert_eventually
from tests.job_log import sealed_messages
from tests.system.conftest import Application, MakeService
from tests.system.ledger import Ledger
from tests.system.service import Service

_HOUR_MS, _STAGED_MS = 3_600_000, 50_000


def publish(ledger: Ledger, application: Application, count: int, delay_ms: int, key: bytes = b"k") -> list[str]:
    """Publish messages, some of them to another topic, and return their ids."""
    ledger.flush()
    before = set(ledger.sent)
    for number in range(count):
        output = application.other if number % 4 == 0 else application.output
        headers = [("deliver-after", b"%dms" % delay_ms), ("deliver-to", output.encode()), ("trace", b"%d" % number)]
        ledger.publish(
            application.input, b"v", headers, key=b"%s%d" % (key, number % 7), output=output, delay_ms=delay_ms
        )
    ledger.flush()
    return sorted(set(ledger.sent) - before)


def deliver(ledger: Ledger, ids: Iterable[str]) -> None:
    for identity in ids:
        ledger.deliver_now(identity)


def answered(ledger: Ledger) -> None:
    """Wait until each request is answered."""
    ledger.flush()
    assert_eventually(lambda: ledger.requests.keys() <= {each.id for each in list(ledger.answers)}, 90, "answers")


def reasons(ledger: Ledger, asked: Iterable[str]) -> Counter[str]:
    wanted = set(asked)
    contents = [json.loads(answer.value or b"") for answer in list(ledger.answers)]
    return Counter(content["reason"] for content in contents if content["id"] in wanted)


def command(service: Service, *arguments: str) -> tuple[int, dict[str, str]]:
    """Run `delayline deliver-now`, and return its exit code and the result for each id."""
    sets = [part for override in service.overrides for part in ("--set", override)]
    run = subprocess.run(
        [sys.executable, "-m", "streaming.cli", "deliver-now", "--format", "json", *arguments, *sets],
        capture_output=True, text=True, check=False, timeout=90,
    )  # fmt: skip
    return run.returncode, {answer["id"]: answer["result"] for answer in map(json.loads, run.stdout.splitlines())}


@pytest.mark.thorough
@pytest.mark.takes(60)
def test_messages_come_out_at_once_wherever_they_wait(application: Application, make_service: MakeService) -> None:
    service, ledger = make_service("clock.horizon=1m")
    service.start()
    ledger.is_steady = True
    sealed = publish(ledger, application, 300, _HOUR_MS)
    assert_eventually(lambda: sealed_messages(service.log) >= 50, 60, "a seal")
    kept = publish(ledger, application, 20, _HOUR_MS, key=b"kept")
    staged = publish(ledger, application, 40, _STAGED_MS)
    # Once it is out, its release process has read the messages that were staged before.
    (soon,) = publish(ledger, application, 1, 1, key=b"soon")
    assert_eventually(lambda: soon in {record.id for record in list(ledger.got)}, 60, "a delivery")
    begun_ms = time.time_ns() // 1_000_000
    deliver(ledger, [*sealed, *kept, *staged])
    # One batch reads these messages and their requests together.
    together = publish(ledger, application, 20, _HOUR_MS, key=b"together")
    deliver(ledger, together)
    ledger.wait_for_all(60)
    ledger.verify(least_checked=0)
    every = {*sealed, *kept, *staged, *together}
    came = {record.id: int(record.last("delayline-deliver-at") or 0) for record in list(ledger.got)}
    assert came.keys() == every | {soon}
    assert all(due_ms >= begun_ms - 10_000 for identity, due_ms in came.items() if identity != soon)
    assert reasons(ledger, every) == Counter({"made-due": len(every)})
    # Further requests get the answer that the messages come out.
    ledger.cancel(sealed[0])
    ledger.cancel(kept[0])
    ledger.cancel(staged[0])
    deliver(ledger, [sealed[1], kept[1], staged[1]])
    answered(ledger)
    assert not ledger.cancelled()
    ledger.verify(least_checked=0)
    # A cancel before it is the first one.
    (far,) = publish(ledger, application, 1, _HOUR_MS)
    ledger.cancel(far)
    answered(ledger)
    ledger.close()
    unread = f"{application.input}/0/{10**12}"
    assert command(service, sealed[0]) == (0, {sealed[0]: "due-now"})
    # Its release process still knows it.
    assert command(service, far, staged[0]) == (3, {far: "cancelled", staged[0]: "due-now"})
    assert command(service, soon) == (3, {soon: "too-late"})
    assert command(service, unread) == (4, {unread: "unknown"})
    assert service.stop() == 0, service.log[-3000:]


@pytest.mark.thorough
@pytest.mark.takes(90)
@pytest.mark.parametrize("point", ["cancelled", "transaction-open@2", "transaction-committed"])
def test_what_is_made_due_comes_out_once_if_the_checkpoint_is_lost_meanwhile(
    application: Application, make_service: MakeService, point: str
) -> None:
    """Only the table and the markers know a message that is stored and not staged, or staged in one shard only."""
    service, ledger = make_service("clock.horizon=2s")
    service.start()
    sealed = publish(ledger, application, 300, _HOUR_MS)
    assert_eventually(lambda: sealed_messages(service.log) >= 50, 60, "a seal")
    kept = publish(ledger, application, 20, _HOUR_MS, key=b"kept")
    deliver(ledger, sealed[:20])
    answered(ledger)
    service.kill()
    deliver(ledger, [*sealed[20:60], *kept[:10]])
    # Read with the requests.
    together = publish(ledger, application, 20, _HOUR_MS, key=b"together")
    deliver(ledger, together[:10])
    ledger.flush()
    service.start(f"{point}=kill", wait=False)
    assert service.wait(120) == -signal.SIGKILL, service.log[-3000:]
    shutil.rmtree(application.checkpoint)
    ledger.is_rebuilt = True
    assert service.command("rebuild") == 0, service.log[-3000:]
    service.start()
    answered(ledger)
    deliver(ledger, [*sealed, *kept, *together])
    ledger.verify_after_outage(120, least_checked=0)
    assert service.stop() == 0, service.log[-3000:]
