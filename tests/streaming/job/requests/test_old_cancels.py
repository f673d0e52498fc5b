"""Cancelled messages with records still in their input topic, with a real broker, a real table, and maintenance."""

from __future__ import annotations

import json
import time
from contextlib import closing

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from conf.setting_types import DAY, HOUR, MINUTE
from conf.settings import Settings
from sinks.topics.topics import ensure_topics
from state.answers import OLD_MS, Undecided
from state.buckets.cancelled import NEVER_MS, cancelled_rows
from state.buckets.catalog import SegmentCatalog
from state.buckets.parts import IdRows
from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.progress import BatchSpan, Progress
from state.kinds import REQUEST
from streaming.job.requests.decision import Decision
from streaming.job.requests.desk import RequestDesk
from streaming.local.broker import EmbeddedBroker
from streaming.maintenance.maintenance import Maintenance, TableContents
from streaming.maintenance.merge_plan import MergeRules
from tests.conftest import MakeSettings
from tests.messages import cancelled, some_batch_settings
from tests.streaming.job.requests.desk_bench import ASKED_SCHEMA, asked_rows, output_of
from tests.streaming.job.requests.spark_table import SparkTable
from tests.streaming.sealed import cancelled_in, seal_messages

NOW_MS = time.time_ns() // 1_000_000
BATCH_SETTINGS = some_batch_settings(segment_max_messages=4)
# Below this offset, records are older than `cancels.known_for`.
OLD, READ = 6, 9


@pytest.fixture
def settings(make_settings: MakeSettings, broker: EmbeddedBroker) -> Settings:
    made = make_settings("cancels.known_for=2d")
    ensure_topics(made, 1)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for offset in range(READ):
        stamp_ms = NOW_MS - (3 * DAY if offset < OLD else MINUTE)
        producer.produce(made.topics.input[0], b"x", partition=0, timestamp=stamp_ms)
    assert producer.flush(30) == 0
    return made


def span(settings: Settings, batch_id: int) -> BatchSpan:
    """The batch that decides. Messages that were due before it are staged."""
    ends = {settings.topics.input[0]: {"0": READ}}
    return BatchSpan(CheckpointOrigin("c", 1, 2), batch_id, NOW_MS, NOW_MS + MINUTE, ends, ends)


def results(desk: RequestDesk, store: SparkTable, settings: Settings, batch_id: int) -> dict[int, str | int]:
    """Return the outcome of a request for each message: the result, or how the release processes learn of it."""
    requests = [
        dict.fromkeys(ASKED_SCHEMA.names)
        | {"topic": settings.topics.input[0], "partition": 0, "offset": offset}
        | {"request_topic": "asks", "request_partition": 0, "request_offset": offset, "delivers": False}
        for offset in range(READ)
    ]
    frame, rows = output_of(store, asked_rows(pa.Table.from_pylist(requests, schema=ASKED_SCHEMA)))
    decision = desk.decide(frame, rows, span(settings, batch_id), NOW_MS)
    by_request = zip(*(decision.answers.column(name).to_pylist() for name in ("offset", "value", "kind")), strict=True)
    return {
        offset: min(Undecided.from_bytes(value).asked_ms, 1) if kind == REQUEST else json.loads(value)["result"]
        for offset, value, kind in by_request
    }


def test_a_cancelled_message_is_forgotten_by_age_and_never_called_too_late_afterwards(
    spark_table: SparkTable, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, topic = spark_table, settings.topics.input[0]
    past_ms, far_ms = NOW_MS - 5 * HOUR, NOW_MS + 90 * DAY
    # Messages by their offsets. Old ones: 0 and 1 were due hours ago, 2 would not be due yet, 3 waits, and 4 and 5 were
    # staged. Other ones: 6 was due hours ago, and 7 and 8 were staged.
    seal_messages(store, 3, [{"topic": topic, "offset": 3, "deliver_at_ms": far_ms}], BATCH_SETTINGS)
    gone = {4: [(0, past_ms, past_ms)], 5: [(1, NEVER_MS, past_ms), (2, NEVER_MS, far_ms)], 6: [(6, past_ms, past_ms)]}
    for bucket, rows in gone.items():
        table = cancelled((topic, 0, *row) for row in rows)
        store.append(store.spark.createDataFrame(cancelled_rows(table, bucket)), "checkpoint", bucket)
    markers: list[Progress | None] = [Progress(span(settings, batch_id=9))] * 2
    monkeypatch.setattr("streaming.job.requests.desk.read_markers", lambda _: markers)
    # A message that waits is cancelled, and other old ones that do not wait may have been.
    before = dict.fromkeys((0, 1, 2, 3, 6), "cancelled") | {4: OLD_MS, 5: OLD_MS, 7: 1, 8: 1}
    after = before | {0: OLD_MS, 1: OLD_MS}
    with closing(RequestDesk(store, settings, forget_every_s=-1.0)) as desk:
        assert results(desk, store, settings, 9) == before
        maintenance = Maintenance(
            store,
            SegmentCatalog([]),
            TableContents(id_rows={IdRows.CANCELLED: store.id_partitions(IdRows.CANCELLED)}),
            MergeRules(BATCH_SETTINGS, 1, 2),
            desk.forgettable,
        )
        for _ in range(4):
            maintenance.before_batch(6, NOW_MS)
            maintenance.wait(60)
        maintenance.close()
        assert cancelled_in(store)[topic, 0] == [2, 6]
        # This process forgets the ids in its own copy while the next batch runs.
        desk.stored(Decision(), span(settings, 9), NOW_MS)
        assert results(desk, store, settings, 10) == after
    with closing(RequestDesk(store, settings, forget_every_s=-1.0)) as desk:
        assert results(desk, store, settings, 11) == after, "after a restart"
