"""The records that a rebuild accepts again, and the messages that have their names then."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyroaring import BitMap64
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from conf.setting_types import DAY, HOUR, MINUTE
from sinks.buckets.bucket_table import ALL_BUCKETS, BucketTable
from state.buckets.id_rows import ID_ROW_SCHEMA
from state.buckets.parts import IdRows
from state.buckets.reseal import LEFT_SCHEMA, left_rows
from state.buckets.retimed import RETIMED_SCHEMA, due_times, retimed_rows
from state.checkpoint.batch_settings import BatchSettings, DelayPolicy
from state.checkpoint.handed_over import HandedOver
from state.checkpoint.origin import CheckpointOrigin, Offsets
from state.checkpoint.progress import BatchSpan, InTable, Progress
from state.message import MESSAGE_SCHEMA, decode_chunk, empty_messages, encode_chunk
from state.name_holders import HOLDER_SCHEMA, NamesLeft
from state.names import KEEP_TIME, NAMED_SCHEMA, name_rows, named
from state.order import OrderKey
from state.repeats.waiting import waiting_in
from streaming.checkpoint.handover import seal_rest
from streaming.job.requests.stored_ids import StoredIds
from streaming.operations.moved import Moved, moved_in, retimed_in, with_ids, without_ids
from streaming.operations.rest import Rest
from streaming.operations.table_contents import ids_left, names_of, taken_over_in
from tests.messages import PARTITIONS, headers, ids_of_rows, messages, records, some_batch_settings
from tests.streaming.sealed import cancelled_in, seal_messages

TOPIC, RESULTS = "delayline-in", "delayline-results"
CLOCK_MS = 1_798_000_000_000
FAR_MS = CLOCK_MS + 3_600_000
# The last batch has read 10 records, and staged the messages that are due before its cutoff.
CUTOFF_MS = CLOCK_MS + 60_000
READ = {TOPIC: {"0": 10}}
LEFT_IN = 8
SETTINGS = some_batch_settings(
    shard_keys=(7,), partitions=PARTITIONS | {RESULTS: 1}, policy=DelayPolicy(names="header")
)
ORIGIN = CheckpointOrigin("new", 2, 1, LEFT_IN + 1, CUTOFF_MS, READ)


def rest_of(
    in_table: Iterable[int] = (),
    settings: BatchSettings = SETTINGS,
    ends: Offsets = READ,
    now_ms: int = CLOCK_MS,
    others: Iterable[Progress] = (),
) -> Rest:
    """Return the rest of a job, by default with one shard. The table has the messages `in_table`.

    `ends` is where the last batch has read to, and `others` are the markers of other shards.
    """
    span = BatchSpan(CheckpointOrigin("c", 1, 1), 7, CUTOFF_MS - 500, CUTOFF_MS, READ, ends, previous_clock_ms=CLOCK_MS)
    last = OrderKey(CUTOFF_MS - 100, TOPIC, 0, 0)
    handed_over = HandedOver((Progress(span, 3, last), *others))
    return Rest(handed_over, {(TOPIC, 0): BitMap64(in_table)}, {}, {}, settings, now_ms, Moved(handed_over))


def rows_left(rest: Rest, *rows: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows that are left of records: messages, dead letters and answers."""
    batches = rest.messages()(iter(records(rows).to_batches()))
    chunks = [decode_chunk(chunk.as_py()) for batch in batches for chunk in batch.column("chunk")]
    found: list[dict[str, Any]] = pa.concat_tables([empty_messages(), *chunks]).to_pylist()
    return found


def left(rest: Rest, *rows: dict[str, Any]) -> dict[int, int]:
    """Return the due time of each message that is left, in ms after the lost job's last clock, by its offset."""
    messages = (row for row in rows_left(rest, *rows) if row["error_code"] is None)
    return {row["offset"]: row["deliver_at_ms"] - CLOCK_MS for row in messages}


def published(offset: int, published_ms: int, delay: tuple[str, int] | None = None) -> dict[str, Any]:
    """Return a record that was published so long after the lost job's last clock. An instant counts from that too."""
    own = []
    if delay is not None:
        own = [(delay[0], b"%d" % (delay[1] + (CLOCK_MS if delay[0] == "deliver-at" else 0)))]
    return {"offset": offset, "headers": headers(*own), "timestamp_ms": CLOCK_MS + published_ms}


