"""A commit request that the client has repeated reaches the broker late, when the lane's next claim is written."""

from __future__ import annotations

import uuid

from conf.kafka.options import librdkafka_options
from conf.load import load_settings
from sinks.lanes.writer import LaneWriter
from sinks.topics.topics import ensure_topics
from state.claims import Claim
from state.message import decode_chunk
from streaming.local.broker import EmbeddedBroker
from tests.frame_proxy import FENCED, FrameProxy
from tests.messages import messages
from tests.sinks.committed_records import committed
from tests.sinks.lanes.conftest import claim


def test_a_commit_that_comes_late_does_not_end_the_next_transaction(proxied: EmbeddedBroker, proxy: FrameProxy) -> None:
    own = [f"application_id=app-{uuid.uuid4().hex[:8]}", f"kafka.bootstrap_servers={proxied.bootstrap}"]
    settings = load_settings(None, [*own, "bucket.shards=1", "monitor.job="], environ={})
    ensure_topics(settings)
    options = librdkafka_options(settings.kafka)
    writer = LaneWriter(settings, options, 0)
    written: list[Claim] = []
    for position in range(1, 5):
        if position == 2:
            proxy.hold()
        if writer.is_spent:
            writer.close()
            writer = LaneWriter(settings, options, 0)
            assert writer.claim == written[-1]
        taken = messages([{"offset": position - 1, "deliver_at_ms": position}])
        written.append(claim(writer.claim, position, position - 1))
        writer.write(written[-1], {0: [taken]})
        if position == 2:
            assert writer.is_spent
    assert proxy.answer in FENCED
    assert [Claim.from_bytes(record.value() or b"") for record in committed(proxied, settings.claims_topic)] == written
    near = [decode_chunk(record.value() or b"") for record in committed(proxied, settings.near_topic)]
    assert [each.column("deliver_at_ms").to_pylist() for each in near] == [[1], [2], [3], [4]]
