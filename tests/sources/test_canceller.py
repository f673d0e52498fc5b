"""Requesting cancels, with a real broker. The test writes the answers that a job would give."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka.partitioner.default import murmur2
from typer.testing import CliRunner

from conf.errors import TopicMissing, UsageError
from conf.settings import Settings
from sources.canceller import Answer, Canceller, requests_for
from state.answers import Output
from state.cancel import CANCEL_HEADER, NOTHING
from state.message import ID_HEADER
from state.message_ids import parse_id
from state.names import CANCEL_NAME_HEADER
from state.reasons import Reason
from streaming.cli.app import app
from streaming.cli.options import answer_row
from streaming.local.broker import EmbeddedBroker
from tests.conftest import MakeSettings, MakeTopic
from tests.messages import answer_value
from tests.unreadable_headers import write_unreadable

PATIENCE_MS = 20_000
WITHDRAWN = Reason.WITHDRAWN


@pytest.fixture
def settings(make_settings: MakeSettings, make_topic: MakeTopic) -> Settings:
    """Settings with an input topic of three partitions and a results topic, which exist."""
    return make_settings(f"topics.input={make_topic(3)}", f"topics.results={make_topic(2)}")


def requests(broker: EmbeddedBroker, topic: str) -> Iterator[tuple[str, dict[str, Any]]]:
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


def write_answer(broker: EmbeddedBroker, settings: Settings, request: str, asked: str, reason: Reason) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    value = answer_value(NOTHING if asked == "/-1/-1" else parse_id(asked), reason)
    producer.produce(settings.results_topic, value, asked.encode(), headers=[(ID_HEADER, request.encode())])
    producer.flush()


def test_a_record_whose_headers_cannot_be_read_is_no_answer(settings: Settings, broker: EmbeddedBroker) -> None:
    (topic,) = settings.topics.input
    asked = f"{topic}/0/40"
    with Canceller(settings) as canceller:
        canceller.ask(requests_for(settings, [asked]))
        value = answer_value(parse_id(asked), Reason.RELEASED)
        request = f"{topic}/0/0"
        write_unreadable(broker.bootstrap, settings.results_topic, value, headers=[(ID_HEADER, request.encode())])
        write_answer(broker, settings, request, asked, WITHDRAWN)
        assert [each.result for each in canceller.answers(PATIENCE_MS)] == ["cancelled"]


def test_an_answer_says_where_the_message_went(settings: Settings, broker: EmbeddedBroker) -> None:
    (topic,) = settings.topics.input
    asked, request = f"{topic}/0/40", f"{topic}/0/0"
    with Canceller(settings) as canceller:
        canceller.ask(requests_for(settings, [asked]))
        output = Output("orders", 3, (120, 163))
        value = answer_value(parse_id(asked), Reason.RELEASED, output=output)
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce(settings.results_topic, value, asked.encode(), headers=[(ID_HEADER, request.encode())])
        producer.flush()
        (came,) = canceller.answers(PATIENCE_MS)
    assert came.output == {"topic": "orders", "partition": 3, "offsets": [120, 163]}


def test_an_answer_has_the_number_of_the_last_occurrence(settings: Settings, broker: EmbeddedBroker) -> None:
    (topic,) = settings.topics.input
    asked, request = f"{topic}/0/40", f"{topic}/0/0"
    with Canceller(settings) as canceller:
        canceller.ask(requests_for(settings, [asked]))
        value = json.dumps({"id": asked, "result": "cancelled", "reason": "withdrawn", "occurrence": 41})
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce(settings.results_topic, value, asked.encode(), headers=[(ID_HEADER, request.encode())])
        producer.flush()
        (came,) = canceller.answers(PATIENCE_MS)
    assert came.occurrence == 41
    assert answer_row(came) == f"{asked}  cancelled  last occurrence 41"


@pytest.mark.parametrize("value", [None, b"", b"no", b"[1]", b"\xff", b"[" * 100_000])
def test_a_record_that_has_the_id_of_an_ask_and_no_answer_is_passed_over(
    settings: Settings, broker: EmbeddedBroker, value: bytes | None
) -> None:
    (topic,) = settings.topics.input
    asked, request = f"{topic}/0/40", f"{topic}/0/0"
    with Canceller(settings) as canceller:
        canceller.ask(requests_for(settings, [asked]))
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce(settings.results_topic, value, asked.encode(), headers=[(ID_HEADER, request.encode())])
        producer.flush()
        write_answer(broker, settings, request, asked, WITHDRAWN)
        assert [each.result for each in canceller.answers(PATIENCE_MS)] == ["cancelled"]


def test_an_ask_goes_to_the_partition_of_its_message_and_answers_come_back_to_who_asked(
    settings: Settings, broker: EmbeddedBroker
) -> None:
    (topic,) = settings.topics.input
    wanted = [f"{topic}/{number}/{number + 40}" for number in range(3)]
    write_answer(broker, settings, f"{topic}/0/0", f"{topic}/0/40", Reason.RELEASED)
    with Canceller(settings) as canceller:
        canceller.ask(requests_for(settings, [*wanted, wanted[0]]), [("trace", b"7")])
        found = list(requests(broker, topic))
        assert sorted(str((headers[CANCEL_HEADER] or b"").decode()) for _, headers in found) == sorted(
            [*wanted, wanted[0]]
        )
        assert {headers["trace"] for _, headers in found} == {b"7"}
        for request, headers in found:
            asked = (headers[CANCEL_HEADER] or b"").decode()
            assert request.rsplit("/", 1)[0] == asked.rsplit("/", 1)[0]
            if asked != wanted[2]:
                write_answer(broker, settings, request, asked, WITHDRAWN if asked == wanted[0] else Reason.NOT_READ)
        write_answer(broker, settings, f"{topic}/0/999", wanted[2], WITHDRAWN)
        came = list(canceller.answers(3_000))
        assert canceller.unanswered == [wanted[2]], "the answer to somebody else's ask is not ours"
    assert sorted(came, key=str) == sorted(
        [
            Answer(wanted[0], "cancelled", "withdrawn", None),
            Answer(wanted[0], "cancelled", "withdrawn", None),
            Answer(wanted[1], "unknown", "not-read", Reason.NOT_READ.why),
        ],
        key=str,
    )


def test_a_partition_that_a_topic_does_not_have_is_refused_and_nothing_is_published(
    settings: Settings, broker: EmbeddedBroker
) -> None:
    (topic,) = settings.topics.input
    with Canceller(settings) as canceller:
        with pytest.raises(UsageError, match=rf"'{topic}/77/5': {topic} has no partition 77, only 0 to 2"):
            canceller.ask(requests_for(settings, [f"{topic}/0/5", f"{topic}/77/5"]))
        assert list(canceller.answers(PATIENCE_MS)) == []
    assert list(requests(broker, topic)) == []


def test_a_limit_of_the_client_stops_no_ask_that_its_topic_takes(
    make_settings: MakeSettings, make_topic: MakeTopic, broker: EmbeddedBroker
) -> None:
    topic = make_topic(3)
    limited = make_settings(f"topics.input={topic}", f"topics.results={make_topic()}", "kafka.message.max.bytes=1000")
    with Canceller(limited) as canceller:
        canceller.ask(requests_for(limited, [f"{topic}/0/5"]), [("trace", b"x" * 3_000)])
    assert [headers["trace"] for _, headers in requests(broker, topic)] == [b"x" * 3_000]


def test_more_asks_than_the_client_keeps_are_all_published(
    make_settings: MakeSettings, make_topic: MakeTopic, broker: EmbeddedBroker
) -> None:
    topic = make_topic(3)
    small = make_settings(
        f"topics.input={topic}", f"topics.results={make_topic()}", "kafka.queue.buffering.max.messages=2"
    )
    with Canceller(small) as canceller:
        canceller.ask(requests_for(small, [f"{topic}/{number % 3}/{number}" for number in range(100)]))
        assert len(canceller.unanswered) == 100
    assert len(list(requests(broker, topic))) == 100


def test_an_ask_by_a_name_goes_where_its_messages_go_and_its_answer_has_their_id(
    make_settings: MakeSettings, make_topic: MakeTopic, broker: EmbeddedBroker
) -> None:
    topic = make_topic(3)
    settings = make_settings(f"topics.input={topic}", f"topics.results={make_topic(2)}", "policies.names=header")
    with Canceller(settings) as canceller:
        canceller.ask(requests_for(settings, [], ["call", "nobody"]), [("trace", b"7")])
        found = {
            headers[CANCEL_NAME_HEADER]: (request, headers["trace"]) for request, headers in requests(broker, topic)
        }
        assert {name: trace for name, (_, trace) in found.items()} == {b"call": b"7", b"nobody": b"7"}
        # As Kafka's own default partitioner chooses.
        places = [int(found[name][0].split("/")[1]) for name in (b"call", b"nobody")]
        assert places == [(murmur2(name) & 0x7FFFFFFF) % 3 for name in (b"call", b"nobody")]
        write_answer(broker, settings, found[b"call"][0], f"{topic}/0/5", WITHDRAWN)
        write_answer(broker, settings, found[b"nobody"][0], "/-1/-1", Reason.NO_SUCH_NAME)
        came = sorted(canceller.answers(PATIENCE_MS), key=str)
        assert canceller.unanswered == []
    assert came == [
        Answer(f"{topic}/0/5", "cancelled", "withdrawn", None, name="call"),
        Answer(None, "unknown", "no-such-name", Reason.NO_SUCH_NAME.why, name="nobody"),
    ]


def test_without_a_results_topic_nothing_is_asked(make_settings: MakeSettings, make_topic: MakeTopic) -> None:
    with pytest.raises(TopicMissing, match="topics create"):
        Canceller(make_settings(f"topics.input={make_topic()}", "topics.results=no-such-topic"))


@pytest.mark.parametrize("command", ["cancel", "deliver-now"])
@pytest.mark.parametrize("output_format", ["table", "json"])
def test_the_command_ends_with_1_if_no_answer_comes(settings: Settings, output_format: str, command: str) -> None:
    (topic,) = settings.topics.input
    options = [f"kafka.bootstrap_servers={settings.kafka.bootstrap_servers}", f"topics.input={topic}"]
    options.append(f"topics.results={settings.results_topic}")
    sets = [part for option in options for part in ("--set", option)]
    run = CliRunner().invoke(app, [command, "--timeout", "200ms", "--format", output_format, f"{topic}/0/5", *sets])
    assert run.exit_code == 1
    assert "no answer to 1 of 1 within 200ms" in run.output