def record(offset: int, name: str | None, due_ms: int = FAR_MS) -> dict[str, Any]:
    own = [("deliver-at", b"%d" % due_ms)] + ([] if name is None else [("delayline-name", name.encode())])
    return {"offset": offset, "headers": headers(*own), "timestamp_ms": CLOCK_MS - 1_000}


def holders(rest: Rest, *rows: dict[str, Any]) -> dict[int, tuple[bytes, bool]]:
    """Return for each message that got a name the name, and whether it is left."""
    batches = rest.names(LEFT_IN)(iter(records(rows).to_batches()))
    found = pa.Table.from_batches(batches, HOLDER_SCHEMA).to_pylist()
    assert {row["bucket"] for row in found} <= {LEFT_IN}
    return {row["offset"]: (row["name"], row["is_left"]) for row in found}


def test_a_message_whose_instant_was_shortened_is_not_delivered_again() -> None:
    shortened = some_batch_settings(
        shard_keys=(7,), partitions=PARTITIONS, policy=DelayPolicy(most_ms=HOUR, clamps=True)
    )
    rest = rest_of(settings=shortened, now_ms=CLOCK_MS + DAY)
    found = left(
        rest,
        # Published and staged yesterday. By today's clock it would wait for another hour.
        published(0, -DAY, ("deliver-at", 300 * DAY)),
        # The same. By today's clock the instant is near enough.
        published(1, -3 * HOUR, ("deliver-at", DAY + MINUTE)),
        # Due before the loss, if it was read at once: that is not known. It is taken for read within an hour.
        published(2, -HOUR - 30 * MINUTE, ("deliver-at", 300 * DAY)),
        published(3, -2 * HOUR, ("deliver-at", 300 * DAY)),
        # It waits, and is shortened again.
        published(4, -30 * MINUTE, ("deliver-at", 300 * DAY)),
        published(5, -30 * MINUTE, ("deliver-at", 20 * MINUTE)),
        # Delays count from the timestamp, whatever the clock says.
        published(6, -30 * MINUTE, ("deliver-after", 300 * DAY)),
        published(7, -2 * HOUR, ("deliver-after", HOUR - 1)),
        published(8, -2 * HOUR, ("deliver-at", -MINUTE)),
    )
    again = DAY + HOUR
    assert found == {2: again, 4: again, 5: 20 * MINUTE, 6: 30 * MINUTE}


def test_a_plain_message_that_was_stamped_ahead_is_not_delivered_again() -> None:
    # A day later, they are no longer ahead.
    for now_ms in (CLOCK_MS + MINUTE, CLOCK_MS + DAY):
        rest = rest_of(ends={TOPIC: {"0": 12}}, now_ms=now_ms)
        rows = [published(0, -1), published(1, 2 * HOUR), published(2, 2 * HOUR, ("deliver-after", 0))]
        # The newest batch may have been cut off before these.
        rows += [published(10, 2 * HOUR), published(11, -1)]
        assert left(rest, *rows) == {2: 2 * HOUR, 10: min(2 * HOUR, now_ms - CLOCK_MS)}


def test_what_was_stamped_ahead_is_not_delivered_again_by_a_shard_that_was_silent_since() -> None:
    partitions = {name: count for name, count in PARTITIONS.items() if name != RESULTS}
    settings = some_batch_settings(partitions=partitions)
    before = BatchSpan(CheckpointOrigin("c", 1, 1), 3, CLOCK_MS - DAY, CLOCK_MS - DAY + 500, {}, READ)
    silent = Progress(before, 1, OrderKey(CLOCK_MS - DAY, TOPIC, 0, 0))
    rest = rest_of(settings=settings, now_ms=CLOCK_MS + DAY, others=[silent])
    rows = [published(at, -2 * HOUR) | {"key": b"%d" % at} for at in range(8)]
    assert left(rest, *rows) == {}


def test_what_was_accepted_while_the_cutoff_was_hours_behind_the_clock_is_left_if_it_waits() -> None:
    # After an outage the job has staged the messages that were due up to two hours ago, and goes on.
    cutoff_ms = CLOCK_MS - 2 * HOUR
    origin, ends = CheckpointOrigin("c", 1, 1), {TOPIC: {"0": 12}}
    span = BatchSpan(origin, 7, cutoff_ms - MINUTE, cutoff_ms, READ, ends, previous_clock_ms=CLOCK_MS)
    handed_over = HandedOver((Progress(span, 3, OrderKey(cutoff_ms - 100, TOPIC, 0, 0)),))
    rest = Rest(handed_over, {}, {}, {}, SETTINGS, CLOCK_MS + MINUTE, Moved(handed_over))
    rows = [published(0, -1), published(1, -HOUR), published(2, -3 * HOUR), published(3, HOUR)]
    assert left(rest, *rows) == {0: -1, 1: -HOUR, 3: MINUTE}


