"""Reading back what release processes have cancelled, with a real broker."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from conf.errors import BrokerUnreachable
from conf.setting_types import DAY, MINUTE
from conf.settings import CancelSettings, Settings
from sinks.topics.topics import ensure_topics
from state.cancel import Ask, answer
from state.message import ID_HEADER
from state.message_ids import Ids
from state.reasons import Reason
from streaming.job.recalled import Note, RecalledMessages, note_of
from streaming.local.broker import EmbeddedBroker
from tests.conftest import Configure, MakeSettings
from tests.eventually import assert_eventually
from tests.unreadable_headers import write_unreadable

NOW_MS = time.time_ns() // 1_000_000
VALUE = answer(Ask(("in", 0, 99), ("in", 0, 2)), Reason.RECALLED)


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


def write(
    broker: EmbeddedBroker,
    settings: Settings,
    *numbers: int,
    key: bytes | None = b"in/0/%d",
    ask: bytes | None = None,
    value: bytes = VALUE,
) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    own_ask = f"{settings.topics.input[0]}/0/99".encode()
    headers: list[tuple[str, str | bytes | None]] = [("delayline-id", own_ask if ask is None else ask)]
    for number in numbers:
        own_key = key % number if key is not None and b"%d" in key else key
        producer.produce(settings.results_topic, value, own_key, headers=[] if ask == b"" else headers)
    assert producer.flush(30) == 0


def publish(broker: EmbeddedBroker, settings: Settings, *minutes_ago: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for each in minutes_ago:
        timestamp = time.time_ns() // 1_000_000 - each * MINUTE
        producer.produce(settings.topics.input[0], b"x", partition=0, timestamp=timestamp)
    assert producer.flush(30) == 0


def delete_answers(broker: EmbeddedBroker, settings: Settings, before: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    (deleted,) = admin.delete_records([TopicPartition(settings.results_topic, 0, before)]).values()
    assert deleted.result().low_watermark == before


def read(reader: RecalledMessages) -> list[int]:
    return offsets_in(reader.read())


def offsets_in(ids: Ids) -> list[int]:
    return [offset for own in ids.values() for offset in own.tolist()]


def test_each_answer_of_a_release_process_is_read_once(
    broker: EmbeddedBroker, settings: Settings, reader: RecalledMessages
) -> None:
    assert read(reader) == []
    write(broker, settings, 3, 1, 2)
    write(broker, settings, 7, value=b'{"id": "in/0/7", "result": "cancelled", "reason": "withdrawn"}')
    assert read(reader) == [1, 2, 3], "those of the job itself are known"
    assert read(reader) == []
    write(broker, settings, 4)
    assert read(reader) == [4]


@pytest.mark.parametrize(
    "forged",
    [{"key": None}, {"key": b"k"}, {"key": b"\xff"}, {"ask": b""}, {"ask": b"of-another/0/7"}, {"ask": b"\xff"}],
    ids=["no key", "no id", "no text", "no ask", "another job's ask", "no text for an ask"],
)
def test_what_looks_like_an_answer_and_is_none_is_passed_over(
    broker: EmbeddedBroker, settings: Settings, reader: RecalledMessages, forged: dict[str, Any]
) -> None:
    write(broker, settings, 1)
    write(broker, settings, 2, **forged)
    write(broker, settings, 3)
    assert read(reader) == [1, 3]


def test_an_answer_is_known_by_its_code_and_not_by_its_sentence_or_its_form(
    broker: EmbeddedBroker, settings: Settings, reader: RecalledMessages
) -> None:
    why = "it was handed over, and a release process has recalled it"
    for number, fields in enumerate(
        [
            {"reason": "recalled", "result": "cancelled"},
            {"result": "cancelled", "why": "in other words", "reason": "recalled"},
            {"id": "recalled", "reason": "withdrawn", "why": why},
            {"reason": ["recalled"], "why": why},
            {"result": "cancelled", "why": why},
        ]
    ):
        write(broker, settings, number, value=json.dumps(fields, indent=1).encode())
    for number, value in enumerate([b'["recalled"]', b'"recalled"', b'{"recalled"', b'"recalled"' + b"[" * 100_000]):
        write(broker, settings, 10 + number, value=value)
    assert read(reader) == [0, 1]


def test_a_header_name_that_is_not_utf_8_makes_a_record_no_answer_and_ends_nothing(
    broker: EmbeddedBroker, settings: Settings, reader: RecalledMessages
) -> None:
    ask = f"{settings.topics.input[0]}/0/99".encode()
    write(broker, settings, 1)
    write_unreadable(broker.bootstrap, settings.results_topic, VALUE, b"in/0/2", [(ID_HEADER, ask)])
    write(broker, settings, 3)
    assert read(reader) == [1, 3]


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


def test_what_was_read_ahead_is_returned_once_and_needs_no_broker(
    broker: EmbeddedBroker, settings: Settings, reader: RecalledMessages, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert offsets_in(reader.read_ahead()) == []
    write(broker, settings, 1, 2)
    reader.look_ahead()
    reader.look_ahead()
    write(broker, settings, 3)
    with monkeypatch.context() as patch:
        patch.setattr(RecalledMessages, "_read_on", None)
        assert offsets_in(reader.read_ahead()) == [1, 2]
        assert offsets_in(reader.read_ahead()) == []
    write(broker, settings, 4)
    reader.look_ahead()
    write(broker, settings, 5)
    assert read(reader) == [3, 4, 5]
    assert read(reader) == []


def test_after_a_crash_what_was_read_ahead_and_not_stored_is_read_again(
    broker: EmbeddedBroker, settings: Settings, reader: RecalledMessages
) -> None:
    def of_another() -> list[int]:
        with closing(RecalledMessages(settings)) as other:
            return read(other)

    write(broker, settings, 1)
    reader.look_ahead()
    assert of_another() == [1], "nobody has it yet"
    assert offsets_in(reader.read_ahead()) == [1]
    write(broker, settings, 2)
    assert of_another() == [1, 2], "the batch that got the first one may not be complete"
    # When the next one has begun.
    reader.look_ahead()
    assert of_another() == [2]
    assert offsets_in(reader.read_ahead()) == [2]


def test_an_outage_while_it_is_read_ahead_loses_nothing(
    broker: EmbeddedBroker,
    settings: Settings,
    reader: RecalledMessages,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write(broker, settings, 1)
    reader.look_ahead()
    write(broker, settings, 2)
    with monkeypatch.context() as patch:
        patch.setattr(RecalledMessages, "_written", unreachable)
        reader.look_ahead()
    assert "could not be read ahead: broker-unreachable: nobody answers" in caplog.text
    assert offsets_in(reader.read_ahead()) == [1]
    assert read(reader) == [2]


def unreachable(_: RecalledMessages) -> dict[int, int]:
    raise BrokerUnreachable("nobody answers")


def test_what_a_replay_could_not_store_is_read_again(
    broker: EmbeddedBroker, settings: Settings, reader: RecalledMessages
) -> None:
    write(broker, settings, 1)
    assert read(reader) == [1]
    reader.begin_again()
    assert read(reader) == [1]
    assert read(reader) == []
    write(broker, settings, 2)
    reader.look_ahead()
    assert offsets_in(reader.read_ahead()) == [2]
    reader.begin_again()
    assert read(reader) == [2]


def make_results_anew(broker: EmbeddedBroker, settings: Settings) -> None:
    """Delete the results topic, and create it again with a partition."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([settings.results_topic])[settings.results_topic].result()
    assert_eventually(lambda: settings.results_topic not in admin.list_topics(timeout=10).topics)
    ensure_topics(settings, 1)


