"""The limit on a shard's rate."""

from __future__ import annotations

import pytest

from sinks.release import rate_limiter as rate_limiter_module
from sinks.release.rate_limiter import RateLimiter


class _Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    """The clock that a rate limiter reads."""
    clock = _Clock()
    monkeypatch.setattr(rate_limiter_module, "time", clock)
    return clock


def test_without_a_limit_nothing_waits(clock: _Clock) -> None:
    limiter = RateLimiter(0)
    limiter.spend(10**9)
    limiter.wait()
    assert clock.now_s == 100.0
    assert limiter.most_at_once(50_000) == 50_000


def test_wait_lasts_until_the_rate_allows_more_and_idle_time_saves_nothing_up(clock: _Clock) -> None:
    limiter = RateLimiter(10)
    limiter.spend(25)
    limiter.wait()
    assert clock.now_s == pytest.approx(102.5)
    clock.now_s += 1000
    limiter.spend(10)
    limiter.wait()
    assert clock.now_s == pytest.approx(1103.5)


@pytest.mark.parametrize(("per_second", "most"), [(0.5, 1), (1, 1), (300, 300), (10**6, 500)])
def test_at_most_one_seconds_messages_go_at_once(per_second: float, most: int) -> None:
    assert RateLimiter(per_second).most_at_once(500) == most
