"""When a release process is started again, and when it needs an operator, by a clock of the test's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from conf.errors import BrokerUnreachable, DelaylineError, LoginRefused, ProcessFailed, TopicMissing
from conf.load import load_settings
from streaming.processes import child
from streaming.processes.kinds import Kind
from streaming.processes.supervisor import Processes

# The limit of one outage, in which each start takes some seconds to fail.
_LIMIT_S, _START_S = 100, 10


class _Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


@pytest.fixture
def processes(clock: _Clock) -> Processes:
    settings = load_settings(None, [f"kafka.outage_limit={_LIMIT_S}s"], environ={})
    return Processes(settings, {Kind.RELEASE: 1}, now=clock)


def ends(
    processes: Processes, clock: _Clock, error: Callable[[], DelaylineError], most_s: float, after_s: float = _START_S
) -> float:
    """Let each start fail with `error`; return after how many seconds `check` raises it, `most_s` at the most.

    A start fails `after_s`.
    """
    (process,) = processes._processes
    begun_s = clock.now_s
    while clock.now_s < begun_s + most_s and processes._error is None:
        process.restarts.started_s = clock.now_s = max(clock.now_s, process.restarts.next_start_s)
        clock.now_s += after_s
        processes._count(process, error(), is_error=True)
    return clock.now_s - begun_s


@pytest.mark.parametrize("error", [TopicMissing, LoginRefused])
def test_an_error_that_comes_again_and_again_needs_an_operator(
    processes: Processes, clock: _Clock, error: type[DelaylineError]
) -> None:
    assert ends(processes, clock, lambda: error("no"), most_s=1_000) < 100
    with pytest.raises(error):
        processes.check()


@pytest.mark.parametrize("error", [TopicMissing, BrokerUnreachable])
def test_an_error_that_comes_only_after_the_wait_for_brokers_needs_an_operator_too(
    processes: Processes, clock: _Clock, error: type[DelaylineError]
) -> None:
    assert ends(processes, clock, lambda: error("no"), most_s=10_000, after_s=_LIMIT_S + 10) < 10 * _LIMIT_S
    with pytest.raises(error):
        processes.check()


def test_a_forwarder_that_fails_again_and_again_is_tried_every_minute_and_ends_nothing(clock: _Clock) -> None:
    processes = Processes(load_settings(None, [], environ={}), {Kind.FORWARD: 1}, now=clock)
    assert ends(processes, clock, lambda: TopicMissing("no"), most_s=1_000) >= 1_000
    processes.check()
    (process,) = processes._processes
    assert process.restarts.next_start_s == clock.now_s + 60
    # The count starts again for a process that has run for a while.
    clock.now_s += 600
    processes._count(process, ProcessFailed("killed"), is_error=False)
    assert process.restarts.next_start_s == clock.now_s


def test_brokers_that_are_away_are_waited_for_as_long_as_by_the_job(processes: Processes, clock: _Clock) -> None:
    def away() -> DelaylineError:
        return BrokerUnreachable("nobody answers")

    assert ends(processes, clock, away, most_s=_LIMIT_S) >= _LIMIT_S
    processes.check()
    # They come back, and the process runs for a while.
    (process,) = processes._processes
    clock.now_s += 600
    processes._count(process, ProcessFailed("killed"), is_error=False)
    assert ends(processes, clock, away, most_s=1_000) > _LIMIT_S
    with pytest.raises(BrokerUnreachable):
        processes.check()


def test_a_start_that_this_host_refuses_is_tried_again_and_then_reported(
    processes: Processes, clock: _Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(child.subprocess, "Popen", refuse)
    (process,) = processes._processes
    for _ in range(4):
        processes.check()
        clock.now_s = max(clock.now_s, process.restarts.next_start_s)
        processes._try_to_start(process)
        assert process.popen is None
    with pytest.raises(ProcessFailed, match="cannot start the process: BlockingIOError"):
        processes.check()
