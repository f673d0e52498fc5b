"""The crash matrix: after a SIGKILL to the whole process tree at any point of a batch, the invariants still hold."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from typing import Any

import pytest

from conf.failpoints import FORWARD_POINTS, LANE_POINTS, POINTS, RELEASE_POINTS, VARIABLE
from tests.eventually import assert_eventually
from tests.system.conftest import Application, MakeService
from tests.system.host_clock import HostClock
from tests.system.load import cancel_some, deliver_some, publish_mixed, replace_some
from tests.system.service import Service

# These points are passed once for each transaction: the second passing is in the middle of a batch.
_PASSING = {
    "transaction-open": 2,
    "transaction-committed": 2,
    "ring-fencing": 5,
    "transaction-filled": 4,
    "transaction-ended": 3,
}
# Many small buckets, which are merged as soon as there are two.
_FEW = ("bucket.fan_in=2", "bucket.max_messages=5", "limits.messages_per_trigger=60")
# The points need these to be reached: settings, and delays so long that messages still wait.
_MATRIX: dict[tuple[str, ...], tuple[tuple[str, ...], int]] = {
    ("recovering", "batch-begun", "claims-read", "state-held", "batch-done"): ((), 20_000),
    ("transaction-open", "transaction-committed", "staged"): ((), 20_000),
    ("sealing", "sealed"): ((), 20_000),
    # Points of the release process, which takes the driver and its Java process with it.
    ("transaction-filled", "transaction-ended"): ((), 20_000),
    ("shards-assigned", "ring-fencing", "position-read"): ((), 20_000),
    # So long that buckets wait, however long a start takes.
    ("merging", "slice-merged", "merged"): (_FEW, 120_000),
    # Points of the forwarder, which takes the other processes with it.
    ("lanes-assigned", "lane-opened", "near-filled", "near-claimed"): ((), 20_000),
    # Points of a job that has lanes without forwarders.
    ("lane-fenced", "lane-claimed"): (("forward.processes=0", "forward.elsewhere=true"), 20_000),
}
# The same with messages that are cancelled and replaced. Messages that a release process recalls are staged long before
# they are due.
_MATRIX_WITH_ASKS: dict[tuple[str, ...], tuple[tuple[str, ...], int]] = {
    ("cancelled", "transaction-filled", "near-claimed"): (("clock.horizon=8s",), 20_000),
    ("batch-begun", "claims-read", "state-held", "sealing", "sealed"): ((), 30_000),
    ("transaction-open", "transaction-committed", "staged", "batch-done"): ((), 30_000),
    # For requests that were staged before the kill, the next process finds out which messages they have recalled.
    ("transaction-ended", "shards-assigned", "ring-fencing", "position-read"): (("clock.horizon=15s",), 30_000),
    ("merging", "slice-merged", "merged"): (_FEW, 120_000),
}
# The row of `make test`: a kill of the job, one of its release process, one of its forwarder. The demo kills the driver
# as well.
_ALWAYS = {("cancelled", "transaction-filled", "near-claimed")}
# Revoking shards takes a second process: tests/system/test_release.py. So does revoking lanes:
# tests/streaming/forward/test_process.py.
# Occurrences need messages that repeat: tests/system/test_repeating.py.
_ELSEWHERE = {"cleaning", "shards-revoked", "following", "followed"}
# Much falls due while the job starts again and again, before anything has accepted it.
_LEAST_CHECKED = 0.1
_OF_LANES = FORWARD_POINTS.keys() | LANE_POINTS.keys()


def test_the_matrix_has_every_point() -> None:
    for matrix, not_in_it in ((_MATRIX, {"cancelled"}), (_MATRIX_WITH_ASKS, {"recovering"})):
        points = [point for points in matrix for point in points if point not in _OF_LANES]
        # Without requests, no batch passes `cancelled`; and before a start has recovered, nobody looks for a request.
        assert sorted([*points, *_ELSEWHERE, *not_in_it]) == sorted(POINTS | RELEASE_POINTS)
    assert {point for points in _MATRIX for point in points} >= _OF_LANES - {"lanes-revoked"}


def _rows(matrix: Iterable[tuple[str, ...]]) -> list[Any]:
    return [
        pytest.param(row, marks=[] if row in _ALWAYS else [pytest.mark.thorough], id=" ".join(row)) for row in matrix
    ]


def _run_until_killed(service: Service, point: str) -> None:
    service.start(f"{point}@{_PASSING.get(point, 1)}=kill", wait=False)
    assert service.wait(120) == -signal.SIGKILL, f"{point} was not reached:\n{service.log[-3000:]}"


@pytest.mark.takes(60)
@pytest.mark.parametrize("points", _rows(_MATRIX_WITH_ASKS))
def test_after_killing_the_driver_at_each_point_each_request_is_answered_once_and_the_answers_agree(
    application: Application, make_service: MakeService, points: tuple[str, ...]
) -> None:
    """Each start finds requests for messages of earlier starts, which wait, are staged, or have come out."""
    settings, longest_ms = _MATRIX_WITH_ASKS[points]
    service, ledger = make_service("release.slice=20ms", *settings)
    for seed, point in enumerate(points):
        publish_mixed(ledger, application, 200, seed, longest_ms)
        cancel_some(ledger, application, seed, share=0.15)
        replace_some(ledger, application, seed)
        deliver_some(ledger, application, seed + 100, share=0.1)
        _run_until_killed(service, point)
    service.start()
    # Accepted in time, however long the starts have taken.
    publish_mixed(ledger, application, 200, seed=len(POINTS), longest_ms=10_000)
    cancel_some(ledger, application, seed=len(POINTS), share=0.1)
    ledger.verify_after_outage(180, _LEAST_CHECKED)
    assert ledger.cancelled()
    assert ledger.refused()
    assert service.stop() == 0, service.log[-3000:]


@pytest.mark.takes(70)
@pytest.mark.parametrize("points", _rows(_MATRIX))
def test_after_killing_the_driver_at_each_point_no_message_is_lost_duplicated_or_early(
    application: Application, make_service: MakeService, points: tuple[str, ...]
) -> None:
    """Each start has another failpoint, and recovers from the previous kill."""
    settings, longest_ms = _MATRIX[points]
    service, ledger = make_service("release.slice=20ms")
    regular = list(service.overrides)
    for seed, point in enumerate(points):
        publish_mixed(ledger, application, 250, seed, longest_ms)
        service.overrides[:] = [*regular, *settings]
        _run_until_killed(service, point)
    service.overrides[:] = regular
    service.start()
    # These are accepted in time, however long the starts have taken.
    publish_mixed(ledger, application, 250, seed=len(POINTS), longest_ms=5_000)
    ledger.verify_after_outage(180, _LEAST_CHECKED)
    assert service.stop() == 0, service.log[-3000:]


@pytest.mark.thorough
@pytest.mark.takes(50)
def test_after_killing_the_driver_while_it_cleans_up_no_message_is_lost_or_duplicated(
    application: Application, make_service: MakeService, clock: HostClock
) -> None:
    service, ledger = make_service("clock.skew_limit=1d")
    service.environment, ledger.shown_ms = clock.environment, clock.highest_ms
    service.start("cleaning=kill")
    publish_mixed(ledger, application, 400, seed=2, longest_ms=20_000)
    assert_eventually(lambda: len(ledger.got) > 100, 60, "deliveries")
    # Past the last due time of a bucket, and past the time at which the next deletion is due.
    clock.set_off(120)
    assert service.wait(120) == -signal.SIGKILL, f"nothing was cleaned up:\n{service.log[-3000:]}"
    publish_mixed(ledger, application, 300, seed=3, longest_ms=8_000)
    service.start()
    ledger.verify_after_outage(60)
    assert service.stop() == 0, service.log[-3000:]


@pytest.mark.thorough
@pytest.mark.parametrize("failpoint", ["transaction-open@2", "transaction-committed@1"])
def test_a_task_that_fails_inside_or_after_a_transaction_and_is_retried_delivers_once(
    application: Application, make_service: MakeService, failpoint: str
) -> None:
    # Only for the workers. The driver does not pass these points, so that it can be a warm process.
    service, ledger = make_service(f"spark.spark.executorEnv.{VARIABLE}={failpoint}=raise")
    service.start()
    publish_mixed(ledger, application, 300, seed=1)
    ledger.wait_for_all(60)
    ledger.verify()
    assert f"failpoint {failpoint.partition('@')[0]}" in service.log, "no task failed"
    assert service.stop() == 0, service.log[-3000:]
