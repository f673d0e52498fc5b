from __future__ import annotations

import pytest

from state.checkpoint.planned_batch import PlannedBatch
from streaming.job.watches.outage_watch import OutageWatch


class Query:
    """A query with its current activity, and a clock."""

    doing = "Processing new data"
    now_s = 100.0

    def watch(self) -> OutageWatch:
        return OutageWatch(lambda: self.doing, lambda: self.now_s)


_PROCESSING = "Processing new data"
_ASKING = "Getting offsets from KafkaV2[Subscribe[in]]"


def test_a_warning_every_five_seconds_while_kafka_returns_no_offsets(caplog: pytest.LogCaptureFixture) -> None:
    query = Query()
    watch = query.watch()
    assert not watch.check(_batch(7))
    query.doing = _ASKING
    for _ in range(26):
        query.now_s += 1
        assert watch.check(_batch(7)) == (query.now_s >= 106)
    assert [record.getMessage() for record in caplog.records] == [
        f"Kafka does not answer: the input offsets cannot be read for {seconds} s, and no batch begins"
        for seconds in (5, 10, 15, 20, 25)
    ]
    assert not watch.check(_batch(8))


def test_a_long_batch_and_successive_batches_are_no_outage(caplog: pytest.LogCaptureFixture) -> None:
    query = Query()
    watch = query.watch()
    for batch_id in (7, 7, 8, 9):
        query.now_s += 4
        query.doing = _PROCESSING if batch_id == 7 else _ASKING
        assert not watch.check(_batch(batch_id))
    assert not caplog.records


def test_the_time_that_a_batch_took_and_waited_for_arrivals_is_no_outage(caplog: pytest.LogCaptureFixture) -> None:
    query = Query()
    watch = query.watch()
    for doing in (_PROCESSING, _ASKING, _PROCESSING, _ASKING):
        query.doing = doing
        for _ in range(4):
            query.now_s += 1
            assert not watch.check(_batch(7))
        # Asking goes on for less than five seconds each time, and processing for as long as it likes.
        query.now_s += 3_600 * (doing == _PROCESSING)
    assert not caplog.records


def _batch(batch_id: int) -> PlannedBatch:
    return PlannedBatch(batch_id, 0, 0, {})
