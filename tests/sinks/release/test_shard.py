"""A shard's release against a real broker: its position, its answers, its progress, and its memory."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest
from confluent_kafka.admin import NewTopic

from sinks.release import shard as shard_module
from sinks.release.encoded_chunks import PayloadMissing
from sinks.release.pending import Pending
from sinks.release.wall_clock import now_ms
from state.answers import Undecided
from state.kinds import REQUEST
from state.order import OrderKey
from streaming.local.broker import EmbeddedBroker
from tests.eventually import assert_eventually
from tests.messages import messages
from tests.sinks.release.bench import ReleaseBench, allow_pending, due_at, released_ids
from tests.sinks.release.conftest import StopAt
from tests.sinks.release.topic_records import create_topics, ids

_HOUR_MS = 3_600_000


def test_a_request_that_comes_too_late_is_answered_with_the_messages_place(
    bench: ReleaseBench, broker: EmbeddedBroker
) -> None:
    settings = bench.settings
    create_topics(broker, NewTopic(settings.results_topic, 1, 1))
    release = bench.start()
    for first in (0, 10):
        bench.stage(due_at(bench, [1] * 5, first))
        assert_eventually(lambda: bench.is_done(release), 60)
    undecided = Undecided(now_ms(), now_ms(), shards=1, left=0).to_bytes()
    key = b"delayline-in/0/12"
    request = {"kind": REQUEST, "output_topic": settings.results_topic, "offset": 99, "key": key, "value": undecided}
    bench.stage(messages([request]))
    bench.wait(release)
    (answer,) = bench.read(settings.results_topic)
    content = json.loads(answer.value() or b"")
    records = bench.read(settings.topics.output)
    first, last = content["output"].pop("offsets")
    assert content["result"] == "too-late"
    assert content["output"] == {"topic": settings.topics.output, "partition": 0}
    assert ids(each for each in records if first <= (each.offset() or 0) <= last) == [10, 11, 12, 13, 14]


def test_the_position_is_written_with_the_messages_and_a_restart_goes_on_from_it(bench: ReleaseBench) -> None:
    assert bench.release(due_at(bench, [1, 3, 5])) == 3
    position = bench.position
    assert position is not None
    assert (position.ready.taken_in, position.ready.lowest, position.released, position.member) == (1, 1, 3, "test")
    assert position.below == OrderKey(5, "delayline-in", 0, 3)
    assert bench.release() == 0
    later = now_ms() + _HOUR_MS
    waiting, due = due_at(bench, [7, later], first=10), due_at(bench, [9], first=20)
    bench.stage(waiting, due)
    release = bench.start()
    assert_eventually(lambda: bench.released == 5, 60)
    assert not release.drained
    bench.stop(release)
    position = bench.position
    assert position is not None
    # Reading begins at the chunk that still has a message, and finds only that one.
    assert (position.ready.taken_in, position.ready.lowest) == (3, 1)
    bench.stage(due_at(bench, [11], first=30))
    release = bench.start()
    assert_eventually(lambda: bench.released == 6, 60)
    bench.stop(release)
    assert released_ids(bench) == [0, 1, 2, 10, 20, 30]


@pytest.mark.parametrize("point", ["transaction-filled", "transaction-ended"])
def test_a_shard_that_waits_for_messages_goes_on_and_one_whose_thread_hangs_does_not(
    bench: ReleaseBench, stop_at: StopAt, point: str
) -> None:
    release = bench.start()
    assert_eventually(lambda: release.drained, 60)
    until_s = time.monotonic() + 1.5
    # Without a sign of life it would be above 1.5 by then, and grow.
    assert_eventually(lambda: time.monotonic() > until_s and release.still_s < 1, 10)
    stopped = stop_at(point)
    bench.stage(due_at(bench, [now_ms()]))
    assert stopped.reached.wait(60)
    assert_eventually(lambda: release.still_s > 1, 10)
    stopped.released.set()
    bench.wait(release)
    assert_eventually(lambda: release.still_s < 1, 10)


@pytest.mark.parametrize("most_bytes", [pytest.param(None, marks=pytest.mark.thorough), 0])
def test_a_large_backlog_of_late_messages_is_released_once(bench: ReleaseBench, most_bytes: int | None) -> None:
    bench.change("release.transaction_messages=500")
    assert bench.release(due_at(bench, [now_ms()])) == 1
    late = [
        due_at(bench, sorted(n % 997 for n in range(at, at + 1_000)), first=at) for at in range(1_000, 16_000, 1_000)
    ]
    bench.stage(*late, due_at(bench, [now_ms() + 1_000], first=1))
    release = allow_pending(bench.prepare(), most_bytes)
    release.start()
    bench.wait(release)
    assert bench.settled() == 15_002
    released = released_ids(bench)
    assert sorted(released) == [0, 1, *range(1_000, 16_000)]
    places = {identity: place for place, identity in enumerate(released)}
    for chunk in late:
        of_chunk = [places[offset] for offset in chunk.column("offset").to_pylist()]
        assert of_chunk == sorted(of_chunk)


def test_what_is_pending_takes_no_more_memory_than_allowed_and_is_read_again_when_it_is_needed(
    bench: ReleaseBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = missing = 0

    class Watched(Pending):
        def add(self, *arguments: Any) -> None:
            nonlocal most
            super().add(*arguments)
            most = max(most, self.merge.nbytes)

        def plan(self, *arguments: Any) -> Any:
            nonlocal most, missing
            # With the chunks that were read again since the last call.
            most = max(most, self.merge.nbytes)
            try:
                return super().plan(*arguments)
            except PayloadMissing:
                missing += 1
                raise
            finally:
                most = max(most, self.merge.nbytes)

    monkeypatch.setattr(shard_module, "Pending", Watched)
    bench.change("release.max_bytes=16777216")
    rng = np.random.default_rng(7)
    # 60 MB. The messages that are needed last come first.
    for at in range(5_950, -50, -50):
        rows = [{"offset": at + n, "deliver_at_ms": 1 + at + n, "output_topic": bench.settings.topics.output,
                 "value": rng.bytes(10_000)} for n in range(50)]  # fmt: skip
        bench.stage(messages(rows))
    assert bench.release() == 6_000
    assert released_ids(bench) == [*range(6_000)]
    assert missing > 0
    assert most <= 16 * 1024 * 1024
