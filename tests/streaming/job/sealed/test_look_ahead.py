"""Reads of the table that run next to the batches."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from conf.errors import ApplicationHeld
from streaming.job.sealed.look_ahead import LookAhead
from streaming.maintenance.failures import Failures

Start = Callable[[Callable[[], None]], Future[None]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Run a function in another thread."""
    with ThreadPoolExecutor(2) as threads:
        yield threads.submit


def look_ahead_of(
    start: Start, ids: Callable[[], None] = lambda: None, now: Callable[[], float] = lambda: 0.0, **store: Any
) -> LookAhead:
    """Return one for a table with the methods `store`. `ids` reads the ids."""
    table: Any = SimpleNamespace(**{"version": lambda: 1, "size": lambda: (10, 1), "look_ahead": lambda: None} | store)
    desk: Any = SimpleNamespace(look_ahead=ids)
    return LookAhead(table, desk, start, Failures("storage/buckets", now))


def test_nobody_waits_for_the_size_while_a_version_is_read(start: Start) -> None:
    may_go_on, reading, versions = Event(), Event(), [1]

    def read() -> None:
        reading.set()
        assert may_go_on.wait(10)

    ahead = look_ahead_of(start, version=lambda: versions[-1], size=lambda: (10 * versions[-1], 1), look_ahead=read)
    ahead.size()
    assert reading.wait(10)
    versions.append(2)
    assert ahead.size() == (10, 1)
    may_go_on.set()
    ahead.wait()
    # A merge has made another version. The next caller lets it be read.
    ahead.size()
    ahead.wait()
    assert ahead.size() == (20, 1)


def test_a_reading_of_ids_that_takes_long_is_not_begun_again_before_it_ends(start: Start) -> None:
    may_go_on = Event()
    begun: list[int] = []

    def read() -> None:
        begun.append(0)
        assert may_go_on.wait(10)

    ahead = look_ahead_of(start, ids=read)
    for _ in range(3):
        ahead.begin()
        ahead.wait()
    assert len(begun) == 1
    may_go_on.set()


def test_what_fails_beside_a_batch_fails_the_next(start: Start) -> None:
    def fail() -> None:
        raise ValueError("the log is gone")

    ahead = look_ahead_of(start, look_ahead=fail)
    ahead.begin()
    with pytest.raises(ValueError, match="the log is gone"):
        ahead.wait()


def test_ids_that_cannot_be_copied_fail_no_batch_and_are_tried_again_after_a_pause() -> None:
    tried: list[float] = []
    now_s = 0.0

    def fail() -> None:
        tried.append(now_s)
        if now_s < 100:
            raise ValueError("a file is damaged")

    def at_once(function: Callable[[], None]) -> Future[None]:
        future = Future[None]()
        try:
            function()
            future.set_result(None)
        except ValueError as problem:
            future.set_exception(problem)
        return future

    ahead = look_ahead_of(at_once, ids=fail, now=lambda: now_s)
    for now_s in (0.0, 1.0, 59.0, 62.0, 63.0, 122.0, 190.0, 191.0, 192.0):  # noqa: B007, the functions read it
        ahead.begin()
    # A minute after it was seen, and two minutes after the next failure.
    assert tried == [0.0, 62.0, 190.0, 191.0, 192.0]


def test_a_lost_lease_ends_the_job_wherever_it_is_found() -> None:
    failed = Future[None]()
    failed.set_exception(ApplicationHeld("another process holds it"))
    done = Future[None]()
    done.set_result(None)
    several = [done, failed, done]
    ahead = look_ahead_of(lambda _: several.pop(0))
    ahead.begin()
    with pytest.raises(ApplicationHeld):
        ahead.begin()
