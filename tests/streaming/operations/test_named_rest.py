"""The messages that have their names after a rebuild."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from sinks.buckets.bucket_table import ALL_BUCKETS, BucketTable
from state.buckets.parts import IdRows
from state.buckets.reseal import LEFT_SCHEMA, left_rows
from state.checkpoint.batch_settings import DelayPolicy
from state.name_holders import HOLDER_SCHEMA, NamesLeft
from state.names import KEEP_TIME, NAMED_SCHEMA, name_rows, named
from streaming.checkpoint.switch_over import seal_rest
from streaming.job.requests.stored_ids import StoredIds
from streaming.operations.rest import Rest
from streaming.operations.table_contents import ids_left, names_of, taken_over_in
from tests.messages import PARTITIONS, messages, records, some_batch_settings
from tests.streaming.operations.rest_of_job import (
    CLOCK_MS,
    CUTOFF_MS,
    FAR_MS,
    LEFT_IN,
    ORIGIN,
    RESULTS,
    SETTINGS,
    TOPIC,
    holders,
    left,
    record,
    rest_of,
)
from tests.streaming.sealed import cancelled_in, seal_messages


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
