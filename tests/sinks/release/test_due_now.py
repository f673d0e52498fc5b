"""Requests for staged messages to be due now, in the core of the release stage."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest

from sinks.internal_topics.position import Log
from sinks.ready_log.chunk import most_deliveries, with_few_deliveries
from sinks.release.planned import Planned
from sinks.release.removals import REMEMBERED_MS
from sinks.release.room import Limits
from state.answers import Undecided
from state.kinds import ANSWER, DUE_NOW, MESSAGE, REQUEST
from tests.messages import messages
from tests.sinks.release.recall_shard import START_MS, Shard, two_shards


def _due_of(shard: Shard, planned: Planned) -> dict[int, int]:
    return {
        row["offset"]: row["deliver_at_ms"] - START_MS
        for row in planned.messages.to_pylist()
        if row["offset"] < shard.messages
    }


@pytest.mark.parametrize("log", ["messages", "near"])
def test_a_message_that_shall_be_due_now_comes_out_with_the_answer_and_once(log: str) -> None:
    shard = Shard(Limits(100, 1_000_000, 20), 1)
    shard.arrive(log, [0, 500, 600, 1_999])
    shard.read_near(1)
    shard.settle()
    shard.now_ms += 100
    shard.arrive("requests", [1, 3], delivers=[True, True])
    # The next process plans again whatever was planned and not committed.
    assert shard.plan(0)
    shard.open()
    assert shard.plan(0)
    assert _due_of(shard, shard.planned[0]) == {1: 100, 3: 100}
    assert not shard.planned[0].recalled
    shard.commit()
    assert shard.results == {1: {"due-now"}, 3: {"due-now"}}
    assert shard.committed.released == 5
    shard.open()
    shard.now_ms += 2_000
    shard.settle()
    assert shard.seen == Counter([0, 1, 2, 3])
    assert not shard.recorded


def test_a_message_that_shall_be_due_now_is_due_when_it_is_asked_for_or_sooner_and_never_expires() -> None:
    shard = Shard(Limits(100, 1_000_000, 20), 1)
    shard.arrive("messages", [400, 500, 900])
    shard.now_ms += 450
    shard.arrive("requests", [2, 0], delivers=[True, True])
    shard.pending.incoming.learn_near_end(0, shard.pending.incoming.ends[Log.READY])
    shard.plan(0)
    # Whatever is overdue, or an old answer in the log behind it.
    assert _due_of(shard, shard.planned[0]) == {2: 450, 0: 400}
    own = [row for row in shard.planned[0].messages.to_pylist() if row["offset"] in (0, 2)]
    assert [row["kind"] for row in own] == [DUE_NOW] * 2
    shard.settle()
    shard.now_ms += 500
    shard.settle()
    assert shard.seen == Counter([0, 1, 2])


def test_answers_do_not_wait_for_the_clock_of_the_job_which_is_ahead() -> None:
    shard = Shard(Limits(100, 1_000_000, 20), 1)
    shard.arrive("messages", [60_000, 60_000])
    shard.now_ms += 30_000
    shard.arrive("requests", [0, 1], delivers=[False, True])
    shard.now_ms -= 30_000
    shard.pending.incoming.learn_near_end(0, shard.pending.incoming.ends[Log.READY])
    assert shard.plan(0)
    assert shard.planned[0].last_due_ms == shard.now_ms
    shard.commit()
    assert shard.results == {0: {"cancelled"}, 1: {"due-now"}}


def test_two_messages_of_one_id_both_come_out_now_and_the_shard_goes_on() -> None:
    shard = Shard(Limits(100, 1_000_000, 20), 1)
    # The input topic was created again, and two messages of one id are due at the same time.
    shard.arrive("messages", [500, 700])
    shard.messages = 0
    shard.arrive("messages", [500, 900])
    shard.messages = 0
    shard.arrive("messages", [800, 950])
    shard.max_bytes = shard.pending.merge.max_bytes = 1
    shard.arrive("requests", [0], delivers=[True])
    shard.pending.incoming.learn_near_end(0, shard.pending.incoming.ends[Log.READY])
    while not shard.planned:
        shard.pending.merge.shrink()
        shard.plan(0)
    rows = shard.planned[0].messages.to_pylist()
    assert [row["offset"] for row in rows if row["kind"] == DUE_NOW] == [0] * 3
    shard.now_ms += 1_000
    while not shard.pending.merge.is_empty:
        shard.pending.merge.shrink()
        shard.plan(0)
    later = pa.concat_tables(each.messages for each in shard.planned[1:])
    assert later.column("offset").to_pylist() == [1] * 3


@pytest.mark.parametrize(
    ("message_bytes", "counts"),
    [(1, [8, 8, 4]), (1_048_588, [8, 8, 4]), (3_000_000, [3] * 6 + [2]), (64 * 1024 * 1024, [1] * 20)],
)
def test_a_chunk_has_few_requests_for_messages_to_be_due_now_so_that_these_have_room(
    message_bytes: int, counts: list[int]
) -> None:
    most = most_deliveries(message_bytes)
    delivers, cancels = (Undecided(1, 1, 1, 0, delivers=each).to_bytes() for each in (True, False))
    kinds = [MESSAGE, REQUEST, REQUEST, ANSWER] * 20
    values = [b"v", cancels, delivers, b"{}"] * 20
    every = messages({"offset": at, "kind": kind, "value": values[at]} for at, kind in enumerate(kinds))
    pieces = list(with_few_deliveries(every, most))
    assert [row["offset"] for piece in pieces for row in piece.to_pylist()] == list(range(80))
    assert [piece.column("value").to_pylist().count(delivers) for piece in pieces] == counts
    others = messages({"offset": at, "kind": REQUEST, "value": cancels} for at in range(80))
    assert [piece.num_rows for piece in with_few_deliveries(others, most)] == [80]
    assert [piece.num_rows for piece in with_few_deliveries(messages([{"offset": 1}]), most)] == [1]


def test_of_several_asks_in_a_chunk_the_first_decides_and_the_others_are_told_what_is_true() -> None:
    shard = Shard(Limits(100, 1_000_000, 20), 1)
    shard.arrive("messages", [500, 600])
    shard.arrive("requests", [0, 0, 0, 1, 1], delivers=[True, False, True, False, True])
    shard.settle()
    assert shard.results == {0: {"due-now", "too-late"}, 1: {"cancelled"}}
    assert shard.seen == Counter([0])
    # The process knows it, also when it is asked again.
    shard.arrive("requests", [0, 0], delivers=[True, False])
    shard.settle()
    assert shard.results[0] == {"due-now", "too-late"}
    shard.now_ms += 2 * REMEMBERED_MS
    shard.settle()
    assert shard.recorded == {1}


def test_a_message_that_shall_be_due_now_is_found_by_the_shard_that_has_it() -> None:
    first, second = two_shards()
    second.arrive("messages", [500, 600])
    second.now_ms += 50
    first.arrive("requests", [1], delivers=[True])
    first.settle()
    second.delivering = first.delivering
    second.receive(first.passed_on[0])
    second.settle()
    assert second.results == {1: {"due-now"}}
    assert second.seen == Counter([1])
    assert (first.committed.released, second.committed.released) == (1, 1)


def test_messages_whose_chunks_are_not_in_memory_come_out_now_some_at_a_time() -> None:
    shard = Shard(Limits(1_000, 1_000_000, 20), 1)
    for at in range(30):
        shard.arrive("messages", [1_000 + at, 1_900])
    shard.plan(0)
    shard.max_bytes = shard.pending.merge.max_bytes = 1
    shard.pending.merge.shrink()
    shard.now_ms += 10
    shard.arrive("requests", [0, 20, 59], delivers=[True] * 3)
    while not shard.results:
        shard.pending.merge.shrink()
        shard.settle()
    assert shard.restored >= 3
    assert shard.results == {each: {"due-now"} for each in (0, 20, 59)}
    assert shard.seen == Counter([0, 20, 59])
    shard.finish()
    assert shard.seen == Counter(range(60))