def test_a_cancel_of_a_recalled_message_is_answered_cancelled_and_of_another_unknown() -> None:
    rest = replace(rest_of([2, 3]), recalled={(TOPIC, 0): BitMap64([2])})
    requests = [
        published(50 + at, MINUTE) | {"headers": headers(("delayline-cancel", b"%s/0/%d" % (TOPIC.encode(), at)))}
        for at in (2, 3)
    ]
    batches = rest.messages()(iter(records(requests).to_batches()))
    (table,) = [decode_chunk(chunk.as_py()) for batch in batches for chunk in batch.column("chunk")]
    results = {row["offset"]: json.loads(row["value"])["result"] for row in table.to_pylist()}
    assert results == {52: "cancelled", 53: "unknown"}


def test_all_messages_that_got_a_name_are_known_with_those_that_are_left() -> None:
    rows = [record(1, "a", CLOCK_MS), record(2, "a"), record(3, "b"), record(4, None), record(5, "b")]
    # The first one is staged, and so are the requests of all of them.
    assert holders(rest_of([3]), *rows) == {
        1: (named(TOPIC, b"a"), False),
        2: (named(TOPIC, b"a"), True),
        3: (named(TOPIC, b"b"), False),
        5: (named(TOPIC, b"b"), True),
    }


def test_the_rest_is_sealed_with_the_names_of_the_newest_and_the_others_cancelled(store: BucketTable) -> None:
    # The first one is overdue: its shard was behind another one when the job was lost.
    dues = {19: CUTOFF_MS - 1, 20: FAR_MS, 21: FAR_MS}
    seal_messages(store, 3, [{"offset": at, "deliver_at_ms": due} for at, due in dues.items()], SETTINGS)
    rows = [
        (named(TOPIC, own), TOPIC, 0, at, due, due, False)
        for own, (at, due) in zip((b"d", b"a", b"b"), dues.items(), strict=True)
    ]
    names = pa.Table.from_pylist([dict(zip(NAMED_SCHEMA.names, row, strict=True)) for row in rows], NAMED_SCHEMA)
    store.append(store.spark.createDataFrame(name_rows(names, 4)), "checkpoint", 4)
    origin = replace(ORIGIN, offsets={TOPIC: {"0": 30}})
    again = [record(22, "a"), record(23, "c"), record(24, "c"), record(25, "d")]
    batches = rest_of().names(LEFT_IN)(iter(records(again).to_batches()))
    holding = store.spark.createDataFrame(pa.Table.from_batches(batches, HOLDER_SCHEMA))
    accepted = messages({"offset": each["offset"], "deliver_at_ms": FAR_MS} for each in again)
    overdue = messages([{"offset": 19, "deliver_at_ms": dues[19]}])
    left, behind = (
        store.spark.createDataFrame(pa.Table.from_batches(left_rows(table, 1), LEFT_SCHEMA))
        for table in (accepted, overdue)
    )
    ids = names_of(store, holding, NamesLeft(origin, {}, ids_left(behind), SETTINGS.name_mode))
    assert seal_rest(store, left.union(behind), origin, "checkpoint-rest-of-input", SETTINGS, ids) == 5
    stored = pa.concat_tables(store.ids_before(IdRows.CANCELLED, ALL_BUCKETS)).sort_by("offset")
    assert [stored.column(name).to_pylist() for name in ("offset", "deliver_at_ms", "bucket")] == [
        [19, 20, 23], [CUTOFF_MS - 1, FAR_MS, FAR_MS], [LEFT_IN] * 3,
    ]  # fmt: skip
    stored_ids = StoredIds(store)
    stored_ids.open(origin.first_bucket, origin)
    known = stored_ids.named_among([named(TOPIC, each) for each in (b"a", b"b", b"c", b"d")], CLOCK_MS)
    assert sorted(known.column("offset").to_pylist()) == [21, 22, 24, 25]
    stored_ids.close()


