"""How far behind the host's clock may be before the job refuses to wait for it, and how far ahead of the broker's."""

from __future__ import annotations

import logging

import pytest

from conf.errors import ClockAhead, ClockBehind
from state.checkpoint.planned_batch import TOLERANCE_MS, PlannedBatch
from streaming.job.watches.clock_watch import ClockWatch, check_not_ahead

_HORIZON_MS = 60_000
_SHOWN_MS = 1_795_264_674_131
# Begun 500 ms after the previous batch. The clock and the horizon of that batch made this cutoff.
_BATCH = PlannedBatch(7, _SHOWN_MS, _SHOWN_MS - 500 + _HORIZON_MS, {})


class Host:
    """A clock that a test sets."""

    now_ms = _SHOWN_MS


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def watch(host: Host) -> ClockWatch:
    return ClockWatch(lambda: host.now_ms)


def _warnings(caplog: pytest.LogCaptureFixture) -> int:
    return sum(record.levelno == logging.WARNING for record in caplog.records)


def test_a_clock_that_runs_on_or_is_set_forward_gives_no_warning(
    watch: ClockWatch, host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    watch.check(None)
    for ahead_ms in (-1_000, 0, 500, 86_400_000):
        host.now_ms = _SHOWN_MS + ahead_ms
        watch.check(_BATCH)
    assert not _warnings(caplog)


def test_up_to_a_minute_behind_is_tolerated_with_one_warning_each_time(
    watch: ClockWatch, host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    for behind_ms in (TOLERANCE_MS, 30_000, 1_001):
        host.now_ms = _SHOWN_MS - behind_ms
        watch.check(_BATCH)
        assert _warnings(caplog) == 1
    assert "0:01:00 before" in caplog.text
    host.now_ms = _SHOWN_MS
    watch.check(_BATCH)
    host.now_ms = _SHOWN_MS - 20_000
    watch.check(_BATCH)
    assert _warnings(caplog) == 2


def test_more_than_a_minute_behind_is_an_error_with_both_times_and_the_remedy(watch: ClockWatch, host: Host) -> None:
    host.now_ms = _SHOWN_MS - 3_600_000
    with pytest.raises(
        ClockBehind, match=r"T11:37:54\.131Z, which is 1:00:00 before the .*T12:37:54\.131Z.* Correct the clock"
    ):
        watch.check(_BATCH)


def test_a_batch_that_began_after_the_clock_was_set_back_does_not_hide_it(watch: ClockWatch, host: Host) -> None:
    watch.check(_BATCH)
    host.now_ms = _SHOWN_MS - TOLERANCE_MS - 2
    later_batch = PlannedBatch(8, host.now_ms - 1, _SHOWN_MS + _HORIZON_MS, {})
    with pytest.raises(ClockBehind, match="batch 8 or an earlier one"):
        watch.check(later_batch)


def test_a_cutoff_that_is_an_hour_ahead_is_no_error(watch: ClockWatch, caplog: pytest.LogCaptureFixture) -> None:
    watch.check(PlannedBatch(7, _SHOWN_MS, _SHOWN_MS + 3_600_000, {}))
    assert not _warnings(caplog)


class Answers:
    """A broker's clock: the estimate of it, and the time that it shows on request."""

    def __init__(self, estimate_ms: float | None, asked_ms: float | None = None) -> None:
        self.broker_ms = estimate_ms
        self._asked_ms = estimate_ms if asked_ms is None else asked_ms
        self.was_asked = False

    def check_now(self) -> None:
        self.was_asked, self.broker_ms = True, self._asked_ms


_LIMIT_MS = 120_000


def test_a_clock_within_the_limit_is_believed_without_asking_the_broker() -> None:
    for ahead_ms in (-86_400_000, 0, _LIMIT_MS):
        broker = Answers(_SHOWN_MS - ahead_ms)
        check_not_ahead(_SHOWN_MS, "this host's clock", broker, _LIMIT_MS)
        assert not broker.was_asked
    check_not_ahead(_SHOWN_MS, "this host's clock", Answers(None), _LIMIT_MS)


def test_a_clock_that_is_further_ahead_is_an_error_with_both_times_and_the_limit() -> None:
    pattern = (
        r"the clock of batch 7 shows 2026-11-21T\S+Z, which is 365 days, 0:00:00 ahead of the broker's clock, "
        r"2025-11-21T\S+Z\. "
        r"clock.skew_limit is 0:02:00\. Correct the wrong .* No messages were staged"
    )
    with pytest.raises(ClockAhead, match=pattern):
        check_not_ahead(_SHOWN_MS, "the clock of batch 7", Answers(_SHOWN_MS - 365 * 86_400_000), _LIMIT_MS)


def test_a_host_that_was_paused_for_hours_goes_on_once_the_broker_has_said_its_time() -> None:
    # The monotonic clock of a virtual machine stands still while it is paused.
    broker = Answers(_SHOWN_MS - 7_200_000, asked_ms=_SHOWN_MS - 20)
    check_not_ahead(_SHOWN_MS, "the clock of batch 7", broker, _LIMIT_MS)
    assert broker.was_asked
