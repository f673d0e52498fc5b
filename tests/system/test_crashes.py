"""The crash matrix: SIGKILL to the whole process tree at each point of a batch, and the invariants still hold."""

from __future__ import annotations

import signal

import pytest

from conf.failpoints import POINTS
from tests.system.conftest import Application, MakeService
from tests.system.load import publish_mixed

# Where a batch is cut into several transactions, the second passing is in the middle of it.
_PASSING = {"transaction-open": 2, "transaction-committed": 2}


def test_the_driver_killed_at_each_point_loses_doubles_and_hastens_nothing(
    application: Application, make_service: MakeService
) -> None:
    """Each start has a failpoint of its own, and recovers from the one before."""
    service, ledger = make_service("delivery.slice=20ms")
    # Merges first: later most of what waits is overdue when a start comes to read it, and no bucket outlives the next.
    points = [point for point in POINTS if point != "cleaning"]
    for seed, point in enumerate(sorted(points, key=lambda point: not point.startswith("merg"))):
        merging = point.startswith("merg")
        publish_mixed(ledger, application, 250, seed, longest_ms=90_000 if merging else 20_000)
        # Several small buckets, and merged when there are two.
        few = ["bucket.limit=1", "bucket.max_messages=5", "limits.messages_per_trigger=60"] if merging else []
        service.overrides[:] = [*application.overrides("delivery.slice=20ms"), *few]
        service.start(f"{point}@{_PASSING.get(point, 1)}=kill", wait=False)
        assert service.wait(120) == -signal.SIGKILL, f"{point} was not reached:\n{service.log[-3000:]}"
    publish_mixed(ledger, application, 250, seed=len(POINTS), longest_ms=5_000)
    service.start()
    ledger.verify_after_outage(120)
    assert service.stop() == 0, service.log[-3000:]


def test_the_driver_killed_while_it_cleans_up_loses_and_doubles_nothing(
    application: Application, make_service: MakeService
) -> None:
    service, ledger = make_service("storage.time_partition=1m")
    service.start("cleaning=kill")
    # Time partitions begin to count from a batch's cutoff, which a first batch does not have.
    publish_mixed(ledger, application, 50, seed=1, longest_ms=3_000)
    ledger.wait_for_all(60)
    publish_mixed(ledger, application, 400, seed=2, longest_ms=20_000)
    assert service.wait(120) == -signal.SIGKILL, f"nothing was cleaned up:\n{service.log[-3000:]}"
    publish_mixed(ledger, application, 300, seed=3, longest_ms=8_000)
    service.start()
    ledger.verify_after_outage(60)
    assert service.stop() == 0, service.log[-3000:]


@pytest.mark.parametrize("failpoint", ["transaction-open@2", "transaction-committed@1"])
def test_a_task_that_fails_inside_or_after_a_transaction_and_is_retried_delivers_once(
    application: Application, make_service: MakeService, failpoint: str
) -> None:
    service, ledger = make_service()
    service.start(f"{failpoint}=raise")
    publish_mixed(ledger, application, 300, seed=1)
    ledger.wait_for_all(60)
    ledger.verify()
    assert f"failpoint {failpoint.partition('@')[0]}" in service.log, "no task failed"
    assert service.stop() == 0, service.log[-3000:]