def test_names_are_settled_where_nothing_else_is_left(store: BucketTable) -> None:
    # The message that waits lost its name to a staged one, after the table was backed up.
    seal_messages(store, 3, [{"offset": 9, "deliver_at_ms": FAR_MS}], SETTINGS)
    row = (named(TOPIC, b"a"), TOPIC, 0, 9, FAR_MS, FAR_MS, False)
    names = pa.Table.from_pylist([dict(zip(NAMED_SCHEMA.names, row, strict=True))], NAMED_SCHEMA)
    store.append(store.spark.createDataFrame(name_rows(names, 4)), "checkpoint", 4)
    batches = rest_of().names(LEFT_IN)(iter(records([record(22, "a", CLOCK_MS)]).to_batches()))
    holding = store.spark.createDataFrame(pa.Table.from_batches(batches, HOLDER_SCHEMA))
    nothing = store.spark.createDataFrame([], from_arrow_schema(LEFT_SCHEMA))
    origin = replace(ORIGIN, offsets={TOPIC: {"0": 30}})
    ids = names_of(store, holding, NamesLeft(origin, {}, {}, SETTINGS.name_mode))
    assert seal_rest(store, nothing, origin, "checkpoint-rest-of-input", SETTINGS, ids) == 0
    assert cancelled_in(store)[TOPIC, 0] == [9]


def test_a_message_that_took_over_a_due_time_after_the_backup_waits_until_then(store: BucketTable) -> None:
    """By its own due time it is staged. The table has the message before it, and only the name of that one."""
    settings = some_batch_settings(
        shard_keys=(7,),
        partitions=PARTITIONS | {RESULTS: 1},
        policy=DelayPolicy(names="header", name_mode=KEEP_TIME),
    )
    seal_messages(store, 3, [{"offset": 2, "deliver_at_ms": FAR_MS}], settings)
    row = (named(TOPIC, b"a"), TOPIC, 0, 2, FAR_MS, FAR_MS, True)
    names = pa.Table.from_pylist([dict(zip(NAMED_SCHEMA.names, row, strict=True))], NAMED_SCHEMA)
    store.append(store.spark.createDataFrame(name_rows(names, 4)), "checkpoint", 4)
    rest, origin = rest_of([2], settings), replace(ORIGIN, offsets={TOPIC: {"0": 30}})
    again = [record(2, "a"), record(5, "a", CLOCK_MS), record(6, "b", CLOCK_MS), record(7, "a", CLOCK_MS + 1)]
    assert left(rest, *again) == {}
    names_left = NamesLeft(origin, {}, {}, settings.name_mode)

    def holding(rest: Rest) -> DataFrame:
        batches = rest.names(LEFT_IN)(iter(records(again).to_batches()))
        return store.spark.createDataFrame(pa.Table.from_batches(batches, HOLDER_SCHEMA))

    rest = replace(rest, retimed=taken_over_in(store, holding(rest), names_left))
    assert left(rest, *again) == dict.fromkeys((5, 7), FAR_MS - CLOCK_MS)
    rows = pa.Table.from_batches(rest.messages()(iter(records(again).to_batches())), LEFT_SCHEMA)
    ids = names_of(store, holding(rest), names_left)
    accepted = store.spark.createDataFrame(rows)
    assert seal_rest(store, accepted, origin, "checkpoint-rest-of-input", settings, ids) == 2
    # The newest has the name.
    assert sorted(cancelled_in(store)[TOPIC, 0]) == [2, 5]


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


def _lost_job(last: OrderKey | None, cutoff_ms: int = CUTOFF_MS) -> HandedOver:
    """Return the markers of a job with one shard. Its batch 7 was cut off after it had staged messages up to `last`."""
    origin = CheckpointOrigin("c", 1, 1, first_bucket=1)
    span = BatchSpan(origin, 7, cutoff_ms - 500, cutoff_ms, {TOPIC: {"0": 5}}, READ, previous_clock_ms=CLOCK_MS - 500)
    return HandedOver((Progress(span, 1, last),))


# A first job that was lost before its first batch had staged anything.
NOTHING_HANDED_OVER = HandedOver((Progress(BatchSpan(CheckpointOrigin("c", 1, 1))),))


