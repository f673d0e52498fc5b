"""Cancel, postpone, deliver now: what a person does from the page, as the records that any publisher would send.

The lasting record of who asked for it is the answer on the results topic, which has the name as a header.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from conf.durations import format_duration
from conf.errors import DelaylineError, PublishFailed, UsageError
from conf.kafka.client_log import client_log
from conf.kafka.clients import NO_SIZE_LIMIT
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sources.canceller import Answer, Canceller, requests_for
from sources.intake.presets import name_messages
from state.cancel import CANCEL_HEADER, CONDITION_HEADER, DELIVER_NOW_HEADER, OPERATOR_HEADER, REPLACES_HEADER
from streaming.status.look import Look
from streaming.web.selections import Messages, Selection

log = logging.getLogger(__name__)

NO_ANSWER = "unanswered"
_ANSWERS_MS = 60_000
_PUBLISH_TIMEOUT_S = 60.0
# From the check of a delay until a batch has accepted the message: its delay is then shorter.
_MARGIN_MS = 60_000
# So many messages are read, with their values, and published at a time.
_PIECE = 200


def cancel(settings: Settings, selection: Selection, operator: str, timeout_ms: int = _ANSWERS_MS) -> dict[str, int]:
    """Request the cancel of each message, and return how many answers there are of each result.

    Messages without an answer within `timeout_ms` count as `NO_ANSWER`: theirs will come. Raises what `Canceller` does.
    """
    return _requested(settings, selection, operator, CANCEL_HEADER, "cancel", timeout_ms)


def deliver_now(
    settings: Settings, selection: Selection, operator: str, timeout_ms: int = _ANSWERS_MS
) -> dict[str, int]:
    """Request that each message be due at once, and return what `cancel` does. Raises what `Canceller` does."""
    return _requested(settings, selection, operator, DELIVER_NOW_HEADER, "delivery now", timeout_ms)


def _requested(
    settings: Settings, selection: Selection, operator: str, header: str, action: str, timeout_ms: int
) -> dict[str, int]:
    ids = [f"{topic}/{partition}/{offset}" for topic, partition, offset in selection.places]
    log.info("%r requests %s of %s", operator, action, _described(ids))
    with Canceller(settings) as canceller:
        canceller.ask(requests_for(settings, ids, header=header), [(OPERATOR_HEADER, operator.encode())])
        results: Counter[str] = Counter()
        _count_answers(canceller, results, operator, action, timeout_ms)
    return dict(+results)


def _count_answers(canceller: Canceller, results: Counter[str], operator: str, action: str, timeout_ms: int) -> None:
    """Add the answers to `results`, and log these. Some come even if not all requests could be published."""
    try:
        for answer in canceller.answers(timeout_ms):
            results[_result(answer)] += 1
    finally:
        results[NO_ANSWER] = len(canceller.unanswered)
        log.info("%r requested %s. Answers: %s", operator, action, dict(+results))


def _result(answer: Answer) -> str:
    # If another request has cancelled the message, its replacement is not accepted.
    return "postponed" if answer.result == "cancelled" and answer.accepted else answer.result


def postpone(
    settings: Settings,
    messages: Messages,
    selection: Selection,
    by_ms: int,
    operator: str,
    timeout_ms: int = _ANSWERS_MS,
) -> dict[str, int]:
    """Replace each message by itself, due `by_ms` later, and return how many answers there are of each result.

    A message that was released meanwhile stays released, and its replacement is not accepted. A dead letter on its way
    is `too-late` as well, and a message that repeats is `kept`: its rule says when it comes. Key, value, partition,
    output topic and all other headers stay; the id is a new one.

    Raises UsageError, with nothing published, if a topic is no longer an input topic, if the settings give it a delay
    of its own, or if a message would then wait for longer than they allow, or expire; PublishFailed, what
    `Messages.look` and `Canceller` do.
    """
    ids = [f"{topic}/{partition}/{offset}" for topic, partition, offset in selection.places]
    for topic in sorted({topic for topic, _, _ in selection.places}):
        if topic not in settings.topics.input:
            raise UsageError(f"{topic} is not in topics.input, so the job would not read the postponed messages")
        policy = settings.policies.by_topic.get(topic, settings.policies.of_all)
        if policy.fixed_delay is not None:
            raise UsageError(f"policies.fixed_delay gives all messages of {topic} the same delay")
        if policy.names != "off" or name_messages(settings.presets.by_topic.get(topic, ())):
            raise UsageError(
                f"messages of {topic} have names. Publish them again under their names, with another delay"
            )
        if policy.expire_after is not None or policy.expiry_header is not None:
            raise UsageError(f"messages of {topic} expire by its policies, so they cannot be postponed here")
        if selection.last_due_ms + by_ms - time.time_ns() // 1_000_000 > policy.max_delay - _MARGIN_MS:
            raise UsageError(
                f"the last of these messages would wait for longer than the allowed {format_duration(policy.max_delay)}"
            )
    log.info("%r requests postponement by %s of %s", operator, format_duration(by_ms), _described(ids))
    results: Counter[str] = Counter()
    with Canceller(settings) as canceller:
        publishing = _Publishing(settings, canceller, operator)
        try:
            for piece in _pieces(selection.places):
                rows = messages.look(Look(ids=tuple(piece), limit=len(piece)))
                # A message that repeats has a row for each staged occurrence too.
                repeating = len({row["id"] for row in rows if row["repeats"]})
                waiting = [row for row in rows if row["error_code"] is None and not row["repeats"]]
                for row in waiting:
                    publishing.replace(row, row["deliver_at_ms"] + by_ms)
                publishing.flush()
                results["kept"] += repeating
                results["too-late"] += len(piece) - len(waiting) - repeating
        except DelaylineError as problem:
            raise type(problem)(
                f"{problem.args[0]}. Postponement of {publishing.published} of {len(ids)} messages was requested "
                "before: the log has the answers"
            ) from problem
        finally:
            _count_answers(canceller, results, operator, "postponement", timeout_ms)
    return dict(+results)


class _Publishing:
    """Publishes replacements for an `operator`, and tells `canceller` which answers to expect."""

    def __init__(self, settings: Settings, canceller: Canceller, operator: str) -> None:
        self._settings = settings
        self._canceller = canceller
        self._operator = operator.encode()
        own = {**NO_SIZE_LIMIT, "acks": "all", "enable.idempotence": True}
        self._producer = Producer({**librdkafka_options(settings.kafka), **own}, logger=client_log(log))
        self._failure: KafkaError | None = None
        # How many are published.
        self.published = 0

    def replace(self, row: Mapping[str, Any], deliver_at_ms: int) -> None:
        """Publish the message `row` again, due at `deliver_at_ms`, in place of the one that waits.

        Publishes nothing if one before it has failed.
        """
        names = self._settings.headers
        own = {*names.delays, names.deliver_to, CONDITION_HEADER, OPERATOR_HEADER}
        headers: list[tuple[str, str | bytes | None]] = [
            *((header["key"], header["value"]) for header in row["headers"] or () if header["key"] not in own),
            (names.deliver_at, str(deliver_at_ms)),
            (names.deliver_to, row["output_topic"]),
            (REPLACES_HEADER, row["id"]),
            (OPERATOR_HEADER, self._operator),
        ]
        while self._failure is None:
            try:
                self._producer.produce(
                    row["topic"],
                    row["value"],
                    row["key"],
                    row["partition"],
                    headers=headers,
                    on_delivery=partial(self._published, row["id"]),
                )
            except BufferError:
                # The queue is full of bytes.
                self._producer.poll(0.1)
            except KafkaException as problem:
                self._failure = problem.args[0]
            else:
                break
        self._producer.poll(0)

    def flush(self) -> None:
        """Wait until all are published. Raises PublishFailed."""
        if self._producer.flush(_PUBLISH_TIMEOUT_S):
            raise PublishFailed(f"{self._settings.kafka.bootstrap_servers} did not confirm all messages")
        if self._failure is not None:
            raise PublishFailed(f"{self._settings.kafka.bootstrap_servers}: {self._failure.str()}")

    def _published(self, asked: str, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failure = self._failure or error
            return
        self.published += 1
        self._canceller.expect(f"{message.topic()}/{message.partition()}/{message.offset()}", asked)


def _pieces(places: Sequence[tuple[str, int, int]]) -> Iterator[Sequence[tuple[str, int, int]]]:
    for start in range(0, len(places), _PIECE):
        yield places[start : start + _PIECE]


def _described(ids: Sequence[str]) -> str:
    """Name all messages: this is the record of an action."""
    return f"{len(ids)} messages: {' '.join(ids)}"
