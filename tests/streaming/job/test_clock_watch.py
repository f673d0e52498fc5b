"""How far behind the host's clock may be before the job refuses to wait for it."""

from __future__ import annotations

import logging

import pytest

from conf.errors import ClockBehind
from state.checkpoint.planned_batch import PlannedBatch
from streaming.job.clock_watch import TOLERANCE_MS, ClockWatch

_HORIZON_MS = 60_000
_SHOWN_MS = 1_795_264_674_131
# Begun 500 ms after the previous batch, whose clock and horizon made its cutoff.
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
    assert "0:01:00 less than" in caplog.text
    host.now_ms = _SHOWN_MS
    watch.check(_BATCH)
    host.now_ms = _SHOWN_MS - 20_000
    watch.check(_BATCH)
    assert _warnings(caplog) == 2


def test_more_than_a_minute_behind_is_an_error_with_both_times_and_the_remedy(watch: ClockWatch, host: Host) -> None:
    host.now_ms = _SHOWN_MS - 3_600_000
    with pytest.raises(ClockBehind, match=r"T11:37:54\.131Z, 1:00:00 less than the .*T12:37:54\.131Z.* Set it right"):
        watch.check(_BATCH)


def test_a_batch_that_began_after_the_clock_was_set_back_does_not_hide_it(watch: ClockWatch, host: Host) -> None:
    watch.check(_BATCH)
    host.now_ms = _SHOWN_MS - TOLERANCE_MS - 2
    later_batch = PlannedBatch(8, host.now_ms - 1, _SHOWN_MS + _HORIZON_MS, {})
    with pytest.raises(ClockBehind, match="batch 8 or to one before"):
        watch.check(later_batch)


def test_a_cutoff_that_is_an_hour_ahead_is_no_error(watch: ClockWatch, caplog: pytest.LogCaptureFixture) -> None:
    watch.check(PlannedBatch(7, _SHOWN_MS, _SHOWN_MS + 3_600_000, {}))
    assert not _warnings(caplog)
