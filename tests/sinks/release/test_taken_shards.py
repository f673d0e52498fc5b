"""A shard that another process takes, against a real broker: each message is released once."""

from __future__ import annotations

import time
from typing import Any

import pytest

from sinks.release.shard import ShardRelease
from sinks.release.transaction import TransactionWriter
from tests.eventually import assert_eventually
from tests.sinks.release.bench import ReleaseBench, due_at, released_ids
from tests.sinks.release.conftest import Stop, StopAt


@pytest.mark.parametrize("point", ["position-unread", "transaction-filled", "transaction-ended"])
def test_another_process_takes_the_shard_and_the_first_one_ends_without_an_error(
    bench: ReleaseBench, stop_at: StopAt, point: str
) -> None:
    bench.change("release.transaction_messages=5")
    stopped = stop_at(point)
    bench.stage(due_at(bench, [1] * 20))
    first = bench.start()
    assert stopped.reached.wait(60)
    second = bench.start()
    bench.wait(second)
    stopped.released.set()
    if point == "position-unread":
        # A process that has nothing to write does not notice.
        assert_eventually(lambda: first.position is not None, 60)
    bench.stage(due_at(bench, [2] * 20, first=20))
    bench.wait(second)
    assert first.ended.wait(60)
    assert first.error is None
    assert bench.settled() == 40
    assert released_ids(bench) == [*range(40)]


def test_a_process_that_loses_the_shard_while_it_fills_a_transaction_ends_without_an_error(
    bench: ReleaseBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = Stop()
    fill_whole = TransactionWriter._fill_whole

    def fill(*arguments: Any) -> None:
        is_first = not stop.reached.is_set()
        stop.passed()
        fill_whole(*arguments)
        # More, until the client has found out.
        while is_first:
            time.sleep(0.01)
            fill_whole(*arguments)

    monkeypatch.setattr(TransactionWriter, "_fill_whole", fill)
    bench.stage(due_at(bench, [1] * 20))
    first = bench.start()
    assert stop.reached.wait(60)
    second = bench.start()
    bench.wait(second)
    stop.released.set()
    assert first.ended.wait(60)
    assert first.error is None
    assert released_ids(bench) == [*range(20)]


def test_processes_that_take_the_shard_from_each_other_in_the_midst_of_it_release_each_message_once(
    bench: ReleaseBench,
) -> None:
    bench.change("release.transaction_messages=5")
    bench.stage(due_at(bench, [1] * 1_000))
    while (before := bench.released) < 1_000:
        release = bench.start()
        # If two open at the same time, both may end. In the end, one of them has the shard to itself.
        most = min(before + 200, 1_000) if len(bench.prepared) < 5 else 1_000
        _wait_for(release, bench, most)
    assert [release.error for release in bench.prepared] == [None] * len(bench.prepared)
    assert released_ids(bench) == [*range(1_000)]


def _wait_for(release: ShardRelease, bench: ReleaseBench, most: int) -> None:
    assert_eventually(lambda: release.ended.is_set() or bench.released >= most, 60)
