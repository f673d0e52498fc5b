"""Markers of a new checkpoint, written to a real broker."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from confluent_kafka import Producer

import sinks.internal_topics.progress
from conf.errors import ApplicationHeld
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.internal_topics.progress import announce_origin, marker_key, read_progress
from sinks.topics.topics import ensure_topics
from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.progress import BatchSpan, Progress
from tests.conftest import MakeSettings
from tests.eventually import assert_eventually


def test_a_new_checkpoint_counts_on_from_what_each_shard_has_staged(make_settings: MakeSettings) -> None:
    settings = make_settings("bucket.shards=3")
    ensure_topics(settings)
    first, second = CheckpointOrigin("a", 1, 2), CheckpointOrigin("b", 2, 3)
    announce_origin(settings, first)
    # A commit is done before it is seen in all partitions.
    assert_eventually(lambda: _markers(settings) == [Progress(BatchSpan(first)), Progress(BatchSpan(first)), None], 60)
    producer = Producer(librdkafka_options(settings.kafka))
    last = Progress(BatchSpan(first, 7), 5, staged=90)
    producer.produce(settings.progress_topic, last.to_bytes(), marker_key(1), 1)
    assert producer.flush(30) == 0
    announce_origin(settings, second)
    expected = [Progress(BatchSpan(second), staged=count) for count in (0, 90, 0)]
    assert_eventually(lambda: _markers(settings) == expected, 60)


def test_a_limit_of_the_client_stops_no_marker(make_settings: MakeSettings) -> None:
    settings = make_settings("bucket.shards=3", "kafka.message.max.bytes=1000")
    ensure_topics(settings)
    origin = CheckpointOrigin("a", 1, 3, offsets={"in": {str(number): 10**12 for number in range(200)}})
    announce_origin(settings, origin)
    assert_eventually(lambda: _markers(settings) == [Progress(BatchSpan(origin))] * 3, 60)


class Client:
    """Stands for the producer, and for what is read: it notes the calls. `held` is whether the lease is held."""

    def __init__(self, held: bool = True) -> None:
        self.held = held
        self.calls: list[str] = []

    def check(self) -> None:
        self.calls.append("check")
        if not self.held:
            raise ApplicationHeld("another process holds the lease")

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.calls.append(name)


@pytest.mark.parametrize("held", [True, False])
def test_an_announcement_asks_for_the_lease_and_for_the_markers_once_no_other_can_write_unseen(
    monkeypatch: pytest.MonkeyPatch, held: bool
) -> None:
    client = Client(held)
    monkeypatch.setattr(sinks.internal_topics.progress, "Producer", lambda *_, **__: client)
    monkeypatch.setattr(sinks.internal_topics.progress, "read_progress", client.read)
    with nullcontext() if held else pytest.raises(ApplicationHeld):
        announce_origin(Settings(), CheckpointOrigin("late", 2, 1), client.check)
    written = ["read", "begin_transaction", "produce", "commit_transaction"] if held else []
    assert client.calls == ["init_transactions", "check", *written]


def test_markers_stay_if_the_lease_was_taken_while_the_process_hung(make_settings: MakeSettings) -> None:
    settings = make_settings("bucket.shards=1")
    ensure_topics(settings)
    announce_origin(settings, CheckpointOrigin("newer", 2, 1))
    with pytest.raises(ApplicationHeld):
        announce_origin(settings, CheckpointOrigin("late", 2, 1), Client(held=False).check)
    options = librdkafka_options(settings.kafka)
    assert read_progress(options, settings.progress_topic, 0) == Progress(BatchSpan(CheckpointOrigin("newer", 2, 1)))


def _markers(settings: Settings) -> list[Progress | None]:
    return [read_progress(librdkafka_options(settings.kafka), settings.progress_topic, shard) for shard in range(3)]
