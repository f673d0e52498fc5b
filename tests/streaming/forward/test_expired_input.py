"""Records that forwarders took before they were deleted, as a start of the job sees them that has not read them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from conf.errors import RecordsExpired
from sinks.topics.topic_ids import input_ids
from state.checkpoint.origin import CheckpointOrigin, Offsets
from streaming.job.unfinished_batch import check_input
from tests.eventually import assert_eventually
from tests.streaming.forward.bench import ForwardBench


def test_a_start_does_not_count_records_as_lost_that_forwarders_have_taken(bench: ForwardBench) -> None:
    bench.open_lanes()
    with bench.forwarder():
        bench.publish(6)
        bench.publish(3, headers=[("deliver-after", b"2h")])
        bench.publish(4, 1)
        assert_eventually(lambda: bench.decided(p0=9, p1=4))
    client = AdminClient({"bootstrap.servers": bench.broker.bootstrap})
    for answer in client.delete_records([TopicPartition(bench.input, each, -1) for each in (0, 1)]).values():
        answer.result()

    def lost(read: Offsets) -> str:
        """Return the error of a start that has read so far."""
        ids = {topic: [own] for topic, own in input_ids(bench.settings).items()}
        checkpoint = SimpleNamespace(
            origin=CheckpointOrigin("c", 1, 2), read_offsets=lambda: read, last_planned=lambda: None
        )
        history = SimpleNamespace(newest=SimpleNamespace(input_ids=ids))
        state: Any = SimpleNamespace(checkpoint=checkpoint, store=None, settings_history=history, unread=set())
        with pytest.raises(RecordsExpired) as raised:
            check_input(bench.settings, state)
        return str(raised.value)

    error = lost({bench.input: {"0": 2, "1": 0}})
    assert f"{bench.input}/0: offsets 2 to 8 (7 in all, of which forwarders have taken 4)" in error
    assert f"{bench.input}/1: offsets 0 to 3 (4 in all, of which forwarders have taken 4)" in error
    assert "Those that forwarders have taken are delivered." in error
    assert "so nothing is lost" in lost({bench.input: {"0": 9, "1": 1}})
