"""Which groups of the state stage get the requests of a batch, and how many bytes these are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap64

from sources.intake.accept import accept
from sources.intake.kafka_reader import accepting
from sources.intake.request_grouping import RequestGrouping
from state.cancel import ALWAYS, CANCEL_HEADER, DELIVER_NOW_HEADER, REQUEST_SCHEMA, replacing, requests_of
from state.checkpoint.batch_settings import DelayPolicy, RunningBatch
from state.group_keys import shard_keys
from state.index.offset_bitmaps import BITMAPS_SCHEMA, ids_from
from state.kinds import is_message
from state.message import decode_chunk
from state.message_ids import to_set
from state.names import CANCEL_NAME_HEADER, FROM_HEADER, NAME_HEADER
from state.shards import shards_of
from state.taken import Taken
from tests.messages import PARTITIONS, headers, records, some_batch_settings

TOPIC, OTHER = "delayline-in", "other-in"
NAMED = {"policy": DelayPolicy(names=FROM_HEADER)}


def running(shards: int, taken: Taken | None = None) -> RunningBatch:
    settings = some_batch_settings(
        shard_keys=shard_keys(shards), partitions=PARTITIONS | {"delayline-out": 64, "delayline-results": 64}, **NAMED
    )
    return RunningBatch(3, settings, 1, 10_000, 10**12, taken=taken or Taken())


def request_records(*marks: tuple[str, bytes | str], start: int = 0) -> pa.Table:
    """Return records that have these headers; each is one of an input partition from the offset `start` on."""
    rows: list[dict[str, Any]] = []
    for offset, (name, value) in enumerate(marks, start):
        own = [("deliver-after", b"1h"), (name, value.encode() if isinstance(value, str) else value)]
        rows.append({"key": b"%d" % offset, "offset": offset, "headers": headers(*own), "timestamp_ms": 10**12})
    return records(rows)


def grouped(batch: RunningBatch, *tables: pa.Table) -> tuple[dict[int, list[int]], dict[int, set[Any]]]:
    """Return the offsets of the requests that each group passes on, and the ids that each gets, by its key."""
    grouping = RequestGrouping(batch)
    passed_on: dict[int, list[int]] = defaultdict(list)
    for table in tables:
        for key, requests in grouping.divide(accept(table, batch.settings, batch.clock_ms)):
            passed_on[key] += [request.id[2] for request in requests_of(requests)]
    return dict(passed_on), {key: to_set(ids_from([ids])) for key, ids in grouping.ids()}


def test_a_cancel_by_id_is_passed_on_once_and_each_shard_gets_the_id() -> None:
    batch = running(8)
    tables = [
        request_records((CANCEL_HEADER, f"{OTHER}/1/7"), (CANCEL_HEADER, f"{TOPIC}/0/5"), start=at) for at in (10, 20)
    ]
    passed_on, ids = grouped(batch, *tables)
    assert [sorted(own) for own in passed_on.values()] == [[10, 11, 20, 21]]
    assert ids == {key: {(OTHER, 1, 7), (TOPIC, 0, 5)} for key in batch.settings.shard_keys}


def test_each_shard_is_told_which_messages_somebody_wants_now() -> None:
    grouping = RequestGrouping(running(2))
    marks = [(DELIVER_NOW_HEADER, f"{OTHER}/1/7"), (CANCEL_HEADER, f"{OTHER}/1/7"), (CANCEL_HEADER, f"{TOPIC}/0/5")]
    batch = running(2)
    assert len(list(grouping.divide(accept(request_records(*marks), batch.settings, batch.clock_ms)))) == 1
    for _, ids in grouping.ids():
        undecided = ids.filter(ids.column("undecided"))
        assert to_set(ids_from([undecided])) == {(OTHER, 1, 7)}
        assert to_set(ids_from([ids])) == {(OTHER, 1, 7), (TOPIC, 0, 5)}


def test_the_request_of_a_message_goes_to_the_shard_of_the_message() -> None:
    batch = running(8)
    replacements = [(name, value) for at in range(30) for name, value in replacing(f"{OTHER}/1/{at}", ALWAYS)[:1]]
    for table in (request_records(*[(NAME_HEADER, b"%d" % at) for at in range(30)]), request_records(*replacements)):
        messages = accept(table, batch.settings, batch.clock_ms).messages
        messages = messages.filter(pa.array(is_message(messages)))
        shards = dict(zip(messages.column("offset").to_pylist(), shards_of(messages, 8).tolist(), strict=True))
        passed_on, _ = grouped(batch, table)
        assert len(passed_on) > 4
        found = {offset: batch.settings.shard_keys.index(key) for key, own in passed_on.items() for offset in own}
        assert found == shards


def test_no_shard_gets_the_ids_of_messages_that_have_a_name_or_are_taken_by_forwarders() -> None:
    named = request_records((NAME_HEADER, b"a"), (CANCEL_NAME_HEADER, b"a"))
    assert grouped(running(8), named)[1] == {}
    taken = Taken({(OTHER, 1): BitMap64([7, 8])})
    cancels = [(CANCEL_HEADER, f"{OTHER}/1/{at}") for at in (7, 8)]
    passed_on, ids = grouped(running(8, taken), request_records(*cancels))
    assert (list(passed_on.values()), ids) == ([[0, 1]], {})
    _, ids = grouped(running(8, taken), request_records(*cancels, (CANCEL_HEADER, f"{OTHER}/1/9")))
    assert set(map(tuple, ids.values())) == {((OTHER, 1, 9),)}


def shuffled(shards: int, table: pa.Table) -> tuple[int, int, int]:
    """Return the bytes of chunks that a task gives of a batch: messages, requests, and ids that are asked for."""
    sizes = dict.fromkeys((REQUEST_SCHEMA, BITMAPS_SCHEMA), 0)
    of_messages = 0
    for rows in accepting(lambda: running(shards))(iter(table.combine_chunks().to_batches())):
        for chunk in filter(None, rows.column("chunk").to_pylist()):
            schema = decode_chunk(chunk).schema
            if schema in sizes:
                sizes[schema] += len(chunk)
            else:
                of_messages += len(chunk)
    return of_messages, sizes[REQUEST_SCHEMA], sizes[BITMAPS_SCHEMA]


@pytest.mark.parametrize("kind", ["cancels", "replacements", "names", "cancels by name"])
def test_with_more_shards_requests_do_not_become_more_bytes_and_an_id_takes_two_for_each(kind: str) -> None:
    count, many = 10_000, 64
    # The requests are for some of ten million messages.
    asked = np.random.default_rng(7).choice(10**7, count, replace=False).tolist()
    marks: dict[str, Iterable[tuple[str, bytes | str]]] = {
        "cancels": ((CANCEL_HEADER, f"{OTHER}/1/{at}") for at in asked),
        "replacements": (replacing(f"{OTHER}/1/{at}", ALWAYS)[0] for at in asked),
        "names": ((NAME_HEADER, b"%d" % at) for at in asked),
        "cancels by name": ((CANCEL_NAME_HEADER, b"%d" % at) for at in asked),
    }
    table = request_records(*marks[kind])
    (_, few_asks, few_ids), (_, many_asks, many_ids) = (shuffled(shards, table) for shards in (2, many))
    # A chunk has a schema, and requests that come with messages are in the groups of these.
    assert many_asks - few_asks < 2_500 * many
    assert many_asks < 60 * count
    if "names" in kind or "by name" in kind:
        assert few_ids == many_ids == 0
    else:
        assert few_ids / 2 == many_ids / many < 2.5 * count


@pytest.mark.parametrize(("value_bytes", "least", "most"), [(10, 1, 1), (200_000, 5, 64)])
def test_the_rows_of_small_groups_come_together_and_large_ones_apart(value_bytes: int, least: int, most: int) -> None:
    rows = [
        {"key": b"%d" % offset, "offset": offset, "value": np.random.default_rng(offset).bytes(value_bytes)}
        for offset in range(100)
    ]
    batches = list(accepting(lambda: running(64))(iter(records(rows).combine_chunks().to_batches())))
    assert least <= len(batches) <= most
    found = [
        (key, decode_chunk(chunk).column("offset").to_pylist())
        for batch in batches
        for key, chunk in zip(batch.column("shard_key").to_pylist(), batch.column("chunk").to_pylist(), strict=True)
    ]
    assert len({key for key, _ in found}) > 16
    assert sorted(offset for _, offsets in found for offset in offsets) == [*range(100)]
