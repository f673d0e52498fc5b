from __future__ import annotations

import pytest

from streaming.checkpoint.checkpoint import PlannedBatch
from streaming.job.outage_watch import OutageWatch


class Query:
    """What a query is doing, and a clock."""

    doing = "Processing new data"
    now_s = 100.0

    def watch(self) -> OutageWatch:
        return OutageWatch(lambda: self.doing, lambda: self.now_s)


def test_a_warning_every_five_seconds_while_kafka_returns_no_offsets(caplog: pytest.LogCaptureFixture) -> None:
    query = Query()
    watch = query.watch()
    assert not watch.check(_batch(7))
    query.doing = "Getting offsets from KafkaV2[Subscribe[in]]"
    for _ in range(25):
        query.now_s += 1
        assert watch.check(_batch(7)) == (query.now_s >= 105)
    assert [record.getMessage().split(",")[0] for record in caplog.records] == [
        f"Kafka does not answer: no batch for {seconds} s" for seconds in (5, 10, 15, 20, 25)
    ]
    assert not watch.check(_batch(8))


def test_a_long_batch_and_successive_batches_are_no_outage(caplog: pytest.LogCaptureFixture) -> None:
    query = Query()
    watch = query.watch()
    for batch_id in (7, 7, 8, 9):
        query.now_s += 4
        query.doing = "Processing new data" if batch_id == 7 else "Getting offsets from KafkaV2[Subscribe[in]]"
        assert not watch.check(_batch(batch_id))
    assert not caplog.records


def _batch(batch_id: int) -> PlannedBatch:
    return PlannedBatch(batch_id, 0, 0, {})
