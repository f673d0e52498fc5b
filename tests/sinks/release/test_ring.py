"""Opening the producers of a shard while another process opens them too."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from sinks.release import ring
from sinks.release.release_producer import ReleaseProducer
from sinks.release.ring import PRODUCERS
from tests.eventually import assert_eventually
from tests.messages import messages
from tests.sinks.release.bench import ReleaseBench
from tests.sinks.release.conftest import StopAt
from tests.sinks.release.topic_records import ids

# Longer than it takes to open a producer.
_OPENING_S = 2.0
_TIMEOUT_S = 60.0


class HeldOpening:
    """Holds the first producer of the next ring before it is opened, after the others if these do not wait for it.

    `reached` is set then, and the test sets `released`.
    """

    def __init__(self) -> None:
        self.reached, self.released = threading.Event(), threading.Event()
        self._made = 0
        self._others = threading.Semaphore(0)

    def producer(self, *arguments: Any) -> ReleaseProducer:
        """Make one of the producers."""
        self._made += 1
        is_held = self._made <= PRODUCERS
        return _HeldProducer(self, self._made == 1, *arguments) if is_held else ReleaseProducer(*arguments)

    def before_first(self) -> None:
        """Wait."""
        for _ in range(PRODUCERS - 1):
            if not self._others.acquire(timeout=_OPENING_S):
                break
        self.reached.set()
        assert self.released.wait(_TIMEOUT_S)

    def after_other(self) -> None:
        """Take note that another one is open."""
        self._others.release()


class _HeldProducer(ReleaseProducer):
    def __init__(self, held: HeldOpening, is_first: bool, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._held, self._is_first = held, is_first

    def open(self, timeout_s: float) -> None:
        if self._is_first:
            self._held.before_first()
        super().open(timeout_s)
        if not self._is_first:
            self._held.after_other()


def test_of_two_rings_that_open_at_the_same_time_one_commits(
    bench: ReleaseBench, stop_at: StopAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    def due(offset: int) -> None:
        row = {"offset": offset, "deliver_at_ms": 1, "output_topic": bench.settings.topics.output}
        bench.stage(messages([row]))

    held, position_read = HeldOpening(), stop_at("position-read", 2)
    monkeypatch.setattr(ring, "ReleaseProducer", held.producer)
    first = bench.start()
    assert held.reached.wait(_TIMEOUT_S)
    second = bench.start()
    due(0)
    bench.wait(second)
    held.released.set()
    assert position_read.reached.wait(_TIMEOUT_S)
    # The first ring has read where to continue. So the second one may not commit this too.
    due(1)
    assert_eventually(lambda: second.ended.is_set() or bench.is_done(second), _TIMEOUT_S)
    position_read.released.set()
    bench.wait(first)
    assert ids(bench.read(bench.settings.topics.output)) == [0, 1]
    assert second.ended.is_set()
    assert second.error is None
