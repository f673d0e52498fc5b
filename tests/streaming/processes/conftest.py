"""Fixtures for the tests of release processes: an application, and messages that its job has staged."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient

from conf.failpoints import ROOT_VARIABLE
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.ready_log.stage import stage
from sinks.ready_log.writer import StagingPlan
from sinks.release.process import ReleaseProcess
from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.progress import BatchSpan
from streaming.local.broker import EmbeddedBroker
from tests.messages import messages
from tests.sinks.committed_records import committed

Stage = Callable[..., None]
Released = Callable[[], list[int]]


def delete_records(settings: Settings, topic: str, shard: int, end: int = OFFSET_END) -> int:
    """Delete the records of a shard's partition below `end`, and return the offset from which on there are any."""
    partition = TopicPartition(topic, shard, end)
    admin = AdminClient({"bootstrap.servers": settings.kafka.bootstrap_servers})
    return int(admin.delete_records([partition])[partition].result().low_watermark)


@contextmanager
def releasing(settings: Settings) -> Iterator[ReleaseProcess]:
    """Run a release process in a thread. Raises its error."""
    errors: list[BaseException] = []
    process, stop = ReleaseProcess(settings, "north"), threading.Event()

    def run() -> None:
        try:
            process.run(lambda _: stop.is_set())
        except BaseException as error:  # noqa: BLE001, it is raised below
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield process
    finally:
        stop.set()
        thread.join(60)
    assert not errors, errors


@pytest.fixture
def staged(prepared: Settings, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A function that stages a batch of messages with these due times (epoch ms): `staged(1, 2, shard=1)`.

    `more` are columns of these messages.
    """
    monkeypatch.setattr("sinks.ready_log.stage._open_writers", {})
    batches = 0

    def write(*dues: int, shard: int = 0, **more: Any) -> None:
        nonlocal batches
        batches += 1
        plan = StagingPlan(
            application_id=prepared.application_id,
            batch=BatchSpan(CheckpointOrigin("c", 1, 2), batches),
            clock_ms=0,
            progress_topic=prepared.progress_topic,
            ready_topic=prepared.ready_topic,
            lease_topic=prepared.lease_topic,
            fencing_token=1,
            transaction_timeout_ms=10_000,
            outage_limit_ms=60_000,
            tolerates_input_loss=False,
            options=librdkafka_options(prepared.kafka),
        )
        rows = (
            {"offset": 1_000 * batches + n, "deliver_at_ms": due, "output_topic": prepared.topics.output, **more}
            for n, due in enumerate(dues)
        )
        stage(plan, shard, iter([messages(rows)]))

    return write


@pytest.fixture
def released(prepared: Settings, broker: EmbeddedBroker) -> Released:
    """A function that returns the due times of the released messages, in the order of the output topic."""

    def due_times() -> list[int]:
        records = committed(broker, prepared.topics.output)
        return [int(dict(record.headers() or [])["delayline-deliver-at"] or b"") for record in records]

    return due_times


@pytest.fixture(autouse=True)
def _failpoint_root(monkeypatch: pytest.MonkeyPatch) -> None:
    # Otherwise the first test would leave it to all others.
    monkeypatch.setenv(ROOT_VARIABLE, str(os.getpid()))
