"""Requests that go from shard to shard, until the one that has the message answers, or the last one."""

from __future__ import annotations

from collections import Counter

from sinks.internal_topics.position import Log
from sinks.release.recall import uncounted
from state.answers import OLD_MS
from state.kinds import ANSWER
from state.message import decode_chunk
from tests.messages import messages
from tests.sinks.release.recall_shard import two_shards


def test_an_ask_goes_on_to_the_shard_that_has_the_message_and_is_answered_there() -> None:
    first, second = two_shards()
    second.arrive("messages", [500, 600])
    first.arrive("requests", [1])
    first.settle()
    second.receive(first.passed_on[0])
    second.settle()
    assert second.results == {1: {"cancelled"}}
    second.now_ms += 1_000
    second.settle()
    assert second.seen == Counter([0])
    # Each request counts where it was staged.
    assert (first.committed.released, second.committed.released) == (1, 2)


def test_the_last_shard_answers_what_no_shard_has() -> None:
    first, second = two_shards()
    first.arrive("requests", [7])
    first.settle()
    second.receive(first.passed_on[0])
    second.settle()
    assert second.results == {7: {"too-late"}}
    assert not second.passed_on


def test_a_shard_that_has_released_the_message_answers_at_once_and_says_where_it_went() -> None:
    first, second = two_shards()
    first.arrive("messages", [0, 0])
    first.settle()
    first.arrive("requests", [1])
    first.settle()
    assert first.results == {1: {"too-late"}}
    assert first.outputs == {1: {"topic": "delayline-out", "partition": 0}}
    assert not first.passed_on
    assert first.committed.released == 3
    # Another process does not know it.
    first.open()
    first.arrive("requests", [0])
    first.settle()
    assert len(first.passed_on) == 1
    assert not second.results


def test_after_a_crash_of_a_shard_on_its_way_an_ask_that_is_not_found_is_not_too_late_for_certain() -> None:
    first, second = two_shards()
    first.arrive("requests", [7])
    first.now_ms += 1
    first.open()
    first.settle()
    second.receive(first.passed_on[0])
    second.settle()
    assert second.results == {7: {"unknown"}}


def test_a_message_whose_record_is_deleted_is_taken_out_too_and_else_not_known() -> None:
    first, second = two_shards()
    second.arrive("messages", [500, 600])
    first.arrive("requests", [1, 7], asked_ms=OLD_MS)
    first.settle()
    second.receive(first.passed_on[0])
    second.settle()
    assert second.results == {1: {"cancelled"}, 7: {"unknown"}}
    assert second.reasons[7] == "record-deleted"


def test_what_is_left_in_a_log_does_not_count_asks_of_other_shards_and_those_that_are_done() -> None:
    first, second = two_shards()
    first.arrive("requests", [7, 8])
    own = messages([{"offset": 3, "kind": ANSWER, "value": b'{"id": "in/0/2"}'}])
    requests = decode_chunk(first.logs[Log.READY][0][0])
    assert [uncounted(table, taken_in=False) for table in (requests, own)] == [0, 0]
    assert uncounted(requests, taken_in=True) == 2
    first.settle()
    assert uncounted(first.passed_on[0], taken_in=False) == 2
    assert second.committed.released == 0
