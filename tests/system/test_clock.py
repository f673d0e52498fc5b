"""The host's clock is set while the job runs: no message is early by that clock, lost or duplicated."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from tests.system.checkpoint_files import newest
from tests.system.conftest import Application, MakeService
from tests.system.host_clock import HostClock
from tests.system.ledger import Ledger
from tests.system.service import Service

_HOUR_S, _DAY_S = 3_600, 86_400


@pytest.fixture
def job(make_service: MakeService, clock: HostClock) -> tuple[Service, Ledger]:
    """A job on that host, not started yet, and its ledger."""
    # The broker keeps the real clock.
    service, ledger = make_service("release.transaction_timeout=10s", "clock.skew_limit=366d")
    service.environment, ledger.shown_ms = clock.environment, clock.highest_ms
    return service, ledger


def _publish(ledger: Ledger, application: Application, delays_ms: Iterable[int]) -> None:
    for number, delay_ms in enumerate(delays_ms):
        after = [("deliver-after", str(delay_ms).encode())]
        key = str(number % 10).encode()
        ledger.publish(application.input, b"x", after, key=key, output=application.output, delay_ms=delay_ms)
    ledger.flush()


def _wait_for_more(ledger: Ledger, count: int) -> None:
    before = len(ledger.got)
    ledger.wait_for(lambda: len(ledger.got) >= before + count, 60)
    assert len(ledger.got) >= before + count


def _wait_for_batch(application: Application, ledger: Ledger) -> None:
    """Wait until a batch has been planned: then it has just read the clock, however long it takes."""
    offset_log = application.checkpoint / "offsets"
    before = newest(offset_log)
    ledger.wait_for(lambda: newest(offset_log) > before, 60)
    assert newest(offset_log) > before


def _assert_clock_behind(service: Service) -> None:
    assert service.wait() == 1
    assert service.log.splitlines()[-1].startswith("error: clock-behind: this host's clock shows "), service.log[-3000:]


def _assert_clock_ahead(service: Service) -> None:
    assert service.wait() == 1
    last = service.log.splitlines()[-1]
    assert re.match("error: clock-ahead: .* shows .* ahead of the broker's clock", last), service.log[-3000:]


@pytest.mark.thorough
@pytest.mark.takes(50)
def test_the_job_waits_for_a_clock_set_back_by_seconds_and_no_message_is_early_lost_or_out_of_order(
    application: Application, job: tuple[Service, Ledger], clock: HostClock
) -> None:
    service, ledger = job
    service.start()
    _publish(ledger, application, range(2_000, 15_000, 25))
    _wait_for_more(ledger, 20)
    _wait_for_batch(application, ledger)
    # By more than a transaction may last.
    clock.set_off(-15)
    _publish(ledger, application, range(4_000, 9_000, 25))
    ledger.wait_for_all(60)
    ledger.verify()
    assert service.log.count("wait until the clock has caught up") == 1, service.log[-3000:]
    # The clock stays as it is: the service has no other.
    _publish(ledger, application, range(0, 2_000, 25))
    ledger.wait_for_all(60)
    ledger.verify()
    assert service.stop() == 0, service.log[-3000:]


@pytest.mark.thorough
@pytest.mark.takes(70)
def test_a_clock_set_back_by_an_hour_ends_the_job_and_one_set_forward_by_a_day_delivers_messages_due_by_then(
    application: Application, job: tuple[Service, Ledger], clock: HostClock
) -> None:
    service, ledger = job
    service.start()
    _publish(ledger, application, range(2_000, 20_000, 25))
    _wait_for_more(ledger, 20)
    clock.set_off(-_HOUR_S)
    _assert_clock_behind(service)
    service.start(wait=False)
    _assert_clock_behind(service)
    assert "\nrunning\n" not in service.log
    clock.set_off(0)
    service.start()
    # Messages that fell due while the job was down cannot be in order with earlier deliveries.
    ledger.verify_after_outage(60)

    # A broker refuses records that are over an hour ahead of its own clock.
    _publish(ledger, application, range(20 * 60_000, 50 * 60_000, 4_000))
    # The last messages of each partition: when they are delivered, all earlier ones have been accepted.
    _publish(ledger, application, [2_000] * 20)
    _wait_for_more(ledger, 20)
    clock.set_off(_DAY_S)
    ledger.wait_for_all(60)
    ledger.verify()
    clock.set_off(0)
    _assert_clock_behind(service)


@pytest.mark.thorough
@pytest.mark.takes(45)
def test_no_batch_follows_a_clock_that_jumps_years_ahead_and_the_job_goes_on_once_it_is_set_right(
    application: Application, job: tuple[Service, Ledger], clock: HostClock
) -> None:
    service, ledger = job
    service.overrides.append("clock.skew_limit=2m")
    service.start()
    _publish(ledger, application, range(2_000, 40_000, 100))
    _wait_for_more(ledger, 5)
    # Weeks ahead: by that clock all is due.
    clock.set_off(30 * _DAY_S)
    _assert_clock_ahead(service)
    service.start(wait=False)
    _assert_clock_ahead(service)
    clock.set_off(0)
    # With the clock of the tests' host, which shows the same now: libfaketime makes a start far slower.
    service.environment = {}
    service.start()
    ledger.verify_after_outage(90)
    assert service.stop() == 0, service.log[-3000:]
