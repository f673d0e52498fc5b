"""Messages that waited in Kafka while no job ran must not be lost by falling below the watermark."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path
from random import Random

import numpy as np
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka.admin import KafkaAdminClient, OffsetSpec
from kafka.structs import TopicPartition as AdminPartition

from sources.subscriber import received
from tests.eventually import assert_eventually
from tests.system.conftest import Application, MakeService
from tests.system.load import publish_mixed


@pytest.mark.thorough
@pytest.mark.takes(45)
@pytest.mark.parametrize("count", [200_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_a_large_backlog_is_delivered_completely(
    application: Application, make_service: MakeService, count: int
) -> None:
    service, ledger = make_service("bucket.max_messages=20000", "release.transaction_messages=50000")
    # So many messages are counted by their offsets instead.
    ledger.close()
    producer = Producer(
        {"bootstrap.servers": application.bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 2 * count}
    )
    for number in range(count):
        delay = b"%dms" % (number % 20_000)
        producer.produce(application.input, b"x" * 20, partition=number % 2, headers=[("deliver-after", delay)])
        if number % 10_000 == 0:
            producer.poll(0)
    assert producer.flush(60) == 0
    service.start()
    seen = _count_by_id(application, count, timeout_s=240)
    assert service.stop() == 0, service.log[-3000:]
    assert (seen == 1).all(), f"{(seen == 0).sum()} lost, {(seen > 1).sum()} doubled"


@pytest.mark.thorough
@pytest.mark.takes(110)
@pytest.mark.parametrize(
    ("count", "heap"), [(700, "640m"), pytest.param(3_000, "1g", marks=pytest.mark.soak)], ids=["700", "3000"]
)
def test_a_batch_of_large_messages_fits_into_a_small_heap_and_is_replayed(
    application: Application, make_service: MakeService, count: int, heap: str
) -> None:
    service, ledger = make_service(f"spark.spark.driver.memory={heap}", "bucket.max_messages=20000")
    # So many bytes are compared one by one instead.
    ledger.close()
    value = Random(1).randbytes(900_000)
    producer = Producer({"bootstrap.servers": application.bootstrap})
    for number in range(count):
        delay = (b"0s", b"%dms" % (40 * number), b"60s")[number % 3]
        producer.produce(application.input, value, partition=number % 2, headers=[("deliver-after", delay)])
        if number % 50 == 0:
            assert producer.flush(60) == 0
    assert producer.flush(60) == 0
    # A gigabyte of them is in the first batch at most, which is replayed after the kill.
    service.start("sealed=kill", wait=False)
    assert service.wait(400) == -signal.SIGKILL, service.log[-3000:]
    service.start()
    seen = _count_by_id(application, count, timeout_s=240, value=value)
    assert service.stop() == 0, service.log[-3000:]
    assert (seen == 1).all(), f"{(seen == 0).sum()} lost, {(seen > 1).sum()} doubled"


def _count_by_id(application: Application, count: int, timeout_s: float, value: bytes | None = None) -> np.ndarray:
    """Receive `count` messages, and return how often each message id of the two input partitions was received.

    Gives up when nothing arrives for `timeout_s`. Each message must have the `value`, if there is one.
    """
    consumer = Consumer(
        {"bootstrap.servers": application.bootstrap, "group.id": "counter", "isolation.level": "read_committed"}
    )
    consumer.assign([TopicPartition(application.output, number, 0) for number in range(2)])
    seen = np.zeros((2, count // 2), dtype=np.int64)
    count_seen, silent = 0, 0.0
    # Also one that comes after the last expected one.
    while silent < (timeout_s if count_seen < count else 5.0):
        messages = consumer.consume(50_000 if value is None else 50, 0.5)
        silent = 0.0 if messages else silent + 0.5
        for message in messages:
            assert message.error() is None, message.error()
            assert value is None or message.value() == value
            _, partition, offset = str(received(message, 0).id).rsplit("/", 2)
            seen[int(partition), int(offset)] += 1
        count_seen += len(messages)
    consumer.close()
    return seen


@pytest.mark.thorough
@pytest.mark.takes(70)
def test_a_job_that_was_down_for_an_hour_delivers_all_due_messages_at_the_configured_rate(
    application: Application, make_service: MakeService
) -> None:
    service, ledger = make_service()
    for number in range(400):
        # Not due before the job is stopped, however slow its start is.
        delay = 45_000 + 37 * number
        after = [("deliver-after", str(delay).encode())]
        key = str(number % 30).encode()
        ledger.publish(application.input, b"before", after, key=key, output=application.output, delay_ms=delay)
    ledger.flush()
    service.start()
    assert_eventually(lambda: _accepted(application) == len(ledger.sent), 60)
    assert service.stop() == 0, service.log[-3000:]
    assert not ledger.got, "a delivered message cannot be due after the aged clock"
    _age_checkpoint(application.checkpoint, 3_600_000)
    publish_mixed(ledger, application, 200, seed=2, longest_ms=3_000)
    service.overrides.append("release.messages_per_second=80")
    service.start()
    ledger.wait_for_all(150)
    ledger.verify()
    # Each shard has half of the rate, and one of them half of the messages or more.
    took_s = (ledger.got[-1].received_ms - ledger.got[0].received_ms) / 1000
    assert took_s > (len(ledger.got) / 2 - 40) / 40 - 1
    assert service.stop() == 0, service.log[-3000:]


@pytest.mark.thorough
@pytest.mark.takes(60)
def test_what_fell_due_in_an_outage_is_staged_by_several_batches_that_accept_new_messages(
    application: Application, make_service: MakeService
) -> None:
    service, ledger = make_service("window.max_bytes=2097152")
    # Not due before the job is stopped, however slow its start is. Each bucket keeps little of the 8 MB.
    for number in range(800):
        key, after = str(number % 30).encode(), [("deliver-after", str(60_000 + 10 * number).encode())]
        ledger.publish(
            application.input, b"x" * 10_000, after, key=key, output=application.output, delay_ms=60_000 + 10 * number
        )
    ledger.flush()
    all_due_s = time.time() + 70
    service.start()
    assert_eventually(lambda: _accepted(application) == len(ledger.sent), 60)
    assert service.stop() == 0, service.log[-3000:]
    assert not ledger.got, "something was due before the outage"
    _age_checkpoint(application.checkpoint, 3_600_000)
    assert_eventually(lambda: time.time() > all_due_s, 90)
    service.start()
    publish_mixed(ledger, application, 200, seed=2, longest_ms=3_000)
    ledger.wait_for_all(90)
    ledger.verify()
    loads = [int(count) for count in re.findall(r"loaded (\d+) sealed messages", service.log)]
    assert sum(loads) > 600
    assert max(loads) < 300
    assert service.stop() == 0, service.log[-3000:]


def _age_checkpoint(checkpoint: Path, by_ms: int) -> None:
    """Set the clock in the checkpoint's logs back, as if the job had stopped `by_ms` ago."""
    for entry in (checkpoint / "offsets").iterdir():
        if entry.name.isdigit():
            version, metadata_line, *rest = entry.read_text().split("\n")
            metadata = json.loads(metadata_line)
            metadata["batchTimestampMs"] -= by_ms
            metadata["batchWatermarkMs"] = max(0, metadata["batchWatermarkMs"] - by_ms)
            _rewrite(entry, "\n".join([version, json.dumps(metadata), *rest]))
    for entry in (checkpoint / "commits").iterdir():
        if entry.name.isdigit():
            version, metadata_line = entry.read_text().split("\n")
            metadata = json.loads(metadata_line)
            metadata["nextBatchWatermarkMs"] = max(0, metadata["nextBatchWatermarkMs"] - by_ms)
            _rewrite(entry, f"{version}\n{json.dumps(metadata)}")


