"""Messages that were overdue for long, and an output topic that deletes old records."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from sinks.release.wall_clock import now_ms
from streaming.local.broker import EmbeddedBroker
from tests.eventually import assert_eventually
from tests.messages import messages
from tests.quick_java import quick_broker
from tests.sinks.release.conftest import MakeBench
from tests.sinks.release.topic_records import create_topics, values

_HOUR_MS = 3_600_000
_ALWAYS_CHECKING = {"log.retention.check.interval.ms": "100", "log.initial.task.delay.ms": "0"}


@pytest.fixture(scope="module")
def tidy(java: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker that at once deletes records that are too old."""
    with quick_broker(tmp_path_factory.mktemp("tidy"), properties=_ALWAYS_CHECKING, heap="512m") as running:
        yield running


def _wait_for_a_check(broker: EmbeddedBroker, topic: str, old_ms: int) -> None:
    """Write a record of `old_ms` (epoch ms) to `topic`, and wait until the broker has deleted it."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, b"old", timestamp=old_ms)
    assert producer.flush(30) == 0
    reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "test"})

    def is_empty() -> bool:
        low, high = reader.get_watermark_offsets(TopicPartition(topic, 0), 10)
        return bool(low == high)

    assert_eventually(is_empty, 60, "the deletion of an old record")
    reader.close()


def test_what_was_overdue_for_longer_than_the_topics_retention_is_not_deleted(
    tidy: EmbeddedBroker, make_bench: MakeBench
) -> None:
    bench = make_bench(tidy)
    output, other = (f"{bench.settings.application_id}-{name}" for name in ("kept", "other"))
    create_topics(tidy, *(NewTopic(name, 1, 1, config={"retention.ms": str(_HOUR_MS)}) for name in (output, other)))
    old_ms = now_ms() - 2 * _HOUR_MS
    due = messages(
        {"output_topic": output, "offset": n, "deliver_at_ms": old_ms + n, "value": b"%d" % n} for n in range(100)
    )
    assert bench.release(due) == 100
    # After the second one, a whole check of all topics has begun and ended.
    for _ in range(2):
        _wait_for_a_check(tidy, other, old_ms)
    records = bench.read(output)
    assert values(records) == [*range(100)]
    assert {dict(record.headers() or [])["delayline-deliver-at"] for record in records} == {
        b"%d" % (old_ms + n) for n in range(100)
    }
