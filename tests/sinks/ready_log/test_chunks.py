"""How a shard's due messages are cut into chunks and transactions, and which of them a replay skips."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.load import load_settings
from sinks.ready_log import stage
from sinks.ready_log.stage import behind, most_of_topics, ready_chunks, transactions
from state.order import OrderKey, in_order, keys_of
from tests.messages import messages

_CLOCK_MS = 1_000
# As in the tests of a dead letter's code: any code will do.
_DEAD = {"error_code": "two-delays", "error_text": "two-delays: x", "output_topic": "delayline-dead-letter"}


def _due(*deliver_at_ms: int, value: bytes = b"v") -> pa.Table:
    rows = [{"offset": n, "deliver_at_ms": due, "value": value} for n, due in enumerate(deliver_at_ms)]
    return messages(rows)


def _dues(*tables: pa.Table) -> list[int]:
    return [due for table in tables for due in table.column("deliver_at_ms").to_pylist()]


def _keys(table: pa.Table) -> list[OrderKey]:
    return [key for batch in table.to_batches() for key in keys_of(batch)]


_ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "deliver_at_ms": st.integers(_CLOCK_MS - 3, _CLOCK_MS + 3),
            "topic": st.sampled_from(["a", "b"]),
            "partition": st.integers(0, 1),
            "offset": st.integers(0, 2**40),
            "value": st.sampled_from([None, b"", b"v" * 700, b"v" * 5_000]),
        }
    ).flatmap(lambda row: st.sampled_from([row, row, {**row, **_DEAD}])),
    unique_by=lambda row: (row["topic"], row["partition"], row["offset"]),
    max_size=40,
)


@given(_ROWS, st.integers(1, 7))
def test_chunks_hold_exactly_the_messages_in_order_and_dead_letters_apart(
    rows: list[dict[str, object]], most: int
) -> None:
    table = in_order(messages(rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "_CHUNK_MESSAGES", most)
        patch.setattr(stage, "_CHUNK_BYTES", 4_000)
        chunks = list(ready_chunks(table, _CLOCK_MS))
    assert all(0 < chunk.num_rows <= most for chunk in chunks)
    assert all(chunk.num_rows == 1 or chunk.nbytes <= 8_000 for chunk in chunks)
    # Each chunk is in order, and no chunk has both kinds.
    assert all(keys == sorted(keys) for keys in map(_keys, chunks))
    is_dead = [chunk.column("error_code").null_count < chunk.num_rows for chunk in chunks]
    assert all(dead != bool(chunk.column("error_code").null_count) for dead, chunk in zip(is_dead, chunks, strict=True))
    # The chunks of each kind follow each other in order.
    for kind in (True, False):
        keys = [key for dead, chunk in zip(is_dead, chunks, strict=True) if dead is kind for key in _keys(chunk)]
        assert keys == sorted(keys)
    # Nothing is missing, changed or there twice, except that dead letters are due by the batch's clock.
    expected = [
        {**row, "deliver_at_ms": min(row["deliver_at_ms"], _CLOCK_MS)} if row["error_code"] else row
        for row in table.to_pylist()
    ]
    found = [row for chunk in chunks for row in chunk.to_pylist()]
    assert sorted(found, key=_identity) == sorted(expected, key=_identity)


def _identity(row: dict[str, object]) -> tuple[str, int, int]:
    return str(row["topic"]), int(str(row["partition"])), int(str(row["offset"]))


def test_a_chunk_has_at_most_two_thousand_messages() -> None:
    chunks = list(ready_chunks(_due(*range(4_500), value=b""), 0))
    assert [chunk.num_rows for chunk in chunks] == [2_000, 2_000, 500]
    assert _dues(*chunks) == [*range(4_500)]


def test_a_chunk_has_what_a_shard_may_release_of_a_limited_topic_in_a_second() -> None:
    settings = load_settings(
        None,
        ["bucket.shards=4", "topics.allowed_outputs=b", "rates.b=40", "release.messages_per_second=100"],
        environ={},
    )
    most = most_of_topics(settings)
    assert most == {"b": 10, None: 25}
    rows = [{"deliver_at_ms": at, "offset": at, "output_topic": "b" if at < 60 else "a"} for at in range(160)]
    chunks = [*ready_chunks(messages(rows), 0, most_of_topics=most)]
    assert pa.concat_tables(chunks).column("offset").to_pylist() == list(range(160))
    assert all(chunk.num_rows <= 25 for chunk in chunks)
    assert all(chunk.column("output_topic").to_pylist().count("b") <= 10 for chunk in chunks)
    assert len(chunks) <= 16
    assert most_of_topics(load_settings(None, [], environ={})) == {}


def test_a_chunk_has_about_half_a_mebibyte_and_a_larger_message_is_alone() -> None:
    chunks = list(ready_chunks(_due(*range(100), value=b"x" * 20_000), 0))
    assert len(chunks) == 4
    assert max(chunk.nbytes for chunk in chunks) < 600_000
    sizes = [100] * 50 + [3_000_000] * 3 + [100] * 50
    rows = [{"offset": n, "deliver_at_ms": n, "value": b"x" * size} for n, size in enumerate(sizes)]
    chunks = list(ready_chunks(messages(rows), 0))
    assert _dues(*chunks) == [*range(103)]
    large = [chunk for chunk in chunks if chunk.nbytes > 1024 * 1024]
    assert [_dues(chunk) for chunk in large] == [[50], [51], [52]]


def test_a_chunk_spans_little_due_time_if_there_are_messages_enough() -> None:
    minute = [60_000 * n // 1_000 for n in range(1_000)]
    chunks = list(ready_chunks(_due(*minute, value=b"x" * 1_000), 0))
    assert _dues(*chunks) == minute
    assert all(_dues(chunk)[-1] - _dues(chunk)[0] <= 5_000 for chunk in chunks)
    assert len(chunks) <= 15
    # A few messages of the same minute make a single chunk.
    (few,) = ready_chunks(_due(*minute[::20], value=b"x" * 100), 0)
    assert few.num_rows == 50


def test_dead_letters_are_due_at_the_batchs_clock_or_before_and_are_sorted_by_that() -> None:
    rows = [
        {"deliver_at_ms": due, "offset": offset} | (_DEAD if dead else {})
        for due, offset, dead in [
            (10, 0, False), (20, 9, True), (900, 1, False), (1_500, 8, True), (1_700, 7, True), (1_800, 2, False),
        ]
    ]  # fmt: skip
    dead, delivered = ready_chunks(messages(rows), _CLOCK_MS)
    assert [(key.deliver_at_ms, key.offset) for key in _keys(dead)] == [(20, 9), (1_000, 7), (1_000, 8)]
    assert [(key.deliver_at_ms, key.offset) for key in _keys(delivered)] == [(10, 0), (900, 1), (1_800, 2)]
    only = messages(row | _DEAD for row in rows)
    assert [chunk.num_rows for chunk in ready_chunks(only, _CLOCK_MS)] == [6]


@given(st.lists(st.integers(0, 40), max_size=8))
def test_each_message_is_in_exactly_one_transaction_in_order(sizes: list[int]) -> None:
    tables = [_due(*range(100 * n, 100 * n + size)) for n, size in enumerate(sizes)]
    cut = list(transactions(iter(tables), 2_000))
    assert [due for each in cut for due in _dues(*each)] == _dues(*tables)
    sizes_of = [sum(table.nbytes for table in each) for each in cut]
    assert all(0 < nbytes <= 4_000 for nbytes in sizes_of)
    # No transaction could take in the first piece of the next one.
    assert all(nbytes + after[0].nbytes > 2_000 for nbytes, (_, after) in zip(sizes_of, pairwise(cut), strict=False))


def test_a_message_that_is_larger_than_a_transaction_should_be_has_one_of_its_own() -> None:
    tables = [_due(1, 2, value=b"x" * 3_000), _due(4, value=b"x" * 50_000), _due(5, 6)]
    assert [_dues(*each) for each in transactions(iter(tables), 10_000)] == [[1, 2], [4], [5, 6]]


@pytest.mark.parametrize(("last", "left"), [((2, 0), [2, 3]), ((2, 1), [3]), ((0, 9), [1, 2, 3]), ((9, 9), [])])
def test_a_replay_skips_messages_up_to_the_last_committed_one(last: tuple[int, int], left: list[int]) -> None:
    key = OrderKey(last[0], "delayline-in", 0, last[1])
    skipped: list[int] = []
    rest = list(behind(iter([_due(1, 2), _due(), _due(3)]), key, skipped.append))
    assert _dues(*rest) == left
    assert skipped == [3 - len(left)]
