"""Cancelled messages are left out of a stream that has chunks of messages and of ids, in the order of due times."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from state.buckets.cancelled_filter import CancelledFilter
from state.buckets.id_rows import ID_ROW_SCHEMA
from state.kinds import REQUEST
from state.order import in_order
from tests.messages import KEYED_SCHEMA, keyed_rows, messages
from tests.thorough import examples

TOPIC = "delayline-in"
END_MS = 1_000


class Cancelled(NamedTuple):
    """An id that the batch of `bucket` cancelled, and the range of its due time, epoch ms."""

    partition: int
    offset: int
    from_ms: int
    until_ms: int
    bucket: int


class Waiting(NamedTuple):
    """A message in a bucket."""

    partition: int
    offset: int
    due_ms: int
    bucket: int


# Few ids and buckets, so that they meet, and due times close together.
DUE = st.one_of(st.integers(0, 30), st.integers(0, END_MS))
WAITING = st.lists(
    st.builds(Waiting, st.integers(0, 1), st.integers(0, 20), DUE, st.integers(0, 5)),
    max_size=60,
    unique_by=lambda each: (each.partition, each.offset, each.bucket),
)
WIDTH = st.one_of(st.integers(0, 3), st.integers(0, 500))


def chunk_rows(tables: Iterable[pa.Table], has_ids: bool, bucket: int = 0) -> list[dict[str, Any]]:
    return [row for table in tables if table.num_rows for row in keyed_rows(in_order(table), has_ids, bucket)]


def stream(waiting: list[Waiting], cancelled: list[Cancelled], chunk: int) -> Iterator[pa.RecordBatch]:
    """Yield the messages of each bucket, and the ids, in chunks, in the order of the chunks' keys."""
    rows = []
    for bucket in {each.bucket for each in waiting}:
        own = in_order(
            messages(
                {"partition": each.partition, "offset": each.offset, "deliver_at_ms": each.due_ms}
                for each in waiting
                if each.bucket == bucket
            )
        )
        rows += chunk_rows((own.slice(at, chunk) for at in range(0, own.num_rows, chunk)), False, bucket)
    ids = in_order(ids_of(cancelled))
    rows += chunk_rows((ids.slice(at, chunk) for at in range(0, ids.num_rows, chunk)), True)
    table = pa.Table.from_pylist(rows, KEYED_SCHEMA)
    yield from in_order(table).to_batches(max_chunksize=3)


def ids_of(cancelled: Iterable[Cancelled]) -> pa.Table:
    rows = [
        {"topic": TOPIC, "partition": each.partition, "offset": each.offset, "bucket": each.bucket}
        | {"deliver_at_ms": each.from_ms, "max_deliver_at_ms": each.until_ms}
        for each in cancelled
    ]
    return pa.Table.from_pylist(rows, ID_ROW_SCHEMA)


def is_cancelled(message: Waiting, cancelled: Iterable[Cancelled], until_bucket: int) -> bool:
    return any(each[:2] == message[:2] and message.bucket <= each.bucket <= until_bucket for each in cancelled)


@given(st.data(), WAITING, st.integers(1, 4), st.integers(0, 6), DUE, st.one_of(DUE, st.just(END_MS + 1)))
@settings(max_examples=examples(200))
def test_a_message_is_left_out_if_a_batch_has_cancelled_it_in_its_bucket_or_a_later_one(
    data: Any, waiting: list[Waiting], chunk: int, until_bucket: int, one_ms: int, other_ms: int
) -> None:
    asked = data.draw(st.lists(st.sampled_from(waiting), max_size=40)) if waiting else []
    cancelled = [
        # A message that has the id of an earlier one is due at another time.
        Cancelled(each.partition, each.offset, max(0, min(dues) - data.draw(WIDTH)), max(dues) + data.draw(WIDTH),
                  data.draw(st.integers(0, 6)))
        for each in asked
        if (dues := [same.due_ms for same in waiting if same[:2] == each[:2]])
    ]  # fmt: skip
    start_ms, end_ms = sorted((one_ms, other_ms))
    counts: list[int] = []
    # Messages leave the merge soon, and ids are forgotten soon.
    leave_out = CancelledFilter(until_bucket, counts.append, piece_bytes=200, least_ids=3)
    tables = list(leave_out.left(stream(waiting, cancelled, chunk), start_ms, end_ms))
    assert all(table.num_rows for table in tables)
    in_range = [each for each in waiting if start_ms <= each.due_ms < end_ms]
    wanted = [each for each in in_range if not is_cancelled(each, cancelled, until_bucket)]
    left = [(row["deliver_at_ms"], row["partition"], row["offset"]) for table in tables for row in table.to_pylist()]
    assert left == sorted((each.due_ms, each.partition, each.offset) for each in wanted)
    assert counts == [len(in_range) - len(wanted)]
    assert all(table.schema == messages([]).schema for table in tables)


def test_an_ask_with_the_id_of_a_cancelled_message_stays() -> None:
    request = {"offset": 1, "deliver_at_ms": 10, "kind": REQUEST}
    rows = chunk_rows([messages([request, {"offset": 1, "deliver_at_ms": 11}])], False)
    rows += chunk_rows([ids_of([Cancelled(0, 1, 10, 11, 3)])], True)
    batches = pa.Table.from_pylist(rows, KEYED_SCHEMA).to_batches()
    (left,) = CancelledFilter(9).left(batches, 0, 99)
    assert left.column("kind").to_pylist() == [REQUEST]


def test_ids_that_were_passed_take_no_memory_however_few_messages_there_are() -> None:
    ids_in_a_chunk = 50_000

    def rows_of(chunks: int) -> Iterator[pa.RecordBatch]:
        for number in range(chunks):
            first = number * ids_in_a_chunk
            offsets = np.arange(first, first + ids_in_a_chunk)
            columns = {
                "bucket": np.zeros(ids_in_a_chunk, np.int64), "deliver_at_ms": offsets,
                "max_deliver_at_ms": offsets + 10, "topic": pa.array([TOPIC] * ids_in_a_chunk),
                "partition": np.zeros(ids_in_a_chunk, np.int32), "offset": offsets,
                "name": pa.nulls(ids_in_a_chunk, pa.binary()), "keeps": pa.nulls(ids_in_a_chunk, pa.bool_()),
            }  # fmt: skip
            rows = list(keyed_rows(pa.table(columns).cast(ID_ROW_SCHEMA), True))
            rows += list(keyed_rows(messages([{"offset": first + 1, "deliver_at_ms": first + 2}]), False))
            yield from pa.Table.from_pylist(rows, KEYED_SCHEMA).to_batches()

    def peak_bytes(chunks: int) -> int:
        counts: list[int] = []
        tracemalloc.start()
        arrow = pa.total_allocated_bytes()
        most = 0

        def watched() -> Iterator[pa.RecordBatch]:
            nonlocal most
            for batch in rows_of(chunks):
                most = max(most, pa.total_allocated_bytes() - arrow)
                yield batch

        assert not list(CancelledFilter(9, counts.append).left(watched(), 0, 1 << 40))
        assert counts == [chunks]
        peak = tracemalloc.get_traced_memory()[1] + most
        tracemalloc.stop()
        return peak

    # All ids of the longer stream take 96 MB.
    assert peak_bytes(80) < 1.5 * peak_bytes(16)
