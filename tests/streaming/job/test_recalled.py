"""Reading back what release processes have cancelled, with a real broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from conf.settings import Settings
from sinks.release.recall import RECALLED
from sinks.topics.topics import ensure_topics
from state.cancel import Ask, answer
from state.message_ids import parse_id
from streaming.job.recalled import RecalledMessages
from streaming.local.broker import EmbeddedBroker
from tests.conftest import MakeSettings


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    made = make_settings()
    ensure_topics(made, 3)
    return made


@pytest.fixture
def reader(settings: Settings) -> Iterator[RecalledMessages]:
    made = RecalledMessages(settings)
    yield made
    made.close()


def write(broker: EmbeddedBroker, settings: Settings, *numbers: int, why: str | None = RECALLED) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in numbers:
        asked = f"in/0/{number}"
        value = answer(Ask(("in", 0, 99), parse_id(asked)), "cancelled", why)
        producer.produce(settings.results_topic, value, asked.encode())
    assert producer.flush(30) == 0


def read(reader: RecalledMessages) -> list[int]:
    return [offset for own in reader.read().values() for offset in own.tolist()]


def test_each_answer_of_a_release_process_is_read_once(
    broker: EmbeddedBroker, settings: Settings, reader: RecalledMessages
) -> None:
    assert read(reader) == []
    write(broker, settings, 3, 1, 2)
    write(broker, settings, 7, why=None)
    assert read(reader) == [1, 2, 3], "those of the job itself are known"
    assert read(reader) == []
    write(broker, settings, 4)
    assert read(reader) == [4]


def test_after_a_crash_what_the_last_batch_may_not_have_stored_is_read_again(
    broker: EmbeddedBroker, settings: Settings, reader: RecalledMessages
) -> None:
    write(broker, settings, 1)
    assert read(reader) == [1]
    write(broker, settings, 2)
    # Only with the next batch is it certain that the one before is complete.
    assert read(reader) == [2]
    other = RecalledMessages(settings)
    assert read(other) == [2]
    other.close()


def test_what_a_replay_could_not_store_is_read_again(
    broker: EmbeddedBroker, settings: Settings, reader: RecalledMessages
) -> None:
    write(broker, settings, 1)
    assert read(reader) == [1]
    reader.begin_again()
    assert read(reader) == [1]
    assert read(reader) == []
