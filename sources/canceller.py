"""Asking a job to cancel messages, or to make them due at once, and waiting for its answers."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from conf.errors import PublishFailed, RightMissing, UsageError, quoted
from conf.kafka.client_log import client_log
from conf.kafka.clients import NO_SIZE_LIMIT
from conf.kafka.options import librdkafka_options
from conf.kafka.rights import is_refusal, right_missing
from conf.settings import Settings
from sources.intake.presets import presets_named
from sources.subscriber import Received, Subscriber
from state.cancel import CANCEL_HEADER
from state.message_ids import parse_id
from state.names import CANCEL_NAME_HEADER, MOST_NAME_BYTES, OFF

log = logging.getLogger(__name__)

_PUBLISH_TIMEOUT_S = 60.0
# librdkafka's number for the partition that the key chooses.
_BY_KEY = -1


class RequestRecord(NamedTuple):
    """A request record: its topic, key and partition, the header of the request, and the header's value as text."""

    topic: str
    key: bytes | None
    partition: int
    header: tuple[str, bytes]
    text: str


@dataclass(frozen=True)
class Answer:
    """The answer to a request.

    - `id`: the requested message. For a request by name, the message that has the name, or None
    - `result`, `reason`: codes (`state.reasons`)
    - `why`: the sentence for people, if there is one
    - `accepted`: whether the message that replaces the requested one is accepted; None for a cancel
    - `name`: the requested name, for a request by name
    - `output`: where a message that is too late to cancel went, if known: a JSON object (`docs/publish/cancelling.md`)
    - `occurrence`: for a cancelled message that repeated, the number of its last occurrence; 0 if none came
    """

    id: str | None
    result: str
    reason: str | None
    why: str | None
    accepted: bool | None = None
    name: str | None = None
    output: Any = None
    occurrence: int | None = None


