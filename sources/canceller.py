"""Asking a job to cancel messages, and waiting for its answers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from conf.errors import PublishFailed, UsageError
from conf.kafka.options import librdkafka_options
from conf.kafka.rights import is_refusal, right_missing
from conf.settings import Settings
from sources.subscriber import Received, Subscriber
from state.cancel import CANCEL_HEADER
from state.message_ids import parse_id
from state.names import CANCEL_NAME_HEADER

_PUBLISH_TIMEOUT_S = 60.0
_MOST_QUEUED = 100_000
# librdkafka's number for the partition that the key chooses.
_BY_KEY = -1


class _Ask(NamedTuple):
    """A record that asks for a cancel: where it goes, the header that asks, and that header's value as text."""

    topic: str
    key: bytes | None
    partition: int
    header: tuple[str, bytes]
    text: str


@dataclass(frozen=True)
class Answer:
    """What became of an ask: the id it asked for, the result (`state.cancel.Result`), and why, if that is known.

    `accepted` says whether the message that replaces it is accepted; None for a cancel. `name` is what an ask by a name
    asked for; then `id` is that of the message that has it, or None.
    """

    id: str | None
    result: str
    why: str | None
    accepted: bool | None = None
    name: str | None = None


class Canceller:
    """Asks a job to cancel messages. A context manager.

    An ask goes to the partition of the message that it asks for: so the job has read that before it reads the ask.
    """

    def __init__(self, settings: Settings) -> None:
        """Connect, so that no answer to a later ask is missed. Raises what `Subscriber` does."""
        self._settings = settings
        self._answers = Subscriber(settings, settings.results_topic)
        # What each ask without an answer asks for, and whether by a name, by the id of the ask.
        self._open: dict[str, tuple[str, bool]] = {}
        self._failure: KafkaException | None = None

    def ask(self, ids: Iterable[str], headers: Sequence[tuple[str, bytes]] = ()) -> None:
        """Publish an ask for each of `ids`, with `headers`, which come back with the answer.

        Raises UsageError, with nothing published, for an id that is none of an input topic; PublishFailed,
        RightMissing.
        """
        places = [(text, *place_of(text, self._settings)[:2]) for text in ids]
        self._publish(
            [_Ask(topic, None, number, (CANCEL_HEADER, text.encode()), text) for text, topic, number in places], headers
        )

    def ask_by_name(self, names: Iterable[str], topic: str, headers: Sequence[tuple[str, bytes]] = ()) -> None:
        """Do the same for what waits under `names` on the input topic `topic`.

        An ask goes to the partition of the messages that have the name as their key.
        """
        if topic not in self._settings.topics.input:
            raise UsageError(f"{topic} is not in topics.input ({', '.join(self._settings.topics.input)})")
        asks = [_Ask(topic, text.encode(), _BY_KEY, (CANCEL_NAME_HEADER, text.encode()), text) for text in names]
        self._publish(asks, headers)

    def _publish(self, asks: Sequence[_Ask], headers: Sequence[tuple[str, bytes]]) -> None:
        if not asks:
            return
        options = {"acks": "all", "enable.idempotence": True, "partitioner": "murmur2_random"}
        producer = Producer(librdkafka_options(self._settings.kafka) | options)
        for ask in asks:
            own: list[tuple[str, str | bytes | None]] = [ask.header, *headers]
            while len(producer) >= _MOST_QUEUED:
                producer.poll(0.1)
            try:
                producer.produce(
                    ask.topic, None, ask.key, ask.partition, headers=own, on_delivery=partial(self._asked, ask)
                )
            except KafkaException as problem:
                raise self._failed(ask.topic, problem.args[0]) from problem
            producer.poll(0)
        if producer.flush(_PUBLISH_TIMEOUT_S):
            raise PublishFailed(f"{self._settings.kafka.bootstrap_servers} did not confirm all cancels")
        if self._failure is not None:
            raise self._failed("an input topic", self._failure.args[0])

    def expect(self, replacement: str, asked: str) -> None:
        """Wait in `answers` also for that of a message that was published to replace `asked`. Both are message ids."""
        self._open[replacement] = asked, False

    def answers(self, timeout_ms: int) -> Iterator[Answer]:
        """Yield the answer to each ask as it comes, for up to `timeout_ms` in all."""
        if not self._open:
            return
        for received in self._answers.records(timeout_ms=timeout_ms):
            asked = self._open.pop(received.id or "", None)
            if asked is not None:
                yield _read(*asked, received)
            if not self._open:
                return

    @property
    def unanswered(self) -> list[str]:
        """The ids and names that were asked for, and have no answer."""
        return [text for text, _ in self._open.values()]

    def close(self) -> None:
        """Disconnect."""
        self._answers.close()

    def __enter__(self) -> Canceller:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _asked(self, ask: _Ask, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failure = self._failure or KafkaException(error)
            return
        by_name = ask.header[0] == CANCEL_NAME_HEADER
        self._open[f"{message.topic()}/{message.partition()}/{message.offset()}"] = ask.text, by_name

    def _failed(self, where: str, error: KafkaError) -> Exception:
        if is_refusal(error):
            return right_missing("Write", f"topic {where}")
        return PublishFailed(f"{where} at {self._settings.kafka.bootstrap_servers}: {error.str()}")


def place_of(text: str, settings: Settings) -> tuple[str, int, int]:
    """Return topic, partition and offset of a message id. Raises UsageError if it is none of an input topic."""
    try:
        topic, partition, offset = parse_id(text)
    except ValueError as problem:
        raise UsageError(f"{text!r}: {problem}") from None
    if topic not in settings.topics.input:
        raise UsageError(f"{text!r}: {topic} is not in topics.input ({', '.join(settings.topics.input)})")
    return topic, partition, offset


def _read(asked: str, by_name: bool, received: Received) -> Answer:
    fields = json.loads(received.value or b"{}")
    identity, name = (fields.get("id"), asked) if by_name else (asked, None)
    return Answer(identity, str(fields.get("result", "unknown")), fields.get("why"), fields.get("accepted"), name)