def test_messages_made_due_are_distinguished_from_replaced_ones_by_the_stored_text() -> None:
    handed_over = _lost_job(None)
    tables = [
        _stored((1, 3, None), (2, 4, NOW), (3, 5, f"{TOPIC}/0/9")),
        _stored((4, 8, NOW), (5, 9, NOW)),
        _stored((6, 8, None)),
    ]
    cancelled, moved = moved_in(tables, handed_over)
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
    handed_over = _lost_job(last)
    _, moved = moved_in([_stored((2, 4, NOW), (4, 8, NOW), (5, 9, NOW))], handed_over)
    done = without_ids(moved.ids, moved.perhaps_left)
    rest = Rest(handed_over, done, {}, {}, SETTINGS, CLOCK_MS + MINUTE, moved)
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
    handed_over = _lost_job(None, CLOCK_MS - HOUR)
    _, moved = moved_in([_stored((4, 8, NOW))], handed_over)
    (due,) = moved.left_of(messages([{"offset": 4, "deliver_at_ms": FAR_MS}])).column("deliver_at_ms").to_pylist()
    assert due == handed_over.cutoff_ms - 1 < MOVED_MS


def test_a_job_that_has_handed_over_nothing_leaves_what_was_made_due_at_an_instant_that_the_first_batch_takes() -> None:
    _, moved = moved_in([_stored((4, 8, NOW))], NOTHING_HANDED_OVER)
    (due,) = moved.left_of(messages([{"offset": 4, "deliver_at_ms": FAR_MS}])).column("deliver_at_ms").to_pylist()
    assert due == 0


@pytest.mark.parametrize("cutoff_ms", [CLOCK_MS - HOUR, 0])
def test_dead_letters_and_answers_are_for_the_first_batch_also_if_the_cutoff_is_of_long_ago(cutoff_ms: int) -> None:
    handed_over = _lost_job(None, cutoff_ms) if cutoff_ms else NOTHING_HANDED_OVER
    rest = Rest(handed_over, {}, {}, {}, SETTINGS, CLOCK_MS + MINUTE, Moved(handed_over))
    asked = headers(("delayline-cancel", b"%s/0/99" % TOPIC.encode()))
    rows = [
        {"offset": 6, "headers": headers(("deliver-after", b"soon")), "timestamp_ms": CLOCK_MS},
        {"offset": 7, "headers": asked, "timestamp_ms": CLOCK_MS},
        published(8, -MINUTE, ("deliver-after", HOUR)),
    ]
    found = {row["offset"]: row["deliver_at_ms"] for row in rows_left(rest, *rows)}
    overdue_ms = max(0, handed_over.cutoff_ms - 1)
    assert found == {6: overdue_ms, 7: overdue_ms, 8: CLOCK_MS - MINUTE + HOUR}


def test_requests_about_messages_made_due_are_answered_from_the_stored_ids() -> None:
    handed_over = _lost_job(OrderKey(MOVED_MS, TOPIC, 0, 4))
    cancelled, moved = moved_in([_stored((1, 3, None), (2, 4, NOW))], handed_over)
    requests = [
        ("delayline-deliver-now", 2),
        ("delayline-cancel", 2),
        ("delayline-deliver-now", 1),
        ("delayline-cancel", 1),
    ]
    requests += [("delayline-deliver-now", 3)]
    rest = Rest(handed_over, {}, cancelled, {}, SETTINGS, CLOCK_MS + MINUTE, moved)
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


def test_the_answer_to_a_cancel_by_name_says_that_the_lost_batch_may_have_cancelled_the_message() -> None:
    rest = replace(rest_of(), cancelled={(TOPIC, 0): BitMap64([1])})
    (row,) = rows_left(rest, {"offset": 20, "headers": headers(("delayline-cancel-name", b"a"))})
    answer = json.loads(row["value"])
    assert (answer["result"], answer["reason"]) == ("unknown", "checkpoint-lost")
    assert "A cancel by name may already be done" in answer["why"]