class Canceller:
    """Asks a job to cancel messages, or to make them due at once. A context manager.

    A request goes to the partition of the requested message. So the job has read that message before the request.
    """

    def __init__(self, settings: Settings) -> None:
        """Connect, so that no answer to a later request is missed. Raises what `Subscriber` does."""
        self._settings = settings
        self._answers = Subscriber(settings, settings.results_topic)
        # Requests without an answer, by their ids: the requested id or name, and whether it is a name.
        self._open: dict[str, tuple[str, bool]] = {}
        # The first failure to publish a request.
        self._failure: PublishFailed | RightMissing | None = None

    def ask(self, requests: Sequence[RequestRecord], headers: Sequence[tuple[str, bytes]] = ()) -> None:
        """Publish `requests` with `headers`, which come back with the answers.

        Nothing is published if an input topic does not have the partition of an id. If publishing fails in the middle,
        `answers` raises the error, after the answers to the published requests.

        Raises UsageError, TopicMissing, BrokerUnreachable; PublishFailed or RightMissing if none is published.
        """
        if not requests:
            return
        self._check_partitions(requests)
        options = {**NO_SIZE_LIMIT, "acks": "all", "enable.idempotence": True, "partitioner": "murmur2_random"}
        producer = Producer(librdkafka_options(self._settings.kafka) | options, logger=client_log(log))
        for request in requests:
            self._produce(producer, request, headers)
        if producer.flush(_PUBLISH_TIMEOUT_S):
            self._fail("an input topic", "not all requests are confirmed")
        if self._failure is not None and not self._open:
            raise self._failure

    def _check_partitions(self, requests: Sequence[RequestRecord]) -> None:
        numbers = {topic: self._answers.partitions(topic) for topic in sorted({request.topic for request in requests})}
        for request in requests:
            known = numbers[request.topic]
            if request.partition not in (_BY_KEY, *known):
                raise UsageError(
                    f"{request.text!r}: {request.topic} has no partition {request.partition}, only 0 to {known[-1]}"
                )

    def _produce(self, producer: Producer, request: RequestRecord, headers: Sequence[tuple[str, bytes]]) -> None:
        """Publish a request, unless an earlier one has failed."""
        own: list[tuple[str, str | bytes | None]] = [request.header, *headers]
        asked = partial(self._asked, request)
        while self._failure is None:
            try:
                producer.produce(request.topic, None, request.key, request.partition, headers=own, on_delivery=asked)
                producer.poll(0)
                return
            except BufferError:
                # The client's queue is full, by number or by bytes.
                producer.poll(0.1)
            except KafkaException as problem:
                self._fail(request.topic, problem.args[0])

    def expect(self, replacement: str, asked: str) -> None:
        """Let `answers` also wait for the answer to `replacement`, a message that replaces `asked`: two message ids."""
        self._open[replacement] = asked, False

    def answers(self, timeout_ms: int) -> Iterator[Answer]:
        """Yield the answer to each request as it comes, for up to `timeout_ms` in all.

        Raises PublishFailed or RightMissing at the end, if some requests could not be published.
        """
        if self._open:
            for received in self._answers.records(timeout_ms=timeout_ms):
                asked = self._open.get(received.id or "")
                # Other writers to the topic can write a record that has the id of a request but is not an answer.
                if asked is not None and (answer := _read(*asked, received)) is not None:
                    del self._open[received.id or ""]
                    yield answer
                if not self._open:
                    break
        if self._failure is not None:
            raise self._failure

    @property
    def unanswered(self) -> list[str]:
        """The requested ids and names that have no answer."""
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

    def _asked(self, request: RequestRecord, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._fail(request.topic, error)
            return
        by_name = request.header[0] == CANCEL_NAME_HEADER
        self._open[f"{message.topic()}/{message.partition()}/{message.offset()}"] = request.text, by_name

    def _fail(self, where: str, error: KafkaError | str) -> None:
        """Keep the first failure."""
        if self._failure is not None:
            return
        if isinstance(error, KafkaError) and is_refusal(error):
            self._failure = right_missing("Write", f"topic {where}")
            return
        why = error if isinstance(error, str) else error.str()
        self._failure = PublishFailed(
            f"{where} at {self._settings.kafka.bootstrap_servers}: {why}. Messages without an answer may "
            "still wait. It is safe to ask for all of them again"
        )


def requests_for(
    settings: Settings,
    ids: Iterable[str],
    names: Iterable[str] = (),
    topic: str | None = None,
    header: str = CANCEL_HEADER,
) -> list[RequestRecord]:
    """Return the requests for the messages with these `ids`, and requests to cancel the messages with these `names`.

    `header` is the request for the ids: `CANCEL_HEADER` or `DELIVER_NOW_HEADER`. A request by name goes to the
    partition of the messages that have the name as their key. The names belong to the input topic `topic`, by default
    to the first one. Raises UsageError for an id that does not belong to an input topic, and for a name that the job
    would not look up.
    """
    requests = []
    for text in ids:
        place, number, _ = place_of(text, settings)
        requests.append(RequestRecord(place, None, number, (header, text.encode()), text))
    named = settings.topics.input[0] if topic is None else topic
    for text in names:
        _check_name(text, named, settings)
        requests.append(RequestRecord(named, text.encode(), _BY_KEY, (CANCEL_NAME_HEADER, text.encode()), text))
    return requests


def _check_name(name: str, topic: str, settings: Settings) -> None:
    """Raise UsageError for a name that has no meaning on an input topic: its request would be a dead letter."""
    if topic not in settings.topics.input:
        raise UsageError(f"{topic} is not in topics.input ({', '.join(settings.topics.input)})")
    policy = settings.policies.by_topic.get(topic, settings.policies.of_all)
    presets = presets_named(settings.presets.by_topic.get(topic, ()))
    if policy.names == OFF and not any(preset.named for preset in presets):
        raise UsageError(f"messages of {topic} have no names: policies.names is {OFF} in these settings")
    if not 1 <= len(name.encode()) <= MOST_NAME_BYTES:
        raise UsageError(f"name {quoted(name)}: a name must have 1 to {MOST_NAME_BYTES} bytes")


def place_of(text: str, settings: Settings) -> tuple[str, int, int]:
    """Return topic, partition and offset of a message id. Raises UsageError if it does not belong to an input topic."""
    try:
        topic, partition, offset = parse_id(text)
    except ValueError as problem:
        raise UsageError(f"{text!r}: {problem}") from None
    if topic not in settings.topics.input:
        raise UsageError(f"{text!r}: {topic} is not in topics.input ({', '.join(settings.topics.input)})")
    return topic, partition, offset


def _read(asked: str, by_name: bool, received: Received) -> Answer | None:
    """Return `received` as the answer to a request for `asked`, or None if it is not an answer."""
    try:
        fields = json.loads(received.value or b"")
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    identity, name = (fields.get("id"), asked) if by_name else (asked, None)
    result = str(fields.get("result", "unknown"))
    reason, why, accepted, output = map(fields.get, ("reason", "why", "accepted", "output"))
    return Answer(identity, result, reason, why, accepted, name, output, fields.get("occurrence"))
