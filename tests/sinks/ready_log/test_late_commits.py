"""A commit request that the client has repeated reaches the broker late, when the next batch is staged."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from sinks.ready_log.stage import stage
from sinks.ready_log.writer import StagingPlan
from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.progress import BatchSpan
from streaming.local.broker import EmbeddedBroker
from tests.frame_proxy import FENCED, FrameProxy
from tests.messages import messages
from tests.sinks.ready_log.conftest import Marker, Ready


@pytest.fixture
def broker(proxied: EmbeddedBroker) -> EmbeddedBroker:
    """The broker of all fixtures here."""
    return proxied


@pytest.fixture
def plan(proxied: EmbeddedBroker) -> StagingPlan:
    """A batch of a new application."""
    name = f"app-{uuid.uuid4().hex[:8]}"
    topics = [NewTopic(f"{name}-{role}", 1, 1) for role in ("progress", "ready", "lease")]
    topics = [NewTopic(f"{name}-{role}", 1, 1) for role in ("progress", "ready", "lease")]
    client = AdminClient({"bootstrap.servers": proxied.bootstrap})
    for future in client.create_topics(topics).values():
        future.result()
    return StagingPlan(
        application_id=name,
        batch=BatchSpan(CheckpointOrigin("c", 1, 1), 0),
        clock_ms=0,
        progress_topic=f"{name}-progress",
        ready_topic=f"{name}-ready",
        lease_topic=f"{name}-lease",
        fencing_token=1,
        transaction_timeout_ms=10_000,
        outage_limit_ms=60_000,
        tolerates_input_loss=False,
        options={"bootstrap.servers": proxied.bootstrap, "log_level": "0"},
        # A message for each transaction.
        transaction_bytes=1_000,
    )


@pytest.mark.parametrize("in_one_batch", [True, False])
def test_a_commit_that_comes_late_hands_nothing_over_twice(
    plan: StagingPlan, proxy: FrameProxy, ready: Ready, marker: Marker, in_one_batch: bool
) -> None:
    sizes = [1, 3] if in_one_batch else [1, 1, 1, 1]
    first, last_writers = 0, dict[int, str]()
    for batch, count in enumerate(sizes):
        if batch == 1:
            proxy.hold()
        due = messages({"offset": n, "deliver_at_ms": n, "value": b"v" * 1_000} for n in range(first, first + count))
        own = replace(plan, batch=replace(plan.batch, batch_id=batch), last_writers=last_writers)
        done, last_writers[0] = stage(own, 0, iter([due]))
        assert done == count
        first += count
    assert ready(plan) == [0, 1, 2, 3]
    found = marker(plan)
    assert found is not None
    assert (found.messages, found.staged) == (sizes[-1], 4)
    assert proxy.answer in FENCED
