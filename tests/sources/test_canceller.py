"""Requesting cancels, with a real broker. The test writes the answers that a job would give.

A producer that fails on purpose stands for the accidents of a broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from kafka.partitioner.default import murmur2
from typer.testing import CliRunner

from conf.errors import PublishFailed, RightMissing, TopicMissing, UsageError
from conf.load import load_settings
from conf.settings import Settings
from sources import canceller as module
from sources.canceller import Answer, Canceller, requests_for
from sources.subscriber import Received
from state.answers import Output
from state.cancel import CANCEL_HEADER, DELIVER_NOW_HEADER, NOTHING
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


NAMED = load_settings(
    None,
    [
        "topics.input=in,named,jobs",
        "policies.named.names=key",
        "presets.jobs=etf1",
        "kafka.bootstrap_servers=127.0.0.1:1",
    ],
    environ={},
)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"ids": ["in/0/1", "x"]}, "'x': a message id has"),
        ({"ids": ["in/0/1", "other/0/1"]}, "other is not in topics.input"),
        ({"ids": ["in/0/-1"]}, "a message id has"),
        ({"ids": ["in/0/" + "9" * 5_000]}, "in/0/9"),
        ({"ids": ["in/0/1"], "names": ["call"], "topic": "other"}, "other is not in topics.input"),
        ({"ids": [], "names": ["call"]}, "messages of in have no names: policies.names is off"),
        ({"ids": [], "names": ["call", ""], "topic": "named"}, "name '': a name must have 1 to 1024 bytes"),
        ({"ids": [], "names": ["ö" * 513], "topic": "named"}, "a name must have 1 to 1024 bytes"),
    ],
)
def test_what_no_message_can_have_is_not_asked_for(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        requests_for(NAMED, **wrong)


@pytest.mark.parametrize("topic", ["named", "jobs"])
def test_a_name_is_asked_for_where_a_policy_or_a_preset_gives_messages_names(topic: str) -> None:
    by_id, by_name = requests_for(NAMED, ["in/2/7"], ["ö" * 512], topic)
    assert (by_id.topic, by_id.partition, by_id.key, by_id.header[1]) == ("in", 2, None, b"in/2/7")
    assert (by_name.topic, by_name.key) == (topic, ("ö" * 512).encode())


@pytest.mark.parametrize(
    ("arguments", "stdin", "why"),
    [
        (["--name", ""], b"", "messages of in have no names"),
        (["--name", "", "--topic", "named"], b"", "a name must have 1 to 1024 bytes"),
        (["--name", "call"], b"", "messages of in have no names"),
        (["--topic", "in", "in/0/5"], b"", "contains its topic"),
        ([], b"\n", "give at least one message id"),
        ([], b"in/0/1\n\nin/0/\xff2\n", r"line 3 of standard input, b'in/0/\xff2\n': write UTF-8"),
        ([], b"in/0/1\nin/0\n", "'in/0': a message id has"),
    ],
)
def test_a_wrong_call_ends_before_anything_is_asked(arguments: list[str], stdin: bytes, why: str) -> None:
    options = ["topics.input=in,named", "policies.named.names=key", "kafka.bootstrap_servers=127.0.0.1:1"]
    sets = [part for option in options for part in ("--set", option)]
    run = CliRunner().invoke(app, ["cancel", *arguments, *sets], input=stdin, env={"DELAYLINE_CONFIG": None})
    assert (run.exit_code, run.stdout) == (2, "")
    assert run.stderr.startswith("error: bad-usage: ")
    assert why in run.stderr


@pytest.mark.parametrize(
    ("arguments", "stdin", "why"),
    [
        ([], b"\n", "give at least one message id"),
        ([], b"in/0/1\n\nin/0/\xff2\n", r"line 3 of standard input, b'in/0/\xff2\n': write UTF-8"),
        (["in/0"], b"", "'in/0': a message id has the form"),
        (["other/0/1"], b"", "other is not in topics.input"),
        (["--timeout", "soon", "in/0/1"], b"", "--timeout"),
        (["--header", "x", "in/0/1"], b"", "--header"),
        (["--header", "delayline-cancel=in/0/2", "in/0/1"], b"", "--header delayline-cancel: this header has"),
        (["--header", "Delayline-Name=x", "in/0/1"], b"", "--header Delayline-Name: this header has"),
    ],
)
def test_a_wrong_call_to_deliver_now_ends_before_anything_is_asked(
    arguments: list[str], stdin: bytes, why: str
) -> None:
    sets = ["--set", "topics.input=in", "--set", "kafka.bootstrap_servers=127.0.0.1:1"]
    run = CliRunner().invoke(app, ["deliver-now", *arguments, *sets], input=stdin, env={"DELAYLINE_CONFIG": None})
    assert (run.exit_code, run.stdout) == (2, "")
    assert why in run.stderr


def test_what_shall_be_due_at_once_is_asked_for_in_the_partition_of_the_message() -> None:
    (request,) = requests_for(NAMED, ["in/2/7"], header=DELIVER_NOW_HEADER)
    assert (request.topic, request.partition, request.key, request.header) == (
        "in",
        2,
        None,
        ("delayline-deliver-now", b"in/2/7"),
    )


@dataclass
class Faulty:
    """A producer with planned calls, and a subscriber that gets an answer with the `reason` to each request.

    For each call, `plan` has None, the error that it raises, or the KafkaError with which the record is not delivered.
    """

    plan: list[Exception | KafkaError | None]
    published: list[bytes] = field(default_factory=list)
    polls: int = 0
    reason: Reason = WITHDRAWN

    def produce(self, topic: str, value: None, key: None, partition: int, headers: Any, on_delivery: Any) -> None:
        outcome = self.plan.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        on_delivery(outcome, Place((topic, partition, len(self.published))))
        if outcome is None:
            self.published.append(headers[0][1])

    def poll(self, _: float) -> None:
        self.polls += 1

    def flush(self, _: float) -> int:
        return 0

    def partitions(self, _: str) -> list[int]:
        return [0, 1, 2]

    def records(self, timeout_ms: int) -> Iterator[Received]:
        for offset, asked in enumerate(self.published):
            value = answer_value(parse_id(asked.decode()), self.reason)
            yield Received("results", 0, offset, 0, asked, value, [(ID_HEADER, b"in/1/%d" % offset)], 0)

    def close(self) -> None:
        pass


class Place(NamedTuple):
    """The place of a published record, as a producer reports it."""

    at: tuple[str, int, int]

    def topic(self) -> str:
        return self.at[0]

    def partition(self) -> int:
        return self.at[1]

    def offset(self) -> int:
        return self.at[2]


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Faulty]:
    """A function that puts a producer in the place of the client's, with a plan."""

    def put(*plan: Exception | KafkaError | None) -> Faulty:
        made = Faulty(list(plan))
        monkeypatch.setattr(module, "Producer", lambda *_, **__: made)
        monkeypatch.setattr(module, "Subscriber", lambda *_: made)
        return made

    return put


