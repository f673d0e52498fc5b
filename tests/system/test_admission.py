"""The policy `max_waiting` through the whole service: no more wait than it allows, and a replay refuses the same."""

from __future__ import annotations

import signal

import pytest

from tests.system.conftest import Application, MakeService
from tests.system.ledger import Ledger


def publish(ledger: Ledger, application: Application, count: int, delay_ms: int, allowed: int) -> None:
    """Publish `count` messages to each of the two input partitions. The first `allowed` messages may wait."""
    for number in range(count):
        for partition in range(2):
            ledger.publish(
                application.input, b"%d" % number, [("deliver-after", b"%dms" % delay_ms)], partition=partition,
                output=application.output if number < allowed else application.dead,
                delay_ms=delay_ms if number < allowed else None,
            )  # fmt: skip
    ledger.flush()


@pytest.mark.thorough
@pytest.mark.takes(170)
def test_more_messages_than_may_wait_are_dead_letters_and_a_replay_refuses_the_same(
    application: Application, make_service: MakeService
) -> None:
    service, ledger = make_service("policies.max_waiting=20")
    publish(ledger, application, 20, delay_ms=130_000, allowed=10)
    service.start("state-held=kill", wait=False)
    assert service.wait(120) == -signal.SIGKILL, service.log[-3000:]
    service.start()
    ledger.wait_for(lambda: len(ledger.got) == 20, 60)
    # Nothing is delivered yet, so no further message may wait.
    publish(ledger, application, 3, delay_ms=40_000, allowed=0)
    ledger.wait_for(lambda: len(ledger.got) == 26, 60)
    # A start also counts the messages that wait in the state.
    assert service.stop() == 0, service.log[-3000:]
    service.start()
    publish(ledger, application, 2, delay_ms=40_000, allowed=0)
    ledger.wait_for(lambda: len(ledger.got) >= 30, 60)
    ledger.wait_for_all(120)
    publish(ledger, application, 5, delay_ms=8_000, allowed=5)
    ledger.wait_for_all(60)
    ledger.verify()
    assert service.stop() == 0, service.log[-3000:]
