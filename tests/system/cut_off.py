"""The beginning and the end of tests in which a job's checkpoint is replaced after a kill."""

from __future__ import annotations

import signal

from tests.system.conftest import Application
from tests.system.ledger import Ledger
from tests.system.load import publish_mixed
from tests.system.service import Service

# The driver is killed when a batch has staged the messages of one shard. It may not have staged the other shard's.
_IN_THE_MIDDLE = "transaction-committed=kill"


def kill_in_the_middle(service: Service, ledger: Ledger, application: Application, seed: int) -> None:
    """Let the job keep, seal and deliver messages, and kill it in the middle of a batch."""
    publish_mixed(ledger, application, 400, seed, longest_ms=40_000)
    service.start(_IN_THE_MIDDLE, wait=False)
    assert service.wait(120) == -signal.SIGKILL, service.log[-3000:]


def finish(service: Service, ledger: Ledger, application: Application, seed: int) -> None:
    """Start the job, publish more messages, and verify all of them."""
    service.start()
    publish_mixed(ledger, application, 200, seed, longest_ms=5_000)
    ledger.verify_after_outage(90)
    assert service.stop() == 0, service.log[-3000:]