def test_a_topic_that_was_made_anew_is_read_from_its_beginning_and_what_the_old_one_said_is_not_known(
    broker: EmbeddedBroker, make_settings: MakeSettings
) -> None:
    settings = make_settings()
    ensure_topics(settings, 1)
    reader = RecalledMessages(settings)
    write(broker, settings, 1, 2, 3)
    assert read(reader) == [1, 2, 3]
    assert reader.unsure_below == {}
    publish(broker, settings, *[0] * 5)
    make_results_anew(broker, settings)
    write(broker, settings, 4)

    def is_found() -> bool:
        reader.look_ahead()
        return bool(reader.unsure_below)

    # A client may not know the new topic at once.
    assert_eventually(is_found)
    publish(broker, settings, 0)
    # It may have more than the old one by now.
    write(broker, settings, 5, 6, 7)
    with closing(RecalledMessages(settings)) as other:
        assert read(other) == [4, 5, 6, 7]
    assert read(reader) == [4, 5, 6, 7]
    unsure = {(settings.topics.input[0], 0): 5}
    assert reader.unsure_below == unsure, "what was published until it was found"
    write(broker, settings, 8)
    assert read(reader) == [8]
    assert reader.unsure_below == unsure
    reader.close()


def test_that_answers_are_lost_is_known_after_a_restart_whatever_the_timestamps_of_records(
    broker: EmbeddedBroker, make_settings: MakeSettings, configure: Configure
) -> None:
    settings = make_settings()
    ensure_topics(settings, 1)
    source = (settings.topics.input[0], 0)
    configure(source[0], **{"message.timestamp.after.max.ms": str(2 * 365 * DAY)})
    publish(broker, settings, 3, -365 * DAY // MINUTE, 2)
    with closing(RecalledMessages(settings)) as reader:
        write(broker, settings, 1, 2)
        assert read(reader) == [1, 2]
        # The batch before is complete, and so that is stored.
        assert read(reader) == []
        write(broker, settings, 3, 4)
        delete_answers(broker, settings, before=4)
        write(broker, settings, 5)
        assert read(reader) == [5]
        assert reader.unsure_below == {source: 3}
    publish(broker, settings, 0, 4)
    for _ in range(2):
        with closing(RecalledMessages(settings)) as reader:
            # What it has found was stored at once, and what it has read was not.
            assert read(reader) == [5]
            assert reader.unsure_below == {source: 3}


def test_a_topic_that_was_made_anew_between_two_processes_is_found_though_it_has_as_much_as_the_old_one(
    broker: EmbeddedBroker, make_settings: MakeSettings
) -> None:
    settings = make_settings()
    ensure_topics(settings, 1)
    publish(broker, settings, 0, 0)
    write(broker, settings, 1, 2, 3)
    with closing(RecalledMessages(settings)) as reader:
        assert read(reader) == [1, 2, 3]
        # This call stores it.
        assert read(reader) == []
    make_results_anew(broker, settings)
    write(broker, settings, 4, 5, 6, 7)
    for _ in range(2):
        # The second one knows it by what the first one has stored.
        with closing(RecalledMessages(settings)) as other:
            assert read(other) == [4, 5, 6, 7]
            assert other.unsure_below == {(settings.topics.input[0], 0): 2}
        publish(broker, settings, 0)


def test_what_an_earlier_process_has_forgotten_is_unsure_if_messages_are_to_be_known_for_longer(
    broker: EmbeddedBroker, make_settings: MakeSettings
) -> None:
    settings = make_settings()
    ensure_topics(settings, 1)
    publish(broker, settings, 60 * 60, 50 * 60, 40 * 60, 0)
    source = (settings.topics.input[0], 0)
    for days, end in ((2, None), (3, 2), (3, 2), (1, 2), (2, 3)):
        own = settings.model_copy(update={"cancels": CancelSettings(known_for=days * DAY)})
        with closing(RecalledMessages(own)) as reader:
            assert not reader.has_noted
            # Though nobody asks for anything, and it may not live until the next call.
            reader.look_ahead()
            assert reader.has_noted
            assert reader.unsure_below == ({} if end is None else {source: end})


# By when earlier processes have ended, and how many of four answers are deleted.
@pytest.mark.parametrize(
    ("days_ago", "answers", "deleted", "end"),
    [
        (None, 4, 4, None),
        (0, 0, 0, None),
        (0, 4, 0, None),
        (0, 4, 1, 2),
        (2, 0, 0, 1),
        (2, 4, 0, 2),
        (2, 4, 4, 2),
    ],
    ids=[
        "no process has run",
        "nobody has asked",
        "killed before it stored anything",
        "some deleted",
        "long ago, and nobody has asked",
        "long ago",
        "long ago, and all deleted",
    ],
)
def test_where_no_offsets_are_stored_answers_and_notes_may_be_lost_if_a_process_has_run_long_ago(
    broker: EmbeddedBroker,
    make_settings: MakeSettings,
    days_ago: int | None,
    answers: int,
    deleted: int,
    end: int | None,
) -> None:
    settings = make_settings()
    ensure_topics(settings, 1)
    # One that is older than `cancels.known_for` may be, and one that is not.
    publish(broker, settings, 30 * 60, 0)
    write(broker, settings, *range(answers))
    if deleted:
        delete_answers(broker, settings, before=deleted)
    ran_until_ms = 0 if days_ago is None else NOW_MS - days_ago * DAY
    unsure = {} if end is None else {(settings.topics.input[0], 0): end}
    # The second one knows it by what the first one has stored at once.
    for until_ms in (ran_until_ms, NOW_MS):
        with closing(RecalledMessages(settings, until_ms)) as reader:
            assert read(reader) == list(range(answers))[deleted:]
            assert reader.unsure_below == unsure
        publish(broker, settings, 0)


@pytest.mark.parametrize(
    "metadata",
    [
        "of a tool",
        "[Infinity, 1]",
        "[0, 172800000]",
        "known_for=",
        "known_for=1",
        "known_for=-172800000",
        "known_for=172800000 ",
        "known_for=172800000 topic=",
        "known_for=172800000 topic=a b",
        "known_for=9999999999999",
        "known_for=99999999999999999999999",
        "known_for=١٧٢٨٠٠٠٠٠",
        "x" * 4096,
    ],
)
def test_what_others_write_beside_the_offsets_is_no_note(metadata: str, caplog: pytest.LogCaptureFixture) -> None:
    assert note_of(TopicPartition("results", 3, 7, metadata)) is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "ignoring unrecognized commit metadata of results/3: " + repr(metadata)[:100] in record.getMessage()
    assert len(record.getMessage()) < 250


@pytest.mark.parametrize(
    ("place", "note"),
    [
        (TopicPartition("results", 3, 7), None),
        (TopicPartition("results", 3, 7, ""), None),
        (TopicPartition("results", 3, 7, "known_for=172800000 topic=AB-_0"), Note(2 * DAY, "AB-_0")),
    ],
)
def test_a_note_is_read_and_none_is_missed_where_there_is_nothing(
    place: TopicPartition, note: Note | None, caplog: pytest.LogCaptureFixture
) -> None:
    assert note_of(place) == note
    assert not caplog.records


def test_offsets_that_a_broker_cannot_tell_yet_are_not_taken_for_none(
    broker: EmbeddedBroker, settings: Settings, reader: RecalledMessages, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(broker, settings, 1)
    assert read(reader) == [1]
    assert read(reader) == []
    problems = [KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS)]

    class Loading(Consumer):
        def committed(self, *arguments: Any) -> Any:
            places = super().committed(*arguments)
            if not problems:
                return places
            error = problems.pop()
            nothing = {"offset": OFFSET_INVALID, "metadata": None, "error": error}
            return [SimpleNamespace(topic=each.topic, partition=each.partition, **nothing) for each in places]

    monkeypatch.setattr("streaming.job.recalled.Consumer", Loading)
    with closing(RecalledMessages(settings)) as other:
        assert read(other) == []
    assert problems == []


@pytest.mark.thorough
def test_it_reads_on_as_soon_as_a_broker_is_back(make_settings: MakeSettings, tmp_path: Path) -> None:
    # Clients keep the epoch of a partition's leader, which is another one after each start of the broker.
    with EmbeddedBroker(tmp_path / "broker") as broker:
        settings = make_settings(f"kafka.bootstrap_servers={broker.bootstrap}", "kafka.outage_limit=20s")
        ensure_topics(settings, 3)
        reader = RecalledMessages(settings)
        for number in range(2):
            write(broker, settings, number)
            assert read(reader) == [number]
            broker.kill()
            broker.start()
        reader.close()


@pytest.mark.parametrize(
    "code",
    [
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._DESTROY_BROKER,
        KafkaError._TRANSPORT,
        KafkaError.FENCED_LEADER_EPOCH,
    ],
)
def test_a_broker_that_starts_is_waited_for(
    broker: EmbeddedBroker,
    settings: Settings,
    reader: RecalledMessages,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
) -> None:
    # What a client says about a broker that ends or starts depends on the moment.
    write(broker, settings, 3)
    problems = [KafkaException(KafkaError(code))]

    class Restarting(Consumer):
        def get_watermark_offsets(self, *arguments: Any) -> Any:
            if problems:
                raise problems.pop()
            return super().get_watermark_offsets(*arguments)

    monkeypatch.setattr("streaming.job.recalled.Consumer", Restarting)
    assert read(reader) == [3]
    assert problems == []


def test_a_commit_of_offsets_that_never_ends_stops_nothing(
    broker: EmbeddedBroker, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []

    class Stuck(Consumer):
        def commit(self, *arguments: Any, **options: Any) -> Any:
            sent.append(options)
            # As with a coordinator that is never found.
            return None if len(sent) == 1 else super().commit(*arguments, **options)

    monkeypatch.setattr("streaming.job.recalled.Consumer", Stuck)
    monkeypatch.setattr("streaming.job.recalled._TIMEOUT_S", 2.0)
    reader = RecalledMessages(settings)
    for number in (1, 2, 3):
        write(broker, settings, number)
        assert read(reader) == [number]
    assert [each["asynchronous"] for each in sent] == [True] * 4, "a commit that is waited for has no time limit"
    other = RecalledMessages(settings)
    assert read(other) == [3]
    for each in (reader, other):
        each.close()


def test_what_lies_behind_an_open_transaction_may_be_missing(
    broker: EmbeddedBroker, settings: Settings, reader: RecalledMessages
) -> None:
    assert (read(reader), reader.knows_all) == ([], True)
    stuck = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "stuck"})
    stuck.init_transactions(30)
    stuck.begin_transaction()
    for partition in range(3):
        stuck.produce(settings.results_topic, b"{}", partition=partition)
    assert stuck.flush(30) == 0
    write(broker, settings, 3)
    assert (read(reader), reader.knows_all) == ([], False)
    stuck.abort_transaction(30)
    assert (read(reader), reader.knows_all) == ([3], True)
