"""The records and log lines of a person's action, with a real broker. No job answers it."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any, cast

import pytest
from confluent_kafka import Message, Producer
from pyspark.sql import Row

from conf.errors import PublishFailed, StorageFailed, UsageError
from conf.settings import Settings
from sinks.topics.topics import ensure_topics
from state.message import ID_HEADER
from state.message_ids import parse_id
from state.reasons import Reason
from streaming.local.broker import EmbeddedBroker
from streaming.status.look import Look
from streaming.web import actions
from streaming.web.selections import Messages, Selection
from tests.messages import answer_value
from tests.sinks.committed_records import committed

_DUE_MS = 1_900_000_000_000
_HOUR_MS = 3_600_000


@pytest.fixture
def settings(settings: Settings, caplog: pytest.LogCaptureFixture) -> Settings:
    """Settings with topics that exist, and a delay of many years."""
    caplog.set_level(logging.INFO, actions.log.name)
    made = settings.model_copy(update={"policies": settings.policies.model_copy(update={"max_delay": 10**12})})
    ensure_topics(made, 1)
    return made


class Waiting:
    """Stands in for waiting messages, which were postponed before, and have their own headers.

    `on_look` is called with the ids of each look before that answers. `values`, `repeats` and `gone` are by offset.
    A message that repeats has a second row, of a staged occurrence, after all waiting messages.
    """

    def __init__(self, settings: Settings, count: int = 2) -> None:
        self.places = [(settings.topics.input[0], 0, number) for number in range(7, 7 + count)]
        self._output = settings.topics.output
        self.on_look: Callable[[list[str]], None] = lambda _: None
        self.values: dict[int, bytes] = {}
        self.repeats: set[int] = set()
        self.gone: set[int] = set()

    def look(self, wanted: Look) -> list[Row]:
        self.on_look(["/".join(map(str, place)) for place in wanted.ids or ()])
        kept = [("operator", b"their own"), ("deliver-at", b"1"), ("delayline-if", b"always"),
                ("delayline-operator", b"Bob")]  # fmt: skip
        headers = [Row(key=name, value=value) for name, value in kept]
        rows = [
            Row(id="/".join(map(str, place)), topic=place[0], partition=place[1], key=b"k",
                value=self.values.get(place[2], b"v"),
                headers=headers, output_topic=self._output, deliver_at_ms=_DUE_MS, error_code=None,
                repeats=place[2] in self.repeats)
            for place in wanted.ids or () if place[2] not in self.gone
        ]  # fmt: skip
        return [*rows, *(row for row in rows if row["repeats"])][: wanted.limit]


def _published(broker: EmbeddedBroker, settings: Settings) -> list[tuple[bytes | None, list[tuple[str, Any]]]]:
    found: list[Message] = committed(broker, settings.topics.input[0])
    return [(record.value(), cast("list[tuple[str, Any]]", record.headers())) for record in found]


def test_a_cancel_is_recorded_in_the_log_and_in_its_answer(
    broker: EmbeddedBroker, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    selection = Selection("x", Waiting(settings).places, _DUE_MS, 0.0)
    assert actions.cancel(settings, selection, "Ada Löwe", timeout_ms=1) == {actions.NO_ANSWER: 2}
    ids = ["/".join(map(str, place)) for place in selection.places]
    # All headers of a request come back with its answer.
    assert _published(broker, settings) == [
        (None, [("delayline-cancel", identity.encode()), ("delayline-operator", "Ada Löwe".encode())])
        for identity in ids
    ]
    assert [record.getMessage() for record in caplog.records if record.name == actions.log.name] == [
        f"'Ada Löwe' requests cancel of 2 messages: {ids[0]} {ids[1]}",
        "'Ada Löwe' requested cancel. Answers: {'unanswered': 2}",
    ]


def test_a_delivery_at_once_is_recorded_in_the_log_and_in_its_answer(
    broker: EmbeddedBroker, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    selection = Selection("x", Waiting(settings).places, _DUE_MS, 0.0)
    assert actions.deliver_now(settings, selection, "Ada", timeout_ms=1) == {actions.NO_ANSWER: 2}
    ids = ["/".join(map(str, place)) for place in selection.places]
    assert [headers for _, headers in _published(broker, settings)] == [
        [("delayline-deliver-now", identity.encode()), ("delayline-operator", b"Ada")] for identity in ids
    ]
    assert [record.getMessage() for record in caplog.records if record.name == actions.log.name] == [
        f"'Ada' requests delivery now of 2 messages: {ids[0]} {ids[1]}",
        "'Ada' requested delivery now. Answers: {'unanswered': 2}",
    ]


def test_a_postponement_is_recorded_in_the_log_and_in_its_answer(
    broker: EmbeddedBroker, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = Waiting(settings)
    selection = Selection("x", waiting.places, _DUE_MS, 0.0)
    found = actions.postpone(settings, cast(Messages, waiting), selection, _HOUR_MS, "Ada Löwe", timeout_ms=1)
    assert found == {actions.NO_ANSWER: 2}
    ids = ["/".join(map(str, place)) for place in selection.places]
    # All headers of a replacement come back with its answer; tests/sources/intake/test_replacements.py shows that the
    # message has the operator's no more.
    assert _published(broker, settings) == [
        (b"v", [("operator", b"their own"), ("deliver-at", str(_DUE_MS + _HOUR_MS).encode()),
                ("deliver-to", settings.topics.output.encode()), ("delayline-replaces", identity.encode()),
                ("delayline-operator", "Ada Löwe".encode())])
        for identity in ids
    ]  # fmt: skip
    assert [record.getMessage() for record in caplog.records if record.name == actions.log.name] == [
        f"'Ada Löwe' requests postponement by 1 h of 2 messages: {ids[0]} {ids[1]}",
        "'Ada Löwe' requested postponement. Answers: {'unanswered': 2}",
    ]


def postpone(settings: Settings, waiting: Waiting, timeout_ms: int = 1) -> dict[str, int]:
    selection = Selection("x", waiting.places, _DUE_MS, 0.0)
    return actions.postpone(settings, cast(Messages, waiting), selection, _HOUR_MS, "Ada", timeout_ms)


def test_only_a_message_with_an_accepted_replacement_is_postponed(broker: EmbeddedBroker, settings: Settings) -> None:
    waiting = Waiting(settings)
    reasons = {Reason.WITHDRAWN: True, Reason.ALREADY_CANCELLED: False}

    def answer(ids: list[str]) -> None:
        # The topic is new: so the ids of the replacements are known before they are published.
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for offset, (asked, (reason, accepted)) in enumerate(zip(ids, reasons.items(), strict=True)):
            own = f"{settings.topics.input[0]}/0/{offset}"
            value = answer_value(parse_id(asked), reason, parse_id(own), accepted=accepted)
            producer.produce(settings.results_topic, value, headers=[(ID_HEADER, own.encode())])
        producer.flush()

    waiting.on_look = answer
    assert postpone(settings, waiting, timeout_ms=20_000) == {"postponed": 1, "cancelled": 1}


def test_a_message_of_a_topic_that_is_no_longer_read_is_not_postponed(
    broker: EmbeddedBroker, settings: Settings
) -> None:
    waiting = Waiting(settings)
    waiting.places.append(("left-out", 0, 7))
    with pytest.raises(UsageError, match=r"left-out is not in topics\.input"):
        postpone(settings, waiting)
    assert _published(broker, settings) == []


def test_a_message_that_repeats_is_not_postponed(broker: EmbeddedBroker, settings: Settings) -> None:
    waiting = Waiting(settings)
    waiting.repeats = {8}
    allowed = settings.model_copy(update={"policies": settings.policies.model_copy(update={"repeats": True})})
    assert postpone(allowed, waiting) == {actions.NO_ANSWER: 1, "kept": 1}
    assert len(_published(broker, settings)) == 1


def test_a_message_that_repeats_is_kept_once_however_many_occurrences_are_staged(
    broker: EmbeddedBroker, settings: Settings
) -> None:
    waiting = Waiting(settings, 4)
    waiting.repeats, waiting.gone = {7}, {9}
    assert postpone(settings, waiting) == {actions.NO_ANSWER: 2, "kept": 1, "too-late": 1}
    assert len(_published(broker, settings)) == 2


def test_a_selection_has_each_message_once(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [(settings.topics.input[0], 0, number) for number in (8, 7, 8, 9, 7)]
    names = ("topic", "partition", "offset")
    rows = [dict(zip(names, place, strict=True)) | {"deliver_at_ms": place[2]} for place in places]
    monkeypatch.setattr(Messages, "look", lambda *_: rows)
    assert Messages(settings).select(Look()).places == [places[0], places[1], places[3]]


def _answers(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the answers in each line of the log that has any."""
    lines = (record.getMessage().partition("'Ada' requested postponement. Answers: ") for record in caplog.records)
    return [answers for _, found, answers in lines if found]


def test_a_look_that_fails_does_not_hide_what_was_postponed_before(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    waiting, looks = Waiting(settings, 201), list[int]()

    def fail_later(ids: list[str]) -> None:
        looks.append(len(ids))
        if len(looks) > 1:
            raise StorageFailed("it is away")

    waiting.on_look = fail_later
    with pytest.raises(StorageFailed, match=r"it is away\. Postponement of 200 of 201 messages was requested before"):
        postpone(settings, waiting)
    assert _answers(caplog) == ["{'unanswered': 200}"]


def test_a_replacement_that_the_broker_refuses_does_not_hide_the_others(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = Waiting(settings, 3)
    waiting.values[8] = random.randbytes(2_000_000)
    with pytest.raises(PublishFailed, match=r"Postponement of [0-2] of 3 messages was requested before"):
        postpone(settings, waiting)
    assert len(_answers(caplog)) == 1
