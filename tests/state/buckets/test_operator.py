"""The state function with pyspark's own group state, which needs no JVM."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import BinaryType, StructType

from state.buckets.operator import (
    ASKED,
    DUE,
    FILLED_BYTES,
    FILLER,
    KEPT,
    SEALED,
    SHARD_OUTPUT_SCHEMA,
    TAKEN_OUT,
    fillers,
    update_shard,
)
from state.buckets.parts import sealed_part
from state.cancel import ALWAYS, REQUEST_SCHEMA
from state.checkpoint.batch_settings import BatchSettings, DelayPolicy, RunningBatch
from state.due_spans import DueRun, decode_runs
from state.group_keys import OVERFLOW_GROUPS, overflow_key
from state.index.offset_bitmaps import as_table, bitmaps_of
from state.kinds import REQUEST
from state.message import decode_chunk, encode_chunk
from state.message_ids import ID
from tests.messages import messages, some_batch_settings

BATCH_SETTINGS = some_batch_settings(shard_keys=(7, 1), bucket_max_messages=4)


def group_state(cutoff_ms: int, kept: bytes | None = None) -> GroupState:
    return GroupState(
        optionalValue=Row(bucket=kept or b""),
        batchProcessingTimeMs=0,
        eventTimeWatermarkMs=cutoff_ms,
        timeoutConf=GroupStateTimeout.EventTimeTimeout,
        hasTimedOut=False,
        watermarkPresent=True,
        defined=kept is not None,
        updated=False,
        removed=False,
        timeoutTimestamp=GroupState.NO_TIMESTAMP,
        keyAsUnsafe=b"",
        valueSchema=StructType().add("bucket", BinaryType()),
    )


def due_at(*instants_ms: int) -> pa.Table:
    return messages({"deliver_at_ms": ms, "offset": offset} for offset, ms in enumerate(instants_ms))


def frames_of(
    state: GroupState, *chunks: pa.Table, key: int, settings: BatchSettings = BATCH_SETTINGS
) -> list[pd.DataFrame]:
    arrivals = [pd.DataFrame({"chunk": [encode_chunk(chunk), None]}) for chunk in chunks]
    batch = RunningBatch(12, settings, read_partitions=1, transfer_rows=100, clock_ms=0)
    frames = list(update_shard(lambda: batch)((key,), iter(arrivals), state))
    assert all(list(frame.columns) == SHARD_OUTPUT_SCHEMA.names for frame in frames)
    return frames


def updated(state: GroupState, *chunks: pa.Table, key: int = 1) -> pd.DataFrame:
    (frame,) = frames_of(state, *chunks, key=key)
    return frame


def test_kept_messages_are_in_the_state_and_wake_the_shard_at_the_earliest_due_time() -> None:
    state = group_state(cutoff_ms=100)
    updated(state, due_at(500, 50), due_at(300))
    assert decode_chunk(state.get[0]).column("deliver_at_ms").to_pylist() == [300, 500]
    assert state._timeout_timestamp == 300


def test_what_is_kept_and_sealed_is_counted_for_the_topics_with_a_limit() -> None:
    limited = DelayPolicy(most_waiting=9)
    settings = replace(BATCH_SETTINGS, policies={"a": limited, "b": limited})
    topics = ["a", "a", "b", "c", "a", "c"]
    arrivals = messages(
        {"deliver_at_ms": 500 + number, "offset": number, "topic": topic} for number, topic in enumerate(topics)
    )
    (frame,) = frames_of(group_state(cutoff_ms=100), arrivals, key=1, settings=settings)
    counted = {kind: [json.loads(text) for text in own] for kind, own in frame.groupby("kind")["by_topic"]}
    assert counted == {KEPT: [{"a": 1}], SEALED: [{"a": [[501, 504, 2]], "b": [[502, 502, 1]]}]}
    (frame,) = frames_of(group_state(cutoff_ms=100), arrivals, key=1)
    assert set(frame["by_topic"]) == {"{}"}


def test_messages_are_accepted_by_topic_without_dead_letters_and_asks() -> None:
    rows = [
        {"deliver_at_ms": 50, "topic": "a"},
        {"deliver_at_ms": 500, "topic": "a"},
        {"deliver_at_ms": 600, "topic": "b"},
        {"deliver_at_ms": 0, "topic": "a", "error_code": "bad-delay", "error_text": ""},
        {"deliver_at_ms": 0, "topic": "b", "kind": REQUEST, "key": b"a/0/1"},
    ]
    arrivals = messages({"offset": number} | row for number, row in enumerate(rows))
    kept = encode_chunk(due_at(700))
    of_requests = [REQUEST_SCHEMA.empty_table(), ids_asked(900)]
    for key, before, chunks in ((1, kept, [arrivals, *of_requests]), (overflow_key(1, 0, 2), None, [arrivals])):
        frame = pd.concat(frames_of(group_state(100, before), *chunks, key=key))
        (accepted,) = frame[frame["kind"] == KEPT]["accepted"]
        assert json.loads(accepted) == {"a": 2, "b": 1}
        assert set(frame[frame["kind"] != KEPT]["accepted"]) == {"{}"}


def test_the_state_is_removed_when_no_message_is_kept() -> None:
    state = group_state(cutoff_ms=1000, kept=encode_chunk(due_at(500)))
    frame = updated(state)
    assert frame["kind"].tolist() == [DUE, KEPT]
    assert not state.exists


def test_due_sealed_and_kept_rows_have_the_count_and_due_times_of_their_messages() -> None:
    frame = updated(group_state(cutoff_ms=100), due_at(50, 60, 200, 300, 5000, 6000, 7000))
    assert frame["kind"].tolist() == [DUE, SEALED, KEPT]
    assert frame["count"].tolist() == [2, 4, 1]
    assert frame["min_deliver_at_ms"].tolist() == [50, 300, 200]
    assert frame["max_deliver_at_ms"].tolist() == [60, 7000, 200]
    assert frame["part"].tolist() == ["", sealed_part(12), ""]
    assert [decode_chunk(chunk).num_rows for chunk in frame["chunk"][:2]] == [2, 4]
    assert decode_runs(frame["chunk"][2]) == [DueRun(200, 200, 1)]
    assert set(frame["cutoff_ms"]) == {100}
    assert set(frame["bucket"]) == {12}


@pytest.mark.parametrize(("key", "shard"), [(7, 0), (1, 1)])
def test_rows_name_the_shard_of_the_key(key: int, shard: int) -> None:
    assert updated(group_state(cutoff_ms=0), key=key)["shard"].tolist() == [shard]


def test_an_idle_shard_still_reports_its_cutoff() -> None:
    frame = updated(group_state(cutoff_ms=100))
    assert frame[["kind", "cutoff_ms", "count", "min_deliver_at_ms"]].to_numpy().tolist() == [[KEPT, 100, 0, -1]]


def test_a_message_due_at_the_epoch_is_kept_at_the_first_cutoff() -> None:
    state = group_state(cutoff_ms=0)
    assert updated(state, due_at(0))["kind"].tolist() == [KEPT]
    assert state._timeout_timestamp == 1
    assert updated(group_state(cutoff_ms=1, kept=state.get[0]))["kind"].tolist() == [DUE, KEPT]


def test_a_chunk_of_due_messages_has_the_order_key_of_its_first_message() -> None:
    frame = updated(group_state(cutoff_ms=100), due_at(60, 50))
    first, *_ = frame[["min_deliver_at_ms", "topic", "partition", "offset"]].to_numpy().tolist()
    assert first == [50, "delayline-in", 0, 1]


def test_an_overflow_group_keeps_nothing_and_seals_segments_with_numbers_of_their_own() -> None:
    numbers = []
    for group in (0, OVERFLOW_GROUPS - 1):
        state = group_state(cutoff_ms=100)
        frame, filler = frames_of(state, due_at(50, 60), due_at(200, 7000), key=overflow_key(1, group, 2))
        assert frame["kind"].tolist() == [DUE, SEALED, KEPT]
        assert frame["count"].tolist() == [2, 2, 0]
        assert set(frame["shard"]) == {1}
        assert not state.exists
        assert state._timeout_timestamp == GroupState.NO_TIMESTAMP
        assert set(filler["kind"]) == {FILLER}
        numbers.append(frame["segment"].tolist()[1])
    assert 0 < numbers[0] < numbers[1] < 2**31 - 2**20


def test_fillers_make_spark_pass_on_its_rows_after_the_bytes_that_it_may_collect() -> None:
    assert fillers(FILLED_BYTES, 10_000) == 10_000
    assert fillers(FILLED_BYTES // 2 + 1, 10_000) == 5_001
    assert fillers(1, 10_000) == 1


def requests_for(*offsets: int) -> pa.Table:
    rows = [
        {"topic": "delayline-in", "partition": 0, "offset": offset, "request_topic": "in", "request_partition": 1}
        | {"request_offset": 100 + at, "delivers": False}
        for at, offset in enumerate(offsets)
    ]
    return pa.Table.from_pylist(rows, schema=REQUEST_SCHEMA)


def ids_asked(*offsets: int, undecided: bool = False) -> pa.Table:
    ids = due_at(0).select(ID).take([0] * len(offsets)).set_column(2, "offset", [offsets])
    return as_table(bitmaps_of([ids]), undecided)


def rows_of(frames: Iterable[pd.DataFrame], kind: str) -> list[dict[str, Any]]:
    own = [frame[frame["kind"] == kind]["chunk"] for frame in frames]
    return [row for chunks in own for chunk in chunks for row in decode_chunk(chunk).to_pylist()]


def test_a_shard_takes_out_what_is_cancelled_and_says_what_it_had() -> None:
    state = group_state(cutoff_ms=100, kept=encode_chunk(due_at(5_000, 6_000)))
    arrivals = messages({"deliver_at_ms": ms, "offset": offset} for offset, ms in [(2, 50), (3, 60), (4, 7_000)])
    # The requests come from two input partitions.
    frames = frames_of(state, ids_asked(1, 9), arrivals, ids_asked(2, 9), key=7)
    assert [(row["offset"], row["deliver_at_ms"]) for row in rows_of(frames, TAKEN_OUT)] == [(1, 6_000), (2, 50)]
    assert [row["offset"] for row in rows_of(frames, DUE)] == [3]
    assert decode_chunk(state.get[0]).column("offset").to_pylist() == [0, 4]
    assert not rows_of(frames, ASKED)


def test_a_shard_passes_on_the_requests_that_it_gets_and_keeps_no_message_that_came_with_one() -> None:
    state = group_state(cutoff_ms=100, kept=encode_chunk(due_at(5_000)))
    arrivals = messages({"deliver_at_ms": 7_000, "topic": "in", "partition": 1, "offset": at} for at in (101, 102, 103))
    cancel, *others = requests_for(1, 2, 3).to_pylist()
    requests = pa.Table.from_pylist([cancel, *(row | {"condition": ALWAYS} for row in others)], schema=REQUEST_SCHEMA)
    frames = frames_of(state, arrivals, requests.slice(0, 1), requests.slice(1), key=7)
    assert rows_of(frames, ASKED) == requests.to_pylist()
    assert [row["offset"] for row in rows_of(frames, SEALED)] == [101, 102]
    assert decode_chunk(state.get[0]).column("offset").to_pylist() == [0, 103]
    assert not rows_of(frames, TAKEN_OUT)


def test_what_shall_be_due_at_once_leaves_the_bucket_and_is_due_or_sealed_until_that_is_decided() -> None:
    state = group_state(cutoff_ms=100, kept=encode_chunk(due_at(5_000, 6_000, 80)))
    arrivals = messages({"deliver_at_ms": ms, "offset": offset} for offset, ms in [(3, 60), (4, 7_000), (5, 7_100)])
    # Message 4 has a cancel request as well, and message 0 has only a cancel request.
    frames = frames_of(state, arrivals, ids_asked(0, 4), ids_asked(1, 3, 4, undecided=True), key=7)
    taken_out = {row["offset"]: row["deliver_at_ms"] for row in rows_of(frames, TAKEN_OUT)}
    assert taken_out == {0: 5_000, 1: 6_000, 3: 60, 4: 7_000}
    assert [row["offset"] for row in rows_of(frames, DUE)] == [3, 2]
    assert [row["offset"] for row in rows_of(frames, SEALED)] == [1, 4]
    assert decode_chunk(state.get[0]).column("offset").to_pylist() == [5]


def test_dead_letters_and_asks_are_not_cancelled() -> None:
    arrivals = messages(
        [
            {"deliver_at_ms": 50, "offset": 1, "error_code": "bad-deliver-at", "error_text": "bad"},
            {"deliver_at_ms": 50, "offset": 2, "kind": REQUEST, "key": b"in/0/7"},
        ]
    )
    (frame,) = frames_of(group_state(cutoff_ms=100), arrivals, ids_asked(1, 2), key=7)
    assert frame[frame["kind"] == DUE]["count"].tolist() == [2]
