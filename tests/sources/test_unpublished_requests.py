"""Requests that are not all published, and how the commands end.

A producer that fails on purpose stands for the accidents of a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaError, KafkaException
from typer.testing import CliRunner

from conf.errors import PublishFailed, RightMissing, UsageError
from sources import canceller as module
from sources.canceller import Answer, Canceller, requests_for
from sources.subscriber import Received
from state.message import ID_HEADER
from state.message_ids import parse_id
from state.reasons import Reason
from streaming.cli.app import app
from tests.messages import answer_value
from tests.sources.asked_topics import NAMED

PATIENCE_MS = 20_000
WITHDRAWN = Reason.WITHDRAWN


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
