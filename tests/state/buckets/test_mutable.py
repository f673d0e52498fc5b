"""The mutable bucket against a plain sorted list."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state.buckets.mutable import BucketAdvance, advance
from state.message import decode_chunk, empty_messages, encode_chunk
from state.message_ids import ids_of
from tests.messages import messages, some_batch_settings
from tests.thorough import examples

ARRIVAL = st.fixed_dictionaries(
    {
        "deliver_at_ms": st.integers(0, 120),
        "topic": st.sampled_from(["in-a", "in-b"]),
        "partition": st.integers(0, 2),
        "error_code": st.sampled_from([None, None, None, "two-delays"]),
        "value": st.integers(0, 1500).map(bytes),
    }
)
# For each batch: how far its cutoff advances, and the chunks that arrive.
BATCHES = st.lists(st.tuples(st.integers(0, 40), st.lists(st.lists(ARRIVAL, max_size=6), max_size=3)), max_size=8)
BATCH_SETTINGS = st.builds(
    some_batch_settings,
    bucket_max_messages=st.integers(1, 12),
    bucket_max_bytes=st.integers(1024, 8000),
)


@dataclass
class Model:
    """The waiting messages as a sorted list."""

    waiting: list[dict[str, Any]] = field(default_factory=list)
    offsets: Any = field(default_factory=count)

    def arrive(self, chunk: list[dict[str, Any]]) -> pa.Table:
        """Number the messages of a chunk, add them, and return them as the bucket gets them."""
        rows = messages({**row, "offset": next(self.offsets)} for row in chunk)
        self.waiting = sorted(self.waiting + rows.to_pylist(), key=_position)
        return rows

    def due(self, cutoff_ms: int) -> list[dict[str, Any]]:
        """Remove and return the due messages."""
        due = [row for row in self.waiting if row["deliver_at_ms"] < cutoff_ms or row["error_code"]]
        self.waiting = [row for row in self.waiting if row not in due]
        return due


def _position(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["deliver_at_ms"], row["topic"], row["partition"], row["offset"]


@given(BATCH_SETTINGS, BATCHES)
@settings(max_examples=examples(150))
def test_over_any_batches_the_bucket_behaves_like_a_sorted_list(batch_settings: Any, batches: list[Any]) -> None:
    model, kept, cutoff_ms = Model(), empty_messages(), 0
    for further_ms, chunks in batches:
        cutoff_ms += further_ms
        result = advance(kept, [model.arrive(chunk) for chunk in chunks], cutoff_ms, batch_settings)
        assert result.due.to_pylist() == model.due(cutoff_ms)
        # No other message is lost, duplicated or out of order, and those due last are sealed.
        assert result.kept.to_pylist() + result.sealed.to_pylist() == model.waiting
        assert all(due >= cutoff_ms for due in result.sealed.column("deliver_at_ms").to_pylist())
        assert result.kept.num_rows <= batch_settings.bucket_max_messages
        assert result.kept.nbytes <= batch_settings.bucket_max_bytes
        if result.sealed.num_rows:
            assert result.kept.num_rows <= batch_settings.bucket_max_messages // 4
        model.waiting = result.kept.to_pylist()
        assert result.next_due_ms == (model.waiting[0]["deliver_at_ms"] if model.waiting else None)
        kept = decode_chunk(encode_chunk(result.kept))


def advance_full_bucket(every_ms: int = 1, **batch_settings: Any) -> BucketAdvance:
    arrivals = messages({"deliver_at_ms": 1000 + offset * every_ms, "offset": offset} for offset in range(100))
    return advance(empty_messages(), [arrivals], 1000, some_batch_settings(**batch_settings))


def test_a_bucket_at_its_threshold_is_not_sealed_and_one_message_more_seals() -> None:
    assert advance_full_bucket(bucket_max_messages=100).sealed.num_rows == 0
    assert advance_full_bucket(bucket_max_messages=99).sealed.num_rows > 0


@pytest.mark.parametrize("every_ms", [0, 1, 86_400_000])
@pytest.mark.parametrize(("bucket_max_messages", "kept"), [(99, 24), (40, 10), (7, 1), (3, 0)])
def test_a_seal_keeps_the_nearest_quarter_of_a_threshold_however_far_away_it_is_due(
    bucket_max_messages: int, kept: int, every_ms: int
) -> None:
    result = advance_full_bucket(every_ms, bucket_max_messages=bucket_max_messages)
    assert result.kept.column("offset").to_pylist() == list(range(kept))
    assert result.sealed.column("offset").to_pylist() == list(range(kept, 100))


def test_a_seal_by_bytes_keeps_the_nearest_quarter_of_the_bytes() -> None:
    large = messages({"deliver_at_ms": 5, "value": bytes(1000), "offset": offset} for offset in range(100))
    result = advance(empty_messages(), [large], 0, some_batch_settings(bucket_max_bytes=80_000))
    one = large.slice(0, 1).nbytes
    assert 20_000 - 2 * one < result.kept.nbytes <= 20_000
    assert result.kept.num_rows + result.sealed.num_rows == 100


def test_a_message_above_the_byte_threshold_is_sealed_even_if_it_is_near() -> None:
    large = messages([{"deliver_at_ms": 5, "value": bytes(5000)}])
    result = advance(empty_messages(), [large], 0, some_batch_settings(bucket_max_bytes=1024))
    assert (result.kept.num_rows, result.sealed.num_rows, result.next_due_ms) == (0, 1, None)


def test_near_messages_are_sealed_too_if_they_are_the_large_ones() -> None:
    near = messages({"deliver_at_ms": 5, "value": bytes(3000), "offset": offset} for offset in range(4))
    far = messages({"deliver_at_ms": 10**9, "offset": offset} for offset in range(4, 200))
    result = advance(empty_messages(), [near, far], 0, some_batch_settings(bucket_max_bytes=8000))
    assert result.kept.column("offset").to_pylist() == [0]


def test_headers_count_as_bytes() -> None:
    header = [{"key": "h", "value": bytes(5000)}]
    result = advance(
        empty_messages(),
        [messages([{"deliver_at_ms": 5, "headers": header}])],
        0,
        some_batch_settings(bucket_max_bytes=1024),
    )
    assert result.sealed.num_rows == 1


def test_a_message_that_arrives_after_its_due_time_is_due_at_once_and_in_order() -> None:
    waiting = messages([{"deliver_at_ms": 5, "offset": 1}, {"deliver_at_ms": 20, "offset": 2}])
    late = messages([{"deliver_at_ms": 3, "offset": 3}, {"deliver_at_ms": 9, "offset": 4}])
    result = advance(waiting, [late], 10, some_batch_settings())
    assert result.due.column("offset").to_pylist() == [3, 1, 4]
    assert result.next_due_ms == 20


def test_an_advance_without_messages_gives_none() -> None:
    result = advance(empty_messages(), [], 10, some_batch_settings())
    assert [table.num_rows for table in (result.due, result.sealed, result.kept)] == [0, 0, 0]


def test_a_replacement_is_staged_or_sealed_and_never_kept() -> None:
    waiting = messages([{"deliver_at_ms": 15, "offset": 1}])
    rows = [{"deliver_at_ms": due, "offset": at} for at, due in enumerate((20, 5, 30, 5, 40), start=2)]
    replacements = ids_of([("delayline-in", 0, offset) for offset in (4, 5, 9)])
    result = advance(waiting, [messages(rows)], 10, some_batch_settings(), replacements)
    assert result.due.column("offset").to_pylist() == [3, 5]
    assert result.sealed.column("offset").to_pylist() == [4]
    assert result.kept.column("offset").to_pylist() == [1, 2, 6]
