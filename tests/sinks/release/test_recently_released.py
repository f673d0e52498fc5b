"""What a shard knows of the messages that it has released last."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from sinks.release.recently_released import RecentlyReleased
from state.cancel import Output
from state.message_ids import ID_SCHEMA
from tests.messages import messages

RESULTS, DEAD = "results", "dead"


def _asked(*offsets: int) -> pa.Table:
    rows = [{"topic": "delayline-in", "partition": 0, "offset": offset} for offset in offsets]
    return pa.Table.from_pylist(rows, schema=ID_SCHEMA)


def _sent(first: int, count: int, **columns: Any) -> pa.Table:
    return messages({"output_topic": "out", **columns, "offset": first + n} for n in range(count))


def test_it_tells_the_topic_the_partition_and_the_offsets_of_the_transaction() -> None:
    released = RecentlyReleased(RESULTS, DEAD)
    assert released.find(_asked(1)) == [None]
    released.add(_sent(0, 3), {}, {("out", 0): (7, 9), ("out", 1): (1, 1)})
    released.add(_sent(3, 3, output_partition=1), {}, {("out", 1): (2, 4)})
    assert released.find(_asked(4, 100, 0)) == [Output("out", 1, (2, 4)), None, Output("out", 0, (7, 9))]
    assert released.find(_asked()) == []


def test_of_dead_letters_it_tells_the_topic() -> None:
    released = RecentlyReleased(RESULTS, DEAD)
    refused = _sent(0, 1, output_topic=DEAD, error_code="bad-delay", error_text="no")
    released.add(pa.concat_tables([refused, _sent(1, 2)]), {b"delayline-in/0/1": "expired"}, {("out", 0): (0, 0)})
    assert released.find(_asked(0, 1, 2)) == [Output(DEAD), Output(DEAD), Output("out", 0, (0, 0))]


def test_offsets_that_were_not_reported_are_not_told() -> None:
    released = RecentlyReleased(RESULTS, DEAD)
    released.add(_sent(0, 1), {}, {})
    assert released.find(_asked(0)) == [Output("out", 0)]


def test_an_answer_is_not_the_message_that_came_with_its_ask() -> None:
    released = RecentlyReleased(RESULTS, DEAD)
    released.add(_sent(0, 1, output_topic=RESULTS), {}, {})
    assert released.find(_asked(0)) == [None]


def test_of_an_id_that_was_given_twice_the_last_message_counts() -> None:
    released = RecentlyReleased(RESULTS, DEAD)
    released.add(_sent(0, 1), {}, {})
    released.add(_sent(0, 1, output_partition=2), {}, {})
    assert released.find(_asked(0)) == [Output("out", 2)]


def test_it_knows_as_many_as_it_was_told_to_and_the_transaction_of_the_last_one() -> None:
    released = RecentlyReleased(RESULTS, DEAD, most=5)
    for number in range(4):
        released.add(_sent(number * 3, 3), {}, {})
        if number == 2:
            released.settle()
    known = released.find(_asked(*range(12)))
    assert [each is not None for each in known] == [False] * 6 + [True] * 6


def test_what_it_keeps_has_no_more_memory_than_its_own() -> None:
    released = RecentlyReleased(RESULTS, DEAD)
    sent = _sent(0, 10_000)
    for number in range(3):
        released.add(sent.slice(number * 4, 4), {}, {("out", 0): (number, number)})
    released.settle()
    released.settle()
    offsets = [each.offsets for each in released.find(_asked(*range(12))) if each is not None]
    assert offsets == [(number, number) for number in range(3) for _ in range(4)]
    del sent
    assert pa.total_allocated_bytes() < 100_000