TIMED_OUT, REFUSED = KafkaError(KafkaError._MSG_TIMED_OUT), KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)


@pytest.mark.parametrize("failure", [KafkaException(TIMED_OUT), TIMED_OUT, REFUSED])
def test_answers_to_what_was_published_are_read_before_the_failure_of_another_ask_is_raised(
    faulty: Callable[..., Faulty], failure: Any
) -> None:
    producer = faulty(None, None, failure)
    came: list[Answer] = []
    with Canceller(NAMED) as canceller:
        canceller.ask(requests_for(NAMED, [f"in/1/{number}" for number in range(5)]))
        with pytest.raises((PublishFailed, RightMissing)) as raised:
            came.extend(canceller.answers(PATIENCE_MS))
    assert isinstance(raised.value, RightMissing) == (failure is REFUSED)
    assert came == [Answer(f"in/1/{number}", "cancelled", "withdrawn", None) for number in (0, 1)]
    assert producer.plan == [], "none is published after the failure"


def test_if_none_is_published_nobody_waits_for_answers(faulty: Callable[..., Faulty]) -> None:
    faulty(KafkaException(TIMED_OUT))
    with Canceller(NAMED) as canceller, pytest.raises(PublishFailed, match="It is safe to ask for all of them again"):
        canceller.ask(requests_for(NAMED, ["in/1/0"]))


def test_a_full_queue_is_waited_for(faulty: Callable[..., Faulty]) -> None:
    producer = faulty(None, BufferError("full"), BufferError("full"), None)
    with Canceller(NAMED) as canceller:
        canceller.ask(requests_for(NAMED, ["in/1/0", "in/1/1"]))
        assert [answer.id for answer in canceller.answers(PATIENCE_MS)] == ["in/1/0", "in/1/1"]
    assert producer.polls >= 4


def test_one_wrong_partition_keeps_all_others_from_being_asked_for(faulty: Callable[..., Faulty]) -> None:
    producer = faulty()
    with Canceller(NAMED) as canceller, pytest.raises(UsageError, match="'in/77/5': in has no partition 77, only 0 to"):
        canceller.ask(requests_for(NAMED, ["in/0/5", "in/77/5"], ["call"], "named"))
    assert producer.published == []


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (Reason.MADE_DUE, 0),
        (Reason.RELEASED, 3),
        (Reason.ALREADY_CANCELLED, 3),
        (Reason.REPEATS, 3),
        (Reason.UNDECIDED, 4),
    ],
)
def test_exit_code_of_deliver_now_tells_the_result(faulty: Callable[..., Faulty], reason: Reason, code: int) -> None:
    faulty(None).reason = reason
    run = CliRunner().invoke(app, ["deliver-now", "in/1/0", "--set", "topics.input=in"], env={"DELAYLINE_CONFIG": None})
    assert (run.exit_code, run.stdout.split()[1]) == (code, reason.result)


def test_the_command_shows_the_answers_before_it_ends_with_the_failure(faulty: Callable[..., Faulty]) -> None:
    faulty(None, KafkaException(TIMED_OUT))
    run = CliRunner().invoke(
        app, ["cancel", "in/1/0", "in/1/1", "--set", "topics.input=in"], env={"DELAYLINE_CONFIG": None}
    )
    assert (run.exit_code, run.stdout) == (1, "in/1/0  cancelled\n")
    assert run.stderr.startswith("error: publish-failed: in at ")
