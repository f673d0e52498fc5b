"""Output topics that others write to too, or with timestamps set by their brokers, as docs/subscribe.md has them."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from state.order import in_order
from streaming.local.broker import EmbeddedBroker
from tests.eventually import assert_eventually
from tests.messages import messages
from tests.sinks.release.bench import ReleaseBench
from tests.sinks.release.topic_records import create_topics

LEAD_MS, SLICE_MS = 9_000, 20


def test_the_record_of_another_producer_waits_for_the_message_that_was_written_before_it(
    bench: ReleaseBench, broker: EmbeddedBroker
) -> None:
    topic = f"{bench.settings.application_id}-shared"
    create_topics(broker, NewTopic(topic, 1, 1, config={"message.timestamp.type": "LogAppendTime"}))
    bench.change(f"topics.output={topic}", f"release.lead={LEAD_MS}ms", f"release.slice={SLICE_MS}ms")
    due_ms = time.time_ns() // 1_000_000 + 6_000
    bench.stage(in_order(messages([{"output_topic": topic, "deliver_at_ms": due_ms}])))
    release = bench.start()
    reader = Consumer({**bench.options, "group.id": "test", "isolation.level": "read_uncommitted"})
    place = TopicPartition(topic, 0, 0)
    assert_eventually(lambda: reader.get_watermark_offsets(place, 10)[1] == 1, 60, "the message, ahead of time")
    reader.close()
    producer = Producer(bench.options)
    producer.produce(topic, b"of another application")
    assert producer.flush(60) == 0
    committed = Consumer({**bench.options, "group.id": "test", "isolation.level": "read_committed"})
    committed.assign([place])
    message, other = committed.consume(1, 60)[0], committed.consume(1, 60)[0]
    received_ms = time.time_ns() // 1_000_000
    committed.close()
    bench.stop(release)
    assert other.value() == b"of another application"
    assert received_ms >= due_ms
    assert dict(message.headers() or [])["delayline-deliver-at"] == b"%d" % due_ms
    assert message.timestamp()[1] >= due_ms - LEAD_MS - SLICE_MS
