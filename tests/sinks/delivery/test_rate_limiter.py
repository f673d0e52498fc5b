"""The limit on a shard's rate."""

from __future__ import annotations

import pytest

from sinks.delivery import rate_limiter as rate_limiter_module
from sinks.delivery.rate_limiter import RateLimiter


class _Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    """The time that a pace goes by."""
    clock = _Clock()
    monkeypatch.setattr(rate_limiter_module, "time", clock)
    return clock


def test_without_a_limit_nothing_waits(clock: _Clock) -> None:
    pace = RateLimiter(0)
    pace.spend(10**9)
    pace.wait()
    assert clock.now_s == 100.0
    assert pace.most_at_once(50_000) == 50_000


def test_what_went_is_waited_for_and_a_rest_saves_nothing_up(clock: _Clock) -> None:
    pace = RateLimiter(10)
    pace.spend(25)
    pace.wait()
    assert clock.now_s == pytest.approx(102.5)
    clock.now_s += 1000
    pace.spend(10)
    pace.wait()
    assert clock.now_s == pytest.approx(1103.5)


@pytest.mark.parametrize(("per_second", "most"), [(0.5, 1), (1, 1), (300, 300), (10**6, 500)])
def test_no_more_than_a_second_of_it_goes_at_once(per_second: float, most: int) -> None:
    assert RateLimiter(per_second).most_at_once(500) == most