def _rewrite(file: Path, text: str) -> None:
    file.write_text(text)
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


@pytest.mark.thorough
def test_messages_outlive_the_deletion_of_their_input_records(
    application: Application, make_service: MakeService, admin: KafkaAdminClient
) -> None:
    service, ledger = make_service()
    service.start()
    publish_mixed(ledger, application, 500, seed=7, longest_ms=25_000)
    ledger.wait_for(lambda: len(ledger.got) > 20, 60)
    # A received message went through the state, and so did all records before it in its partition.
    assert_eventually(lambda: _accepted(application) == len(ledger.sent), 60)
    assert len(ledger.got) < len(ledger.sent), "all messages were delivered before their records could be deleted"
    _delete_all(admin, application.input)
    service.kill()
    service.start()
    ledger.wait_for_all(60)
    ledger.verify()
    assert service.stop() == 0, service.log[-3000:]


def _accepted(application: Application) -> int:
    """Return how many input records the committed batches have accepted."""
    checkpoint = application.checkpoint
    entries = (checkpoint / "commits").glob("[0-9]*")
    committed = max((int(entry.name) for entry in entries), default=None)
    if committed is None:
        return 0
    sources = (checkpoint / "offsets" / str(committed)).read_text().splitlines()[2:]
    offsets = [json.loads(line).get(application.input, {}) for line in sources if line.startswith("{")]
    return sum(sum(by_partition.values()) for by_partition in offsets)


def _delete_all(admin: KafkaAdminClient, topic: str) -> None:
    partitions = [AdminPartition(topic, number) for number in range(2)]
    ends = admin.list_partition_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST))
    admin.delete_records({partition: ends[partition].offset for partition in partitions})
