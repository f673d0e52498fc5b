"""Forgetting messages that release processes have recalled, and topics that are lost, with a real broker."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from conf.errors import BrokerUnreachable
from conf.sections import CancelSettings
from conf.setting_types import DAY, MINUTE
from conf.settings import Settings
from sinks.topics.topics import ensure_topics
from streaming.job.requests import recalled
from streaming.job.requests.recalled import RecalledMessages
from streaming.job.requests.recalled_rows import Limits
from streaming.local.broker import EmbeddedBroker
from tests.conftest import MakeSettings
from tests.eventually import assert_eventually
from tests.streaming.job.requests.recalled_topic import EPOCH, NOW_MS, known, known_from, publish, read, recall

pytestmark = pytest.mark.usefixtures("own_folder")


def test_old_records_are_deleted_in_pieces(broker: EmbeddedBroker, make_settings: MakeSettings) -> None:
    settings = make_settings("cancels.known_for=2d")
    ensure_topics(settings, 1)
    publish(broker, settings, *[60 * 60] * 5, 0)
    recall(broker, settings, *range(6))
    with closing(RecalledMessages(settings, EPOCH, limits=Limits(written=2))) as reader:
        # The bounds are already known when it is opened, and nothing else moves them.
        assert read(reader, settings) == [0, 1, 2, 3, 4, 5]
        assert known_from(reader, settings) == 5
        reader.forget(NOW_MS, NOW_MS)
        assert known(reader, settings) == [5]
    with closing(RecalledMessages(settings, EPOCH)) as other:
        assert read(other, settings) == [5]


def test_what_is_old_is_forgotten_and_no_later_process_takes_it_for_known(
    broker: EmbeddedBroker, make_settings: MakeSettings
) -> None:
    settings = make_settings("cancels.known_for=2d")
    ensure_topics(settings, 1)
    publish(broker, settings, 60 * 60, 50 * 60, 40 * 60, 0)
    recall(broker, settings, 0, 2)
    recall(broker, settings, 1, due_ms=NOW_MS + MINUTE)
    with closing(RecalledMessages(settings, EPOCH)) as reader:
        assert read(reader, settings) == [0, 1, 2]
        assert known_from(reader, settings) == 2
        # One of the two old messages still has its name.
        reader.forget(NOW_MS + MINUTE, NOW_MS)
        assert known(reader, settings) == [1, 2]
        publish(broker, settings, 0)
        reader.forget(NOW_MS + 12 * 60 * MINUTE, NOW_MS)
        assert known(reader, settings) == [1]
        assert known_from(reader, settings) == 3
    # A later process may know messages for longer than the process before, or for less long.
    for days in (3, 1):
        own = settings.model_copy(update={"cancels": CancelSettings(known_for=days * DAY)})
        with closing(RecalledMessages(own, EPOCH)) as other:
            assert read(other, own) == [1]
            assert known_from(other, own) == 3


def test_the_bounds_grow_with_the_cutoff_and_never_go_back(
    broker: EmbeddedBroker, settings: Settings, reader: RecalledMessages, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    source = (settings.topics.input[0], 0)
    # The first time also when it is opened.
    ends = iter([4, 4, 3, 5])

    def offsets_at(_: Settings, instant_ms: int) -> dict[tuple[str, int], int]:
        asked.append(instant_ms)
        return {source: next(ends)}

    monkeypatch.setattr(recalled, "input_offsets_at", offsets_at)
    found = []
    for cutoff_ms in (1_500, 1_700, 1_900):
        reader.forget(cutoff_ms, 0)
        found.append(reader.known_from[source])
    assert [instant_ms + settings.cancels.known_for for instant_ms in asked] == [1_500, 1_500, 1_700, 1_900]
    assert found == [4, 4, 5]


def test_a_process_that_was_paused_does_not_take_back_the_bounds_of_its_successor(
    broker: EmbeddedBroker, make_settings: MakeSettings
) -> None:
    settings = make_settings("cancels.known_for=2d")
    ensure_topics(settings, 1)
    publish(broker, settings, 40 * 60, 30 * 60, 0)
    with closing(RecalledMessages(settings, EPOCH)) as paused, closing(RecalledMessages(settings, EPOCH)) as successor:
        assert read(paused, settings) == []
        successor.read(NOW_MS + DAY)
        assert known_from(successor, settings) == 2
        paused.forget(NOW_MS + DAY // 2, 0)
        assert known_from(paused, settings) == 2
    with closing(RecalledMessages(settings, EPOCH)) as last:
        read(last, settings)
        assert known_from(last, settings) == 2


def unreachable(*_: object) -> Any:
    raise BrokerUnreachable("nobody answers")


def make_anew(broker: EmbeddedBroker, settings: Settings, topic: str | None = None) -> None:
    """Delete a topic, the recalled topic by default, and create it again."""
    admin, topic = AdminClient({"bootstrap.servers": broker.bootstrap}), topic or settings.recalled_topic
    admin.delete_topics([topic])[topic].result()
    assert_eventually(lambda: topic not in admin.list_topics(timeout=10).topics)
    ensure_topics(settings, 1)


@pytest.mark.parametrize("cut_off_at", [None, "delete", "move"])
def test_what_was_recalled_of_an_input_topic_says_nothing_of_one_that_was_created_again(
    broker: EmbeddedBroker, settings: Settings, monkeypatch: pytest.MonkeyPatch, cut_off_at: str | None
) -> None:
    recall(broker, settings, 1, 2)
    with closing(RecalledMessages(settings, EPOCH)) as before:
        assert read(before, settings) == [1, 2]
    make_anew(broker, settings, settings.topics.input[0])
    # Meanwhile another topic is the input.
    others = settings.topics.model_copy(update={"input": (settings.topics.output,)})
    with closing(RecalledMessages(settings.model_copy(update={"topics": others}), EPOCH, has_run=True)) as meanwhile:
        meanwhile.read(NOW_MS)
    if cut_off_at:
        with monkeypatch.context() as patch, closing(RecalledMessages(settings, EPOCH, has_run=True)) as first:
            patch.setattr(recalled.RecalledWriter, cut_off_at, unreachable)
            first.forget(NOW_MS, NOW_MS)
    with closing(RecalledMessages(settings, EPOCH, has_run=True)) as after:
        assert_eventually(lambda: read(after, settings) == [])
        recall(broker, settings, 2)
        assert read(after, settings) == [2]
    with closing(RecalledMessages(settings, EPOCH, has_run=True)) as later:
        assert read(later, settings) == [2]


def test_bounds_of_an_input_topic_are_not_stored_for_one_that_is_created_again_while_the_process_runs(
    broker: EmbeddedBroker, make_settings: MakeSettings, caplog: pytest.LogCaptureFixture
) -> None:
    settings = make_settings("cancels.known_for=2d")
    ensure_topics(settings, 1)
    publish(broker, settings, 60 * 60, 50 * 60, 0)
    recall(broker, settings, 0)
    with closing(RecalledMessages(settings, EPOCH)) as running:
        assert read(running, settings) == [0]
        assert known_from(running, settings) == 2
        make_anew(broker, settings, settings.topics.input[0])
        running.forget(NOW_MS, NOW_MS)
    assert f"no recalled ids are forgotten: {settings.topics.input[0]} was created again" in caplog.text
    with closing(RecalledMessages(settings, EPOCH, has_run=True)) as after:
        assert read(after, settings) == []
        assert known_from(after, settings) == 0


@pytest.mark.parametrize("is_running", [True, False], ids=["while a process runs", "between two"])
def test_if_the_topic_is_lost_nothing_that_was_published_before_is_taken_for_known(
    broker: EmbeddedBroker, settings: Settings, caplog: pytest.LogCaptureFixture, is_running: bool
) -> None:
    publish(broker, settings, 0, 0)
    first = RecalledMessages(settings, EPOCH)
    recall(broker, settings, 1)
    assert read(first, settings) == [1]
    assert known_from(first, settings) == 0
    make_anew(broker, settings)
    recall(broker, settings, 4)
    reader = first if is_running else RecalledMessages(settings, EPOCH, has_run=True)
    # A client may not know the new topic at once.
    assert_eventually(lambda: 4 in read(reader, settings))
    assert known_from(reader, settings) == 2
    assert "is new, or has lost records" in caplog.text
    publish(broker, settings, 0)
    with closing(RecalledMessages(settings, EPOCH, has_run=True)) as other:
        assert read(other, settings) == [4]
        assert known_from(other, settings) == 2, "it is lost once"
    for each in {first, reader}:
        each.close()


def test_the_first_process_of_an_application_knows_all_that_is_young_enough(
    broker: EmbeddedBroker, settings: Settings, reader: RecalledMessages
) -> None:
    publish(broker, settings, 32 * 24 * 60, 0, 0)
    assert read(reader, settings) == []
    assert known_from(reader, settings) == 1


def test_in_an_outage_nothing_is_forgotten_and_the_next_call_goes_on(
    broker: EmbeddedBroker,
    settings: Settings,
    reader: RecalledMessages,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    recall(broker, settings, 1)
    with monkeypatch.context() as patch:
        patch.setattr(recalled, "input_offsets_at", unreachable)
        reader.forget(NOW_MS, NOW_MS)
    assert "could not be read ahead: broker-unreachable: nobody answers" in caplog.text
    assert reader.known_from == {}
    assert read(reader, settings) == [1]


def test_an_outage_that_lasts_too_long_ends_the_batch_that_must_know(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings("kafka.outage_limit=1s")
    ensure_topics(settings, 1)
    monkeypatch.setattr(recalled, "input_offsets_at", unreachable)
    with (
        closing(RecalledMessages(settings, EPOCH)) as reader,
        pytest.raises(BrokerUnreachable, match=r"the recalled topic: .*outage_limit.*nobody answers"),
    ):
        reader.read(NOW_MS)
