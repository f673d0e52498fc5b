"""The messages that a rebuild leaves with other due times: made due at once, taken over, or long overdue."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from conf.setting_types import HOUR, MINUTE
from state.buckets.id_rows import ID_ROW_SCHEMA
from state.buckets.retimed import RETIMED_SCHEMA, due_times, retimed_rows
from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.progress import BatchSpan, Progress
from state.checkpoint.staged import StagedMessages
from state.message import decode_chunk, encode_chunk
from state.name_holders import HOLDER_SCHEMA
from state.order import OrderKey
from streaming.operations.moved import Moved, moved_in, retimed_in, with_ids, without_ids
from streaming.operations.rest import Rest
from tests.messages import headers, ids_of_rows, messages, records
from tests.streaming.operations.rest_of_job import (
    CLOCK_MS,
    CUTOFF_MS,
    FAR_MS,
    LEFT_IN,
    READ,
    SETTINGS,
    TOPIC,
    left,
    published,
    record,
    rows_left,
)

# The due time that the lost job gave to messages.
MOVED_MS = CLOCK_MS + 1
NOW = str(MOVED_MS)


def _stored(*rows: tuple[int, int, str | None]) -> pa.Table:
    """Return stored ids: an offset, the bucket, and the id of the replacement or the new due time."""
    return pa.Table.from_pylist(
        [
            {
                "bucket": bucket, "deliver_at_ms": -1, "max_deliver_at_ms": FAR_MS, "topic": TOPIC, "partition": 0,
                "offset": offset, "name": other and other.encode(),
            }
            for offset, bucket, other in rows
        ],
        schema=ID_ROW_SCHEMA,
    )  # fmt: skip


def _lost_job(last: OrderKey | None, cutoff_ms: int = CUTOFF_MS) -> StagedMessages:
    """Return the markers of a job with one shard. Its batch 7 was cut off after it had staged messages up to `last`."""
    origin = CheckpointOrigin("c", 1, 1, first_bucket=1)
    span = BatchSpan(origin, 7, cutoff_ms - 500, cutoff_ms, {TOPIC: {"0": 5}}, READ, previous_clock_ms=CLOCK_MS - 500)
    return StagedMessages((Progress(span, 1, last),))


# A first job that was lost before its first batch had staged anything.
NOTHING_STAGED = StagedMessages((Progress(BatchSpan(CheckpointOrigin("c", 1, 1))),))


def test_messages_made_due_are_distinguished_from_replaced_ones_by_the_stored_text() -> None:
    staged = _lost_job(None)
    tables = [
        _stored((1, 3, None), (2, 4, NOW), (3, 5, f"{TOPIC}/0/9")),
        _stored((4, 8, NOW), (5, 9, NOW)),
        _stored((6, 8, None)),
    ]
    cancelled, moved = moved_in(tables, staged)
    assert {source: list(own) for source, own in cancelled.items()} == {(TOPIC, 0): [1, 3, 6]}
    assert {source: list(own) for source, own in moved.ids.items()} == {(TOPIC, 0): [2, 4, 5]}
    # Bucket 8 is the bucket of the newest batch.
    assert moved.perhaps_left.column("offset").to_pylist() == [4, 5]
    every = with_ids(cancelled, moved.ids)
    assert list(every[TOPIC, 0]) == [1, 2, 3, 4, 5, 6]
    assert list(without_ids(every, moved.perhaps_left)[TOPIC, 0]) == [1, 2, 3, 6]


@pytest.mark.parametrize(
    ("last", "left_ones"),
    [(None, [4, 5]), (OrderKey(MOVED_MS, TOPIC, 0, 3), [4, 5]), (OrderKey(MOVED_MS, TOPIC, 0, 4), [5])],
    ids=["nothing", "before", "it"],
)
def test_what_was_made_due_at_once_is_left_until_the_markers_show_it(
    last: OrderKey | None, left_ones: list[int]
) -> None:
    staged = _lost_job(last)
    _, moved = moved_in([_stored((2, 4, NOW), (4, 8, NOW), (5, 9, NOW))], staged)
    done = without_ids(moved.ids, moved.perhaps_left)
    rest = Rest(staged, done, {}, {}, SETTINGS, CLOCK_MS + MINUTE, moved)
    rows = [published(offset, -MINUTE, ("deliver-after", HOUR)) for offset in (2, 4, 5, 6)]
    found = left(rest, *rows)
    # These are due as the lost job has made them, while others wait.
    assert found == dict.fromkeys(left_ones, 1) | {6: HOUR - MINUTE}
    # The same for sealed messages.
    stored = messages({"offset": offset, "deliver_at_ms": FAR_MS} for offset in (2, 4, 5, 6))
    chunks = [pa.RecordBatch.from_pydict({"bucket": [3], "chunk": [encode_chunk(stored)]})]
    again = [decode_chunk(chunk.as_py()) for batch in moved.left_in_table(1)(chunks) for chunk in batch["chunk"]]
    assert [row["offset"] for table in again for row in table.to_pylist()] == left_ones
    assert {row["deliver_at_ms"] for table in again for row in table.to_pylist()} == {MOVED_MS}
    # In a later bucket it is another message, of a topic that was created again.
    later = [pa.RecordBatch.from_pydict({"bucket": [10], "chunk": [encode_chunk(stored)]})]
    assert not list(moved.left_in_table(1)(later))


def test_what_was_made_due_at_once_is_for_the_first_batch_also_if_the_markers_are_of_long_ago() -> None:
    # Nothing was staged for an hour.
    staged = _lost_job(None, CLOCK_MS - HOUR)
    _, moved = moved_in([_stored((4, 8, NOW))], staged)
    (due,) = moved.left_of(messages([{"offset": 4, "deliver_at_ms": FAR_MS}])).column("deliver_at_ms").to_pylist()
    assert due == staged.cutoff_ms - 1 < MOVED_MS


def test_a_job_that_has_staged_nothing_leaves_what_was_made_due_at_an_instant_that_the_first_batch_takes() -> None:
    _, moved = moved_in([_stored((4, 8, NOW))], NOTHING_STAGED)
    (due,) = moved.left_of(messages([{"offset": 4, "deliver_at_ms": FAR_MS}])).column("deliver_at_ms").to_pylist()
    assert due == 0


@pytest.mark.parametrize("cutoff_ms", [CLOCK_MS - HOUR, 0])
def test_dead_letters_and_answers_are_for_the_first_batch_also_if_the_cutoff_is_of_long_ago(cutoff_ms: int) -> None:
    staged = _lost_job(None, cutoff_ms) if cutoff_ms else NOTHING_STAGED
    rest = Rest(staged, {}, {}, {}, SETTINGS, CLOCK_MS + MINUTE, Moved(staged))
    asked = headers(("delayline-cancel", b"%s/0/99" % TOPIC.encode()))
    rows = [
        {"offset": 6, "headers": headers(("deliver-after", b"soon")), "timestamp_ms": CLOCK_MS},
        {"offset": 7, "headers": asked, "timestamp_ms": CLOCK_MS},
        published(8, -MINUTE, ("deliver-after", HOUR)),
    ]
    found = {row["offset"]: row["deliver_at_ms"] for row in rows_left(rest, *rows)}
    overdue_ms = max(0, staged.cutoff_ms - 1)
    assert found == {6: overdue_ms, 7: overdue_ms, 8: CLOCK_MS - MINUTE + HOUR}


def test_requests_about_messages_made_due_are_answered_from_the_stored_ids() -> None:
    staged = _lost_job(OrderKey(MOVED_MS, TOPIC, 0, 4))
    cancelled, moved = moved_in([_stored((1, 3, None), (2, 4, NOW))], staged)
    requests = [
        ("delayline-deliver-now", 2),
        ("delayline-cancel", 2),
        ("delayline-deliver-now", 1),
        ("delayline-cancel", 1),
    ]
    requests += [("delayline-deliver-now", 3)]
    rest = Rest(staged, {}, cancelled, {}, SETTINGS, CLOCK_MS + MINUTE, moved)
    rows = [
        {"offset": 10 + at, "headers": headers((name, f"{TOPIC}/0/{asked}".encode())), "timestamp_ms": CLOCK_MS}
        for at, (name, asked) in enumerate(requests)
    ]
    answers = {row["offset"]: json.loads(row["value"]) for row in rows_left(rest, *rows)}
    assert [answers[10 + at]["reason"] for at in range(5)] == [
        "made-due",
        "released",
        "already-cancelled",
        "withdrawn",
        "checkpoint-lost",
    ]


def test_what_an_earlier_rebuild_has_left_waits_in_its_bucket_though_it_was_moved_before() -> None:
    # The first bucket of the lost job is 10. The bucket of the rebuild before it is 9.
    origin = CheckpointOrigin("c", 2, 1, first_bucket=10, cutoff_ms=CUTOFF_MS)
    staged = StagedMessages((Progress(BatchSpan(origin, -1, 0, 0), 0, None),))
    _, moved = moved_in([_stored((2, 4, NOW), (3, 11, NOW))], staged)
    several = messages({"offset": offset} for offset in (1, 2, 3))
    assert moved.are_gone(several, 9).tolist() == [False, False, True]
    assert moved.are_gone(several, 3).tolist() == [False, True, True]
    # Its batches have written no marker: the message has the due time that the batch had given it.
    assert moved.left_of(
        several.set_column(
            several.schema.get_field_index("deliver_at_ms"),
            several.schema.field("deliver_at_ms"),
            pa.array([FAR_MS] * 3),
        )
    ).column("deliver_at_ms").to_pylist() == [FAR_MS, FAR_MS, MOVED_MS]


def test_only_the_ids_of_many_messages_made_due_are_kept_in_memory() -> None:
    held: list[int] = []

    def tables() -> Iterator[pa.Table]:
        for first in range(0, 200_000, 10_000):
            yield _stored(*((offset, 4, NOW) for offset in range(first, first + 10_000)))
            held.append(pa.total_allocated_bytes())

    _, moved = moved_in(tables(), _lost_job(None))
    assert len(moved.ids[TOPIC, 0]) == 200_000
    # In Arrow tables, each would take 30 bytes.
    assert held[-1] - held[0] < 2_000_000


def _retimed(dues_ms: dict[int, tuple[int, int]], bucket: int) -> pa.Table:
    """Return stored ids of messages with the due times that they have taken over, and their own, by their offsets."""
    rows = [(TOPIC, 0, offset, due_ms, max(due_ms, own_ms)) for offset, (due_ms, own_ms) in dues_ms.items()]
    table = pa.Table.from_pylist([dict(zip(RETIMED_SCHEMA.names, row, strict=True)) for row in rows], RETIMED_SCHEMA)
    return ids_of_rows(retimed_rows(table, bucket))


def test_a_message_that_has_taken_over_a_due_time_is_left_by_that_and_due_then() -> None:
    # The newest batch, of bucket 8, was cut off behind the messages that are due at the clock + 10.
    staged = _lost_job(OrderKey(CLOCK_MS + 10, TOPIC, 0, 9))
    now, far = CLOCK_MS - MINUTE, CUTOFF_MS + HOUR
    tables = [
        # Both due times are over, by all that the markers show. These do not count.
        _retimed({0: (now, now + 5)}, 4),
        _retimed({1: (now, far), 2: (far, now)}, 4),
        _retimed({5: (CLOCK_MS + 10, far), 6: (CLOCK_MS + 11, far), 7: (far, CLOCK_MS + 9)}, 8),
    ]
    retimed = retimed_in(tables, staged)
    assert retimed.column("offset").to_pylist() == [1, 2, 5, 6, 7]
    rest = replace(Rest(staged, {}, {}, {}, SETTINGS, CLOCK_MS, Moved(staged)), retimed=retimed)
    dues = {0: now, 1: far, 2: now, 5: far, 6: far, 7: CLOCK_MS + 9, 8: far}
    rows = [record(offset, "a" if offset % 2 else None, due_ms) for offset, due_ms in dues.items()]
    found = left(rest, *rows)
    assert found == {offset: due_ms - CLOCK_MS for offset, due_ms in {2: far, 6: CLOCK_MS + 11, 7: far, 8: far}.items()}
    # The names have the same due times.
    batches = rest.names(LEFT_IN)(iter(records(rows).to_batches()))
    names = pa.Table.from_batches(batches, HOLDER_SCHEMA).to_pylist()
    assert {row["offset"]: row["deliver_at_ms"] for row in names} == {1: now, 5: CLOCK_MS + 10, 7: far}


def test_without_due_times_that_were_taken_over_messages_are_due_as_they_say() -> None:
    every = messages({"offset": offset, "deliver_at_ms": offset} for offset in range(3))
    assert due_times(every, RETIMED_SCHEMA.empty_table()).tolist() == [0, 1, 2]
    retimed = pa.table([[TOPIC] * 2, [0] * 2, [1, 9], [50, 60], [50, 60]], schema=RETIMED_SCHEMA)
    assert due_times(every, retimed).tolist() == [0, 50, 2]
