"""The limits on a shard's rate."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from conf.load import load_settings
from sinks.release import rate_limiter as rate_limiter_module
from sinks.release import shard_rates
from sinks.release.context import ReleaseContext
from sinks.release.rate_limiter import RateLimiter, shares
from sinks.release.shard_beat import ShardBeat
from sinks.release.shard_rates import ShardRates


class _Clock(threading.Event):
    """A clock that waits for nothing but tells how long: `time`, and the event, of a rate limiter."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def wait(self, timeout: float | None = None) -> bool:
        self.now_s += timeout or 0
        return self.is_set()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    """The clock that a rate limiter reads."""
    clock = _Clock()
    monkeypatch.setattr(rate_limiter_module, "time", clock)
    return clock


def _messages(**counts: int) -> pa.Table:
    return pa.table({"output_topic": [topic for topic, count in counts.items() for _ in range(count)]})


def _as_accepted(messages: pa.Table) -> pa.ChunkedArray:
    return messages.column("output_topic")


def _spend(limiter: RateLimiter, **counts: int) -> None:
    limiter.spend(limiter.charges(_messages(**counts), _as_accepted), rate_limiter_module.time.monotonic())


def _wait(limiter: RateLimiter, stopping: threading.Event, **counts: int) -> bool:
    return limiter.wait(limiter.charges(_messages(**counts), _as_accepted), stopping)


def test_without_a_limit_nothing_waits(clock: _Clock) -> None:
    limiter = RateLimiter(0, {})
    _spend(limiter, a=10**5)
    assert _wait(limiter, clock, a=1)
    assert clock.now_s == 100.0
    assert limiter.most_at_once == {}


def test_wait_lasts_until_the_rate_allows_more_and_idle_time_saves_nothing_up(clock: _Clock) -> None:
    limiter = RateLimiter(10, {})
    _spend(limiter, a=25)
    assert _wait(limiter, clock, a=1)
    assert clock.now_s == pytest.approx(102.5)
    clock.now_s += 1000
    _spend(limiter, a=10)
    assert _wait(limiter, clock, a=1)
    assert clock.now_s == pytest.approx(1103.5)


def test_the_time_that_writing_takes_counts_as_well(clock: _Clock) -> None:
    limiter = RateLimiter(10, {})
    clock.now_s += 5
    limiter.spend({None: 10}, begun_s=104.5)
    assert limiter.wait([None], clock)
    assert clock.now_s == pytest.approx(105.5)


def test_messages_of_other_topics_do_not_wait_for_a_limited_one(clock: _Clock) -> None:
    limiter = RateLimiter(0, {"a": 2, "b": 10})
    _spend(limiter, a=8, b=10, c=1000)
    assert _wait(limiter, clock, c=50)
    assert clock.now_s == 100
    assert _wait(limiter, clock, b=1, c=1)
    assert clock.now_s == pytest.approx(101)
    assert _wait(limiter, clock, b=1, a=1)
    assert clock.now_s == pytest.approx(104)


def test_a_long_wait_says_every_second_that_it_goes_on(clock: _Clock) -> None:
    limiter = RateLimiter(0, {"a": 0.01})
    _spend(limiter, a=1)
    told: list[float] = []
    assert limiter.wait(["a"], clock, lambda: told.append(clock.now_s))
    assert clock.now_s == pytest.approx(200)
    assert len(told) >= 100


def test_rates_that_are_read_again_forget_nothing_that_is_spent(clock: _Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = [{"a": 2}, {"a": 1}]
    monkeypatch.setattr(shard_rates, "partition_counts", lambda *_: counts.pop(0))
    overrides = ["topics.allowed_outputs=a", "rates.a=1", "release.messages_per_second=100", "bucket.shards=1"]
    context = ReleaseContext(load_settings(None, overrides, environ={}), "test")
    rates = ShardRates(context, 0, ShardBeat(0, 1_000, threading.Event()))
    for _ in range(2):
        rates.read()
        _spend(rates.limiter, a=10)
    assert _wait(rates.limiter, clock, a=1)
    assert clock.now_s == pytest.approx(100 + 20)


def test_what_becomes_a_dead_letter_counts_for_the_dead_letter_topic_alone() -> None:
    messages = _messages(a=3, dead=1)

    def goes_to(messages: pa.Table) -> pa.ChunkedArray:
        return pa.chunked_array([["a", "dead", "dead", "dead"]])

    assert RateLimiter(10, {"a": 1, "dead": 1, "c": 1}).charges(messages, goes_to) == {"a": 1, "dead": 3, None: 2}
    assert RateLimiter(0, {"a": 1}).charges(messages, goes_to) == {"a": 1}


def test_a_stop_ends_the_wait(clock: _Clock) -> None:
    limiter = RateLimiter(1, {})
    _spend(limiter, a=1)
    clock.set()
    assert not _wait(limiter, clock, a=1)


@pytest.mark.parametrize(("per_second", "most"), [(0.5, 1), (1, 1), (300, 300), (10**6, 10**6)])
def test_at_most_one_seconds_messages_go_at_once(per_second: float, most: int) -> None:
    assert RateLimiter(per_second, {"a": per_second}).most_at_once == {None: most, "a": most}


@pytest.mark.parametrize("shards", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("partitions", [1, 2, 3, 10])
def test_the_shards_shares_are_the_whole_rate(partitions: int, shards: int) -> None:
    rates = {"a": 30, "gone": 5}
    own = [shares(rates, {"a": partitions, "b": 1}, shard, shards) for shard in range(shards)]
    assert sum(share.get("a", 0) for share in own) == pytest.approx(30)
    assert [share["gone"] for share in own] == pytest.approx([5 / shards] * shards)
    assert all(share.keys() <= {"a", "gone"} and 0 not in share.values() for share in own)
