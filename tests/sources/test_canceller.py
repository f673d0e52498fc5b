"""Asking for cancels, with a real broker. The test writes the answers that a job would give."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka.partitioner.default import murmur2
from typer.testing import CliRunner

from conf.errors import TopicMissing, UsageError
from conf.settings import Settings
from sources.canceller import Answer, Canceller
from state.cancel import CANCEL_HEADER, NOTHING, Ask, Result, answer
from state.message import ID_HEADER
from state.message_ids import parse_id
from state.names import CANCEL_NAME_HEADER
from streaming.cli.app import app
from streaming.local.broker import EmbeddedBroker
from tests.conftest import MakeSettings, MakeTopic

PATIENCE_MS = 20_000


@pytest.fixture
def settings(make_settings: MakeSettings, make_topic: MakeTopic) -> Settings:
    """Settings with an input topic of three partitions and a results topic, which exist."""
    return make_settings(f"topics.input={make_topic(3)}", f"topics.results={make_topic(2)}")


def asks(broker: EmbeddedBroker, topic: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield id and headers of each record of a topic with three partitions."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic, "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(3)])
    ends = 0
    while ends < 3:
        message = consumer.poll(10)
        assert message is not None
        if message.error():
            ends += 1
        else:
            yield f"{topic}/{message.partition()}/{message.offset()}", dict(message.headers() or [])
    consumer.close()


def write_answer(broker: EmbeddedBroker, settings: Settings, ask: str, asked: str, result: Result) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    why = None if result == "cancelled" else "so it is"
    value = answer(Ask(parse_id(ask), NOTHING if asked == "/-1/-1" else parse_id(asked)), result, why)
    producer.produce(settings.results_topic, value, asked.encode(), headers=[(ID_HEADER, ask.encode())])
    producer.flush()


def test_an_ask_goes_to_the_partition_of_its_message_and_answers_come_back_to_who_asked(
    settings: Settings, broker: EmbeddedBroker
) -> None:
    (topic,) = settings.topics.input
    wanted = [f"{topic}/{number}/{number + 40}" for number in range(3)]
    write_answer(broker, settings, f"{topic}/0/0", f"{topic}/0/40", "too-late")
    with Canceller(settings) as canceller:
        canceller.ask([*wanted, wanted[0]], [("trace", b"7")])
        found = list(asks(broker, topic))
        assert sorted(str((headers[CANCEL_HEADER] or b"").decode()) for _, headers in found) == sorted(
            [*wanted, wanted[0]]
        )
        assert {headers["trace"] for _, headers in found} == {b"7"}
        for ask, headers in found:
            asked = (headers[CANCEL_HEADER] or b"").decode()
            assert ask.rsplit("/", 1)[0] == asked.rsplit("/", 1)[0]
            if asked != wanted[2]:
                write_answer(broker, settings, ask, asked, "cancelled" if asked == wanted[0] else "unknown")
        write_answer(broker, settings, f"{topic}/0/999", wanted[2], "cancelled")
        came = list(canceller.answers(3_000))
        assert canceller.unanswered == [wanted[2]], "the answer to somebody else's ask is not ours"
    assert sorted(came, key=str) == sorted(
        [
            Answer(wanted[0], "cancelled", None),
            Answer(wanted[0], "cancelled", None),
            Answer(wanted[1], "unknown", "so it is"),
        ],
        key=str,
    )


def test_ids_that_name_no_input_record_are_refused_and_nothing_is_published(
    settings: Settings, broker: EmbeddedBroker
) -> None:
    (topic,) = settings.topics.input
    with Canceller(settings) as canceller:
        for wrong, why in [
            ("x", "a message id is"),
            ("other/0/1", "is not in topics.input"),
            (f"{topic}/0/-1", "id is"),
        ]:
            with pytest.raises(UsageError, match=why):
                canceller.ask([f"{topic}/0/1", wrong])
        assert list(canceller.answers(PATIENCE_MS)) == []
    assert list(asks(broker, topic)) == []


def test_an_ask_by_a_name_goes_where_its_messages_go_and_its_answer_has_their_id(
    settings: Settings, broker: EmbeddedBroker
) -> None:
    (topic,) = settings.topics.input
    with Canceller(settings) as canceller:
        with pytest.raises(UsageError, match=r"not in topics\.input"):
            canceller.ask_by_name(["call"], "other")
        canceller.ask_by_name(["call", "nobody"], topic, [("trace", b"7")])
        found = {headers[CANCEL_NAME_HEADER]: (ask, headers["trace"]) for ask, headers in asks(broker, topic)}
        assert {name: trace for name, (_, trace) in found.items()} == {b"call": b"7", b"nobody": b"7"}
        # As Kafka's own default partitioner chooses.
        places = [int(found[name][0].split("/")[1]) for name in (b"call", b"nobody")]
        assert places == [(murmur2(name) & 0x7FFFFFFF) % 3 for name in (b"call", b"nobody")]
        write_answer(broker, settings, found[b"call"][0], f"{topic}/0/5", "cancelled")
        write_answer(broker, settings, found[b"nobody"][0], "/-1/-1", "unknown")
        came = sorted(canceller.answers(PATIENCE_MS), key=str)
        assert canceller.unanswered == []
    assert came == [
        Answer(f"{topic}/0/5", "cancelled", None, name="call"),
        Answer(None, "unknown", "so it is", name="nobody"),
    ]


def test_without_a_results_topic_nothing_is_asked(make_settings: MakeSettings, make_topic: MakeTopic) -> None:
    with pytest.raises(TopicMissing, match="topics create"):
        Canceller(make_settings(f"topics.input={make_topic()}", "topics.results=no-such-topic"))


@pytest.mark.parametrize("output_format", ["table", "json"])
def test_the_command_ends_with_1_if_no_answer_comes(settings: Settings, output_format: str) -> None:
    (topic,) = settings.topics.input
    options = [f"kafka.bootstrap_servers={settings.kafka.bootstrap_servers}", f"topics.input={topic}"]
    options.append(f"topics.results={settings.results_topic}")
    sets = [part for option in options for part in ("--set", option)]
    run = CliRunner().invoke(app, ["cancel", "--timeout", "200ms", "--format", output_format, f"{topic}/0/5", *sets])
    assert run.exit_code == 1
    assert "no answer to 1 of 1 within 200ms" in run.output
    assert CliRunner().invoke(app, ["cancel", *sets], input="\n").exit_code == 2
    assert CliRunner().invoke(app, ["cancel", "--topic", topic, f"{topic}/0/5", *sets]).exit_code == 2
