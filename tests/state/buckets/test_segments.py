from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state.buckets.segments import Segment, cut, partition_end_ms, time_partition
from state.order import in_order
from tests.messages import headers, messages, some_batch_settings

HOUR_MS = 3_600_000
CUTOFF_MS = 1_798_000_000_000
ROW = st.fixed_dictionaries(
    {
        "deliver_at_ms": st.one_of(st.integers(0, 30), st.integers(0, 10_000)).map(lambda ms: CUTOFF_MS + ms),
        "topic": st.sampled_from(["in-a", "in-b"]),
        "partition": st.integers(0, 2),
        "key": st.one_of(st.none(), st.binary(max_size=5)),
        "value": st.one_of(st.none(), st.integers(0, 700).map(bytes)),
        "headers": st.sampled_from([None, headers(), headers(("a", None), ("bc", bytes(100)))]),
    }
)
SEALED = st.lists(ROW, max_size=40).map(
    lambda rows: in_order(messages({**row, "offset": offset} for offset, row in enumerate(rows)))
)
BATCH_SETTINGS = st.builds(
    some_batch_settings,
    segment_max_ms=st.integers(1, 50),
    segment_max_messages=st.integers(1, 40),
    bucket_max_bytes=st.one_of(st.integers(200, 3000), st.just(10**6)),
    time_partition_ms=st.integers(5, 1000),
)


def cut_all(sealed: pa.Table, batch_settings: Any) -> list[tuple[Segment, pa.Table]]:
    return list(cut(sealed, bucket=5, shard=1, cutoff_ms=CUTOFF_MS, batch_settings=batch_settings))


@given(SEALED, BATCH_SETTINGS)
@settings(max_examples=100)
def test_segments_cover_every_message_in_order_and_once(sealed: pa.Table, batch_settings: Any) -> None:
    segments = cut_all(sealed, batch_settings)
    assert [row for _, rows in segments for row in rows.to_pylist()] == sealed.to_pylist()
    assert [(each.bucket, each.shard, each.segment) for each, _ in segments] == [
        (5, 1, number) for number in range(len(segments))
    ]


@given(SEALED, BATCH_SETTINGS)
@settings(max_examples=100)
def test_no_segment_exceeds_a_limit(sealed: pa.Table, batch_settings: Any) -> None:
    for segment, rows in cut_all(sealed, batch_settings):
        due = rows.column("deliver_at_ms").to_pylist()
        start_ms, end_ms = (int(part) for part in segment.time_partition.split("-"))
        assert start_ms <= due[0] <= due[-1] < end_ms
        assert due[-1] - due[0] < batch_settings.segment_max_ms
        assert 1 <= len(due) <= batch_settings.segment_max_messages
        assert len(due) == 1 or _content(rows) <= segment.bytes <= batch_settings.bucket_max_bytes


@given(SEALED, BATCH_SETTINGS)
@settings(max_examples=100)
def test_metadata_matches_the_messages(sealed: pa.Table, batch_settings: Any) -> None:
    for segment, rows in cut_all(sealed, batch_settings):
        due = rows.column("deliver_at_ms").to_pylist()
        assert (segment.min_deliver_at_ms, segment.max_deliver_at_ms, segment.count) == (
            due[0],
            due[-1],
            len(due),
        )
        assert segment.bytes == _content(rows) + 64 * len(due)


def _content(rows: pa.Table) -> int:
    """Return the bytes of keys, values and headers."""
    parts = [[row["key"], row["value"]] for row in rows.to_pylist()]
    parts += [[each["key"], each["value"]] for row in rows.to_pylist() for each in row["headers"] or []]
    return sum(len(part or b"") for pair in parts for part in pair)


def test_a_cut_continues_across_the_chunks_and_offset_of_a_table() -> None:
    table = messages(
        {"deliver_at_ms": CUTOFF_MS + at, "offset": at, "headers": headers(("a", b"1"))} for at in range(9)
    )
    sealed = pa.concat_tables([table.slice(1, 3), table.slice(4)])
    batch_settings = some_batch_settings(segment_max_messages=4)
    assert [rows.column("offset").to_pylist() for _, rows in cut_all(sealed, batch_settings)] == [
        [1, 2, 3, 4],
        [5, 6, 7, 8],
    ]


def test_without_sealed_messages_there_is_no_segment() -> None:
    assert cut_all(messages([]), some_batch_settings()) == []


@given(st.integers(0, 2**45), st.integers(0, 2**45), st.integers(60_000, 10**10))
@settings(max_examples=200)
def test_a_time_partition_contains_its_message_and_its_label_has_its_end(
    cutoff_ms: int, ahead_ms: int, length_ms: int
) -> None:
    deliver_at_ms = cutoff_ms + ahead_ms
    label, end_ms = time_partition(deliver_at_ms, cutoff_ms, length_ms)
    assert partition_end_ms(label) == end_ms
    start_ms = int(label.split("-")[0])
    assert start_ms <= deliver_at_ms < end_ms
    assert (end_ms - start_ms) % length_ms == 0
    assert start_ms % (end_ms - start_ms) == 0


@pytest.mark.parametrize(
    ("hours_ahead", "span_hours"),
    [(0, 1), (47, 1), (48, 24), (48 * 31 - 1, 24), (48 * 31, 672), (24 * 366, 672)],
)
def test_messages_due_later_are_in_longer_partitions(hours_ahead: int, span_hours: int) -> None:
    label, end_ms = time_partition(CUTOFF_MS + hours_ahead * HOUR_MS, CUTOFF_MS, HOUR_MS)
    assert end_ms - int(label.split("-")[0]) == span_hours * HOUR_MS


def test_a_uniform_year_needs_few_partitions() -> None:
    labels = {time_partition(CUTOFF_MS + hour * HOUR_MS, CUTOFF_MS, HOUR_MS)[0] for hour in range(366 * 24)}
    assert len(labels) < 48 + 62 + 14
