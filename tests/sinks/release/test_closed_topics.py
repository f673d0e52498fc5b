"""Output topics that are gone, barred or cut short: when they count as such, and where their messages go."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from confluent_kafka import KafkaException

from conf.rejected import TopicClosed
from conf.settings import Settings
from sinks.internal_topics.position import Position
from sinks.release import known_topics
from sinks.release.closed_topics import Closed, ClosedTopics, refused_by
from sinks.release.known_topics import Topics
from sinks.release.partition_needs import needs_of, united_needs
from sinks.release.planned import Planned
from sinks.release.waits import DEFAULT_WAITS
from sinks.topics.limits import TopicAccess
from tests.messages import messages
from tests.sinks.release.made_up_broker import BARRED, GONE, HIDDEN, OPEN, MadeUpBroker


@pytest.fixture
def closed() -> ClosedTopics:
    """The state of a new process: no topic is known to be closed."""
    return ClosedTopics(Settings(), {}, DEFAULT_WAITS)


@pytest.mark.parametrize(
    ("access", "text"),
    [
        (GONE, "output topic side was deleted"),
        (HIDDEN, "may no longer be described by the login"),
        (BARRED, "lacks the right Write on it"),
        (TopicAccess("open", 3), "has 3 partitions, fewer than when"),
    ],
)
def test_a_topic_is_closed_once_a_broker_has_said_so_twice(
    broker_says: MadeUpBroker, closed: ClosedTopics, access: TopicAccess, text: str
) -> None:
    broker_says.topics["side"] = access
    assert list(closed.confirm({"side": 4, "delayline-out": 9}, broker_says)) == ["side"]
    assert (broker_says.asked, broker_says.now_s) == (2, 103)
    assert text in str(closed.now["side"].error)
    assert closed.now["side"].partitions == access.partitions
    # The topic is already closed.
    assert not closed.confirm({"side": 4}, broker_says)


@pytest.mark.parametrize("second", [OPEN, None])
def test_a_topic_that_is_there_a_moment_later_is_not_closed(
    broker_says: MadeUpBroker, closed: ClosedTopics, second: TopicAccess | None
) -> None:
    broker_says.topics["side"] = GONE
    if second is None:
        broker_says.set()
    else:
        broker_says.later["side"] = second
    assert not closed.confirm({"side": 4}, broker_says)
    assert not closed.now


def test_a_broker_that_says_nothing_of_the_topic_or_does_not_know_the_services_own_closes_none(
    broker_says: MadeUpBroker, closed: ClosedTopics
) -> None:
    assert not closed.confirm({"side": 4}, broker_says)
    broker_says.topics = {"delayline-position": GONE, "side": GONE}
    with pytest.raises(KafkaException):
        closed.confirm({"side": 4}, broker_says)
    assert not closed.now


def test_another_shard_may_look_again_in_the_moment_in_which_a_topic_is_closed(broker_says: MadeUpBroker) -> None:
    looked: list[str] = []

    class Watched(ClosedTopics):
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if name == "_closed":
                self.look_again(value)
                looked.extend(value)

    broker_says.topics["side"] = GONE
    Watched(Settings(), {}, DEFAULT_WAITS).confirm({"side": 4}, broker_says)
    assert looked == ["side"]


@pytest.mark.parametrize("topic", ["delayline-out", "delayline-dead-letter", "delayline-results", "delayline-position"])
def test_the_topics_of_the_settings_are_never_closed(
    broker_says: MadeUpBroker, closed: ClosedTopics, topic: str
) -> None:
    broker_says.topics |= {topic: GONE, "delayline-position": OPEN}
    assert not closed.may_close(topic)
    assert not closed.confirm({topic: 1}, broker_says)


def test_a_closed_topic_is_looked_at_again_every_few_seconds_and_opened_once_it_takes_records(
    broker_says: MadeUpBroker, closed: ClosedTopics
) -> None:
    closed.look_again({"side"})
    broker_says.topics |= {"side": GONE, "other": BARRED}
    closed.confirm({"side": 4, "other": 1}, broker_says)
    asked = broker_says.asked
    closed.look_again({"side"})
    closed.look_again({"delayline-out"})
    assert broker_says.asked == asked
    # It is created again, first with too few partitions.
    broker_says.topics["side"] = TopicAccess("open", 2)
    broker_says.now_s += 6
    closed.look_again({"side", "delayline-out"})
    assert (broker_says.asked, closed.now["side"].partitions) == (asked + 1, 2)
    broker_says.topics["side"] = OPEN
    closed.look_again({"side"})
    assert broker_says.asked == asked + 1
    broker_says.now_s += 6
    closed.look_again({"side"})
    assert (list(closed.now), closed.reopened) == (["other"], 1)


def test_a_closed_topic_is_logged_once_a_minute(
    broker_says: MadeUpBroker, closed: ClosedTopics, caplog: pytest.LogCaptureFixture
) -> None:
    broker_says.topics["side"] = BARRED
    closed.confirm({"side": 1}, broker_says)
    for seconds, lines in ((6, 1), (6, 1), (50, 2), (6, 2)):
        broker_says.now_s += seconds
        closed.look_again({"side"})
        assert caplog.text.count("messages for side become dead letters: topic-closed: ") == lines
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_only_messages_for_partitions_that_the_topic_lacks_are_refused_and_cost_no_rate(
    broker_says: MadeUpBroker, closed: ClosedTopics
) -> None:
    rows = messages(
        {"offset": n, "output_topic": topic, "output_partition": n % 4}
        for n, topic in enumerate(["side", "delayline-out"] * 4)
    )
    assert needs_of(rows) == {"side": 3, "delayline-out": 4}
    topics = Topics(Settings(), {}, closed)
    assert topics.goes_to(rows, 0).to_pylist() == rows.column("output_topic").to_pylist()
    broker_says.topics["side"] = TopicAccess("open", 1)
    closed.confirm(needs_of(rows), broker_says)
    refused = [False, False, True, False] * 2
    assert refused_by(rows, closed.now).tolist() == refused
    assert [topic == "delayline-dead-letter" for topic in topics.goes_to(rows, 0).to_pylist()] == refused
    planned = Planned(rows, Position(), 100)
    assert "side" in topics.of(planned)
    broker_says.topics["side"] = GONE
    closed.confirm({"side": 3}, broker_says)
    assert "side" not in topics.of(planned)


def test_of_several_topics_that_take_no_records_one_of_the_settings_is_named(
    broker_says: MadeUpBroker, closed: ClosedTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_topics, "topic_access", broker_says.access)
    topics = Topics(Settings(), {}, closed)
    broker_says.topics |= {"a": BARRED, "delayline-out": GONE, "z": OPEN}
    found = topics.look_for({"a", "delayline-out", "z"})
    assert found is not None
    assert (found.topic, found.error.code) == ("delayline-out", "topic-missing")
    found = topics.look_for({"a", "z"})
    assert found is not None
    assert (found.topic, found.error.code) == ("a", "right-missing")
    assert topics.look_for({"z"}) is None


def test_what_several_need_of_topics_is_the_most_that_one_does() -> None:
    assert united_needs([]) == {}
    assert united_needs([{"a": 3, "b": 1}, {}, {"a": 2, "c": 4}, {"b": 5}]) == {"a": 3, "b": 5, "c": 4}


def test_only_topics_that_messages_are_for_are_looked_up() -> None:
    looked_up: list[str] = []

    class Many(dict[str, Closed]):
        def get(self, topic: str, default: Any = None) -> Any:
            looked_up.append(topic)
            return super().get(topic, default)

    closed = Many((f"gone-{number}", Closed(TopicClosed("gone"), 1, 2)) for number in range(5_000))
    table = messages({"output_topic": f"gone-{at % 2}", "output_partition": at % 3} for at in range(20))
    assert refused_by(table, closed).tolist() == [at % 3 > 0 for at in range(20)]
    assert sorted(looked_up) == ["gone-0", "gone-1"]