def test_what_an_earlier_rebuild_has_left_waits_in_its_bucket_though_it_was_moved_before() -> None:
    # The first bucket of the lost job is 10. The bucket of the rebuild before it is 9.
    origin = CheckpointOrigin("c", 2, 1, first_bucket=10, cutoff_ms=CUTOFF_MS)
    handed_over = HandedOver((Progress(BatchSpan(origin, -1, 0, 0), 0, None),))
    _, moved = moved_in([_stored((2, 4, NOW), (3, 11, NOW))], handed_over)
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
    handed_over = _lost_job(OrderKey(CLOCK_MS + 10, TOPIC, 0, 9))
    now, far = CLOCK_MS - MINUTE, CUTOFF_MS + HOUR
    tables = [
        # Both due times are over, by all that the markers show. These do not count.
        _retimed({0: (now, now + 5)}, 4),
        _retimed({1: (now, far), 2: (far, now)}, 4),
        _retimed({5: (CLOCK_MS + 10, far), 6: (CLOCK_MS + 11, far), 7: (far, CLOCK_MS + 9)}, 8),
    ]
    retimed = retimed_in(tables, handed_over)
    assert retimed.column("offset").to_pylist() == [1, 2, 5, 6, 7]
    rest = replace(Rest(handed_over, {}, {}, {}, SETTINGS, CLOCK_MS, Moved(handed_over)), retimed=retimed)
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


@pytest.mark.parametrize(
    ("last_s", "below_s", "waits"),
    [
        # Nothing but other messages is staged, or two occurrences, or all.
        (40, 10, (1, 10)),
        (20, None, (3, 30)),
        (40, 30, (3, 30)),
        (40, None, (5, 50)),
    ],
)
def test_occurrence_that_the_newest_batch_left_of_a_message_that_it_read_is_left(
    last_s: int, below_s: int | None, waits: tuple[int, int]
) -> None:
    """The batch has stored nothing, so only the record says that the message repeats."""
    below_ms = None if below_s is None else CLOCK_MS + below_s * 1_000
    span = BatchSpan(CheckpointOrigin("c", 1, 1), 7, CLOCK_MS, CLOCK_MS + 45_000, {}, READ, clock_ms=CLOCK_MS)
    last = OrderKey(CLOCK_MS + last_s * 1_000, TOPIC, 0, 9)
    handed_over = HandedOver((Progress(span, 3, last, 3, below_ms),))
    policy = DelayPolicy(repeats=True)
    settings = some_batch_settings(shard_keys=(7,), partitions=PARTITIONS | {RESULTS: 1}, policy=policy)
    rest = Rest(handed_over, {}, {}, {}, settings, CLOCK_MS, Moved(handed_over))
    record = {"offset": 4, "timestamp_ms": CLOCK_MS, "headers": headers(("delayline-repeat", b"every 10s"))}
    (row,) = rows_left(rest, record)
    (waiting,) = waiting_in(pa.Table.from_pylist([row], schema=MESSAGE_SCHEMA))
    assert waiting.occurrence[:2] == (waits[0], CLOCK_MS + waits[1] * 1_000)


@pytest.mark.parametrize(
    ("previous_s", "last_s", "number"),
    # The shard has a marker of the newest batch, or of one before. Or the newest one is the first to stage the message.
    [(60, 75, 8), (60, None, 6), (5, 75, 8)],
)
def test_a_schedule_continues_from_its_record_if_the_table_has_lost_it(
    previous_s: int, last_s: int | None, number: int
) -> None:
    """As without a backup: batches have stored the following occurrences, and nothing is there."""
    previous_ms = CLOCK_MS + previous_s * 1_000
    span = BatchSpan(CheckpointOrigin("c", 1, 1), 7, previous_ms, CLOCK_MS + 90_000, READ, READ)
    last = None if last_s is None else OrderKey(CLOCK_MS + last_s * 1_000, TOPIC, 0, 9)
    handed_over = HandedOver((Progress(span, 3, last, 3, in_table=InTable(6)),))
    settings = some_batch_settings(
        shard_keys=(7,), partitions=PARTITIONS | {RESULTS: 1}, policy=DelayPolicy(repeats=True)
    )
    intact = Rest(handed_over, {}, {}, {}, settings, CLOCK_MS, Moved(handed_over))
    row = {"offset": 4, "timestamp_ms": CLOCK_MS, "headers": headers(("delayline-repeat", b"every 10s"))}
    ended = {
        **row,
        "offset": 5,
        "headers": headers(("delayline-repeat", b"every 10s"), ("delayline-repeat-count", b"4")),
    }
    assert not rows_left(intact, row, ended)
    older = replace(intact, is_older=True)
    (left_row,) = rows_left(older, row, ended)
    (waiting,) = waiting_in(pa.Table.from_pylist([left_row], schema=MESSAGE_SCHEMA))
    assert waiting.occurrence[:2] == (number, CLOCK_MS + number * 10_000)
    cancelled = replace(older, in_table={(TOPIC, 0): BitMap64([4])})
    assert not rows_left(cancelled, row, ended)
