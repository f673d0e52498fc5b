"""The messages that a shard has released last, as it remembers them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from sinks.release.recently_released import RecentlyReleased
from state.answers import Output
from state.kinds import ANSWER
from state.message_ids import ID_SCHEMA
from tests.messages import messages

DEAD = "dead"
NOW_MS = 1_800_000_000_000


def _asked(*offsets: int) -> pa.Table:
    rows = [{"topic": "delayline-in", "partition": 0, "offset": offset} for offset in offsets]
    return pa.Table.from_pylist(rows, schema=ID_SCHEMA)


def _sent(first: int, count: int, **columns: Any) -> pa.Table:
    return messages({"output_topic": "out", **columns, "offset": first + n} for n in range(count))


def test_it_tells_the_topic_the_partition_and_the_offsets_of_the_transaction() -> None:
    released = RecentlyReleased(DEAD)
    assert released.find(_asked(1), NOW_MS) == [None]
    released.add(_sent(0, 3), {}, {("out", 0): (7, 9), ("out", 1): (1, 1)}, NOW_MS)
    released.add(_sent(3, 3, output_partition=1), {}, {("out", 1): (2, 4)}, NOW_MS)
    assert released.find(_asked(4, 100, 0), NOW_MS) == [Output("out", 1, (2, 4)), None, Output("out", 0, (7, 9))]
    assert released.find(_asked(), NOW_MS) == []


def test_of_dead_letters_it_tells_the_topic() -> None:
    released = RecentlyReleased(DEAD)
    refused = _sent(0, 1, output_topic=DEAD, error_code="bad-delay", error_text="no")
    released.add(pa.concat_tables([refused, _sent(1, 2)]), {1: "expired"}, {("out", 0): (0, 0)}, NOW_MS)
    assert released.find(_asked(0, 1, 2), NOW_MS) == [Output(DEAD), Output(DEAD), Output("out", 0, (0, 0))]


def test_of_occurrences_in_one_transaction_it_tells_one_that_went_where_it_says() -> None:
    released = RecentlyReleased(DEAD)
    occurrences = pa.concat_tables([_sent(0, 1), _sent(0, 1)])
    released.add(occurrences, {0: "expired"}, {("out", 0): (4, 4)}, NOW_MS)
    assert released.find(_asked(0), NOW_MS) == [Output("out", 0, (4, 4))]


def test_offsets_that_were_not_reported_are_not_told() -> None:
    released = RecentlyReleased(DEAD)
    released.add(_sent(0, 1), {}, {}, NOW_MS)
    assert released.find(_asked(0), NOW_MS) == [Output("out", 0)]


def test_an_answer_is_not_the_message_that_came_with_its_ask() -> None:
    released = RecentlyReleased(DEAD)
    released.add(_sent(0, 1, kind=ANSWER), {}, {}, NOW_MS)
    assert released.find(_asked(0), NOW_MS) == [None]
    released.add(_sent(0, 1), {}, {}, NOW_MS)
    released.add(_sent(0, 1, kind=ANSWER, output_topic="results"), {}, {}, NOW_MS)
    assert released.find(_asked(0), NOW_MS) == [Output("out", 0)]


def test_of_an_id_that_was_given_twice_the_last_message_counts() -> None:
    released = RecentlyReleased(DEAD)
    released.add(_sent(0, 1), {}, {}, NOW_MS)
    released.add(_sent(0, 1, output_partition=2), {}, {}, NOW_MS)
    assert released.find(_asked(0), NOW_MS) == [Output("out", 2)]


def test_it_knows_as_many_as_it_was_told_to_and_the_oldest_go_first() -> None:
    released = RecentlyReleased(DEAD, most=5)
    for number in range(4):
        released.add(_sent(number * 3, 3), {}, {}, NOW_MS + number * 20_000)
        released.settle(NOW_MS + number * 20_000)
    known = released.find(_asked(*range(12)), NOW_MS + 60_000)
    # The first two of the third transaction.
    assert [each is not None for each in known] == [False] * 6 + [True, True, False] + [True] * 3
    assert len(released._transactions) == 2


@pytest.mark.parametrize("is_settled", [False, True])
def test_what_was_released_long_ago_is_forgotten_also_if_the_clock_was_ahead(is_settled: bool) -> None:
    released = RecentlyReleased(DEAD)
    released.add(_sent(0, 1), {}, {}, NOW_MS)
    if is_settled:
        released.settle(NOW_MS)
    assert released.find(_asked(0), NOW_MS + 119_000) != [None]
    assert released.find(_asked(0), NOW_MS + 121_000) == [None]
    assert released.find(_asked(0), NOW_MS - 121_000) == [None]


def test_many_small_transactions_are_kept_as_one_table() -> None:
    released = RecentlyReleased(DEAD)
    sent = _sent(0, 6_000)
    for number in range(6_000):
        at_ms = NOW_MS + number * 20
        released.add(sent.slice(number, 1), {}, {("out", 0): (number, number)}, at_ms)
        if number % 50 == 0:
            released.settle(at_ms)
    assert released.find(_asked(5_990, 7), at_ms) == [Output("out", 0, (5_990, 5_990)), Output("out", 0, (7, 7))]
    assert released._settled.column("offset").num_chunks == 1


def test_what_it_keeps_has_no_more_memory_than_its_own() -> None:
    released = RecentlyReleased(DEAD)
    sent = _sent(0, 10_000)
    for number in range(3):
        released.add(sent.slice(number * 4, 4), {}, {("out", 0): (number, number)}, NOW_MS)
        released.settle(NOW_MS)
    offsets = [each.offsets for each in released.find(_asked(*range(12)), NOW_MS) if each is not None]
    assert offsets == [(number, number) for number in range(3) for _ in range(4)]
    before = pa.total_allocated_bytes()
    del sent
    assert pa.total_allocated_bytes() < before
    assert released._settled.nbytes < 10_000
