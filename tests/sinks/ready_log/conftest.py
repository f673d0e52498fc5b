"""Fixtures for the tests of a shard's staging: a batch, and its messages in the ready log."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from sinks.internal_topics.progress import read_progress
from sinks.ready_log import stage
from sinks.ready_log.writer import StagingPlan
from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.progress import BatchSpan, Progress
from state.message import decode_chunk
from streaming.local.broker import EmbeddedBroker
from tests.conftest import MakeTopic
from tests.sinks.committed_records import committed

Ready = Callable[[StagingPlan], list[int]]
Marker = Callable[..., Progress | None]


@pytest.fixture
def plan(broker: EmbeddedBroker, make_topic: MakeTopic) -> StagingPlan:
    """A batch of a new application."""
    return StagingPlan(
        application_id=f"app-{uuid.uuid4().hex[:8]}",
        batch=BatchSpan(CheckpointOrigin("c", 1, 1), 7),
        clock_ms=1_000,
        progress_topic=make_topic(**{"cleanup.policy": "compact"}),
        ready_topic=make_topic(),
        lease_topic=make_topic(**{"cleanup.policy": "compact"}),
        fencing_token=1,
        transaction_timeout_ms=10_000,
        outage_limit_ms=60_000,
        tolerates_input_loss=False,
        options={"bootstrap.servers": broker.bootstrap},
    )


@pytest.fixture(autouse=True)
def _no_open_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    # Otherwise its producers would outlive the broker and keep looking for it.
    monkeypatch.setattr(stage, "_open_writers", {})


@pytest.fixture
def ready(broker: EmbeddedBroker) -> Ready:
    """A function that returns the due times of the committed messages, in the order of the ready log."""

    def due_times(plan: StagingPlan) -> list[int]:
        chunks = [decode_chunk(record.value() or b"") for record in committed(broker, plan.ready_topic)]
        return [due for chunk in chunks for due in chunk.column("deliver_at_ms").to_pylist()]

    return due_times


@pytest.fixture
def marker(broker: EmbeddedBroker) -> Marker:
    """A function that returns the marker of a shard, by default the first one."""

    def newest(plan: StagingPlan, shard: int = 0) -> Progress | None:
        # A commit is done before it is seen in all partitions.
        committed(broker, plan.progress_topic)
        return read_progress(plan.options, plan.progress_topic, shard)

    return newest
