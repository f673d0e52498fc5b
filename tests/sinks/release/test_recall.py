"""Recalling staged messages, in the core of the release stage: random logs, requests, crashes and memory.

A message may lie in the near log, written before the request for it, and be read after the request.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinks.release.removals import REMEMBERED_MS
from sinks.release.room import Limits
from state.kinds import ANSWER
from tests.messages import messages
from tests.sinks.release.accounts import check_accounts
from tests.sinks.release.recall_shard import START_MS, Shard
from tests.thorough import examples

# A chunk of messages by their due times, in either log; or of requests for messages by number, mostly earlier ones.
_CHUNK = st.one_of(
    st.tuples(st.sampled_from(["messages", "near"]), st.lists(st.integers(0, 2_000), min_size=1, max_size=8)),
    st.lists(st.integers(0, 30), min_size=1, max_size=5).map(lambda asked: ("requests", asked)),
)
_STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["arrive", "arrive", "read near", "plan", "plan", "plan", "commit", "crash", "shrink", "set back"]
        ),
        st.integers(1, 3),
        st.integers(0, 500),
    ),
    max_size=60,
)
_LIMITS = st.builds(Limits, st.integers(1, 20), st.sampled_from([1, 3_000, 1_000_000]), st.sampled_from([1, 20, 500]))


@settings(max_examples=examples(200), deadline=None)
@given(chunks=st.lists(_CHUNK, min_size=1, max_size=14), steps=_STEPS, limits=_LIMITS, shards=st.integers(1, 2))
def test_each_request_gets_one_answer_which_agrees_with_what_happens(
    chunks: list[tuple[str, list[int]]], steps: list[tuple[str, int, int]], limits: Limits, shards: int
) -> None:
    shard, coming = Shard(limits, shards), list(chunks)

    def arrive() -> None:
        kind, numbers = coming.pop(0)
        # A request comes after its message.
        asked = [each if kind != "requests" or each < shard.messages else 500 + each for each in numbers]
        shard.arrive(kind, asked, delivers=[each % 3 == 1 for each in numbers] if kind == "requests" else ())

    for step, number, ms in steps:
        if step == "arrive" and coming:
            arrive()
        elif step == "read near":
            shard.read_near(number)
        elif step == "plan":
            shard.now_ms += ms
            shard.plan(number * 25)
        elif step == "commit":
            shard.commit()
        elif step == "crash":
            shard.open()
        elif step == "shrink":
            # So that open chunks are put back, some in the middle.
            shard.max_bytes = shard.pending.merge.max_bytes = ms * 20
            shard.pending.merge.shrink()
        elif step == "set back":
            shard.now_ms -= 2 * ms
            shard.open()
        check_accounts(shard.pending)
    while coming:
        arrive()
    shard.finish()
    assert shard.settled == Counter(range(1_000, 1_000 + shard.requests))
    cancelled = {each for each, results in shard.results.items() if "cancelled" in results}
    assert shard.recorded == cancelled
    assert shard.seen == Counter(set(range(shard.messages)) - cancelled)
    assert not any(shard.results[each] & {"too-late", "due-now"} for each in cancelled)
    assert shards == 2 or not shard.passed_on
    # The logs are done with, and all staged messages count as released.
    for log, records in shard.logs.items():
        assert shard.pending.position.of(log).lowest == shard.pending.position.of(log).taken_in == len(records)
    assert shard.pending.position.released == shard.messages + shard.requests


def test_asks_wait_for_what_the_near_log_had_when_they_were_read_and_no_other_message_does() -> None:
    shard = Shard(Limits(100, 1_000_000, 20), 1)
    shard.arrive("near", [500])
    shard.arrive("messages", [0])
    shard.arrive("requests", [0])
    shard.arrive("messages", [10])
    shard.arrive("near", [600])
    shard.settle()
    assert (shard.seen, shard.results) == (Counter([1]), {})
    # Nothing to plan, and not all is done.
    assert shard.pending.next_due_ms is None
    assert not shard.pending.merge.is_empty
    shard.read_near(1)
    shard.settle()
    assert not shard.results
    shard.arrive("near", [1])
    shard.read_near(1)
    shard.settle()
    assert shard.results == {0: {"cancelled"}}
    shard.now_ms += 700
    shard.settle()
    assert shard.seen == Counter([1, 2, 3])


def test_what_was_read_of_the_near_log_is_taken_in_before_asks_that_are_due_earlier() -> None:
    shard = Shard(Limits(100, 1_000_000, 20), 1)
    shard.arrive("near", [500])
    shard.arrive("requests", [0])
    shard.settle()
    shard.read_near(1)
    shard.settle()
    assert shard.results == {0: {"cancelled"}}


def test_messages_of_the_near_log_do_not_wait_until_the_ids_of_all_chunks_are_known_for_an_ask() -> None:
    shard = Shard(Limits(100, 1_000_000, 20), 1)
    for at in range(60):
        shard.arrive("messages", [1_000 + at])
    shard.arrive("requests", [4])
    shard.now_ms += 100
    assert not shard.plan(0)
    shard.arrive("near", [50])
    shard.read_near(1)
    assert shard.plan(0)
    shard.commit()
    assert (shard.seen, shard.results) == (Counter([60]), {})


@pytest.mark.parametrize("chunks", [5, 60])
def test_chunks_that_cannot_have_the_message_are_not_searched_for_it(searched: list[int], chunks: int) -> None:
    shard = Shard(Limits(100, 1_000_000, 20), 1)
    for at in range(chunks):
        shard.arrive("messages", [1_000 + at, 1_000 + at])
    shard.arrive("requests", [4, 5_000])
    # Nothing is due, and the ids of some chunks become known each time.
    while not shard.results:
        shard.settle()
    assert shard.results == {4: {"cancelled"}, 5_000: {"too-late"}}
    # The search was in the ids of the one chunk.
    assert searched == [2]


def test_dead_letters_and_asks_are_not_taken_out() -> None:
    shard, far_ms = Shard(Limits(100, 1_000_000, 20), 1), START_MS + 300
    shard.receive(
        messages(
            [
                {"offset": 1, "error_code": "bad", "output_topic": "delayline-dead-letter", "deliver_at_ms": far_ms},
                {"offset": 2, "value": b'{"id": "in/0/2"}', "kind": ANSWER, "deliver_at_ms": far_ms},
            ]
        )
    )
    shard.arrive("requests", [1, 2])
    shard.settle()
    assert shard.results == {1: {"too-late"}, 2: {"too-late"}}


def test_requests_are_decided_where_the_memory_has_room_for_no_chunk() -> None:
    shard = Shard(Limits(100, 1_000_000, 20), 1)
    shard.arrive("messages", [1_000])
    shard.arrive("messages", [1_500])
    shard.settle()
    shard.max_bytes = shard.pending.merge.max_bytes = 0
    shard.arrive("requests", [0, 1], delivers=[False, True])
    shard.pending.merge.shrink()
    shard.settle()
    assert shard.results == {0: {"cancelled"}, 1: {"due-now"}}


def test_where_memory_is_short_the_ids_of_what_is_put_back_to_wait_are_not_read_again() -> None:
    shard = Shard(Limits(1_000, 1_000_000, 20), 1)
    for number in range(40):
        shard.arrive("messages", [(number * 7 + at * 50) % 2_000 for at in range(40)])
    shard.max_bytes = shard.pending.merge.max_bytes = 60_000
    shard.pending.merge.shrink()
    shard.arrive("requests", [1_599])
    shard.settle()
    # Each chunk has been looked at now.
    assert shard.restored > 0
    for _ in range(10):
        shard.now_ms += 100
        shard.settle()
        shard.pending.merge.shrink()
        restored = shard.restored
        shard.arrive("requests", [1_500 + shard.requests])
        shard.settle()
        assert shard.restored == restored
    assert any(len(chunk.ids or ()) > 1 for chunk in shard.pending.merge.chunks.waiting)


def test_what_was_taken_out_is_remembered_however_long_a_broker_does_not_answer() -> None:
    shard = Shard(Limits(100, 1_000_000, 20), 1)
    shard.arrive("messages", [500, 600])
    shard.arrive("requests", [0])
    shard.settle()
    # Nothing is planned meanwhile, and the job may not have read the recalled message.
    shard.now_ms += 3 * REMEMBERED_MS
    shard.plan(0)
    shard.commit()
    shard.results.clear()
    shard.arrive("requests", [0])
    shard.settle()
    assert shard.results == {0: {"cancelled"}}


@pytest.mark.parametrize("log", ["messages", "near"])
@pytest.mark.parametrize("is_short", [False, True], ids=["in memory", "read again"])
@pytest.mark.parametrize("crashes", [False, True])
def test_what_is_taken_out_is_not_a_later_message_with_its_id(log: str, is_short: bool, crashes: bool) -> None:
    shard = Shard(Limits(100, 1_000_000, 20), 1)
    shard.arrive(log, [500, 600])
    shard.read_near(1)
    shard.arrive("requests", [0])
    shard.settle()
    assert shard.results == {0: {"cancelled"}}
    if crashes:
        shard.open()
    # The input topic was created again.
    shard.messages = 0
    shard.arrive(log, [700])
    shard.read_near(1)
    if is_short:
        shard.plan(0)
        shard.max_bytes = shard.pending.merge.max_bytes = 1
        shard.pending.merge.shrink()
    for _ in range(10):
        shard.now_ms += 100
        shard.settle()
    assert shard.seen == Counter([0, 1])
    assert shard.pending.merge.is_empty
    assert bool(shard.restored) == is_short
