"""Records with timestamps that a topic refuses, against a real broker: which are redirected, and which wait."""

from __future__ import annotations

import pytest

from sinks.release.wall_clock import now_ms
from sources.dead_letters.letter import read_letter
from sources.subscriber import received
from tests.conftest import MakeTopic
from tests.eventually import assert_eventually
from tests.sinks.release.bench import ReleaseBench
from tests.sinks.release.conftest import HostClock
from tests.sinks.release.refusing_topics import FEW_SECONDS, due_to
from tests.sinks.release.topic_records import values

_DAY_MS = 86_400_000
_WEEK = {"message.timestamp.before.max.ms": str(7 * _DAY_MS)}


def test_a_message_that_is_older_than_its_topic_takes_is_delivered_with_the_time_of_writing(
    visible_or_hidden: ReleaseBench, make_topic: MakeTopic
) -> None:
    begun_ms = now_ms()
    topic = make_topic(**_WEEK)
    due = due_to(topic, [{"deliver_at_ms": begun_ms - 30 * _DAY_MS}, {}, {"deliver_at_ms": 1}])
    assert visible_or_hidden.release(due) == 3
    records = visible_or_hidden.read(topic)
    assert values(records) == [2, 0, 1]
    assert all(record.timestamp()[1] >= begun_ms for record in records[:2])


def test_a_message_later_than_its_topic_takes_is_delivered_with_the_time_of_writing(
    bench: ReleaseBench, make_topic: MakeTopic
) -> None:
    begun_ms = now_ms()
    topic = make_topic(**FEW_SECONDS)
    assert bench.release(due_to(topic, [{"deliver_at_ms": begun_ms - 30_000 + n} for n in range(3)])) == 3
    records = bench.read(topic)
    assert values(records) == [0, 1, 2]
    assert all(record.timestamp()[1] >= begun_ms for record in records)


def test_overdue_messages_have_their_due_times_as_timestamps_in_a_topic_that_does_not_take_this_hosts_time(
    visible_or_hidden: ReleaseBench, clock: HostClock, make_topic: MakeTopic
) -> None:
    bench, topic = visible_or_hidden, make_topic(**{"message.timestamp.after.max.ms": "3600000"})
    dues = [now_ms() + number for number in range(100)]
    # The broker's clock is right.
    clock.ahead_ms = _DAY_MS
    assert bench.release(due_to(topic, [{"deliver_at_ms": due} for due in dues])) == 100
    records = bench.read(topic)
    assert values(records) == [*range(100)]
    assert [record.timestamp()[1] for record in records] == dues
    assert bench.read(bench.dead_letter) == []


@pytest.mark.usefixtures("hidden")
@pytest.mark.parametrize(
    ("bad", "count"),
    [
        pytest.param({3}, 10, marks=pytest.mark.thorough),
        ({0, 3, 4}, 10),
        pytest.param({0, 1, 2, 3}, 4, marks=pytest.mark.thorough),
    ],
)
def test_a_record_too_old_for_a_topic_that_hides_it_becomes_a_dead_letter_and_the_rest_follows_in_order(
    bench: ReleaseBench, make_topic: MakeTopic, bad: set[int], count: int
) -> None:
    topic = make_topic(**FEW_SECONDS)
    late, soon = now_ms() - 30_000, now_ms() + 2_000
    due = due_to(topic, [{"deliver_at_ms": late if n in bad else soon} for n in range(count)])
    assert bench.release(due) == count
    assert values(bench.read(topic)) == [n for n in range(count) if n not in bad]
    letters = bench.read(bench.dead_letter)
    assert sorted(values(letters)) == sorted(bad)
    letter = read_letter(received(letters[0], 0))
    assert letter is not None
    assert letter.code == "record-refused"
    assert "message.timestamp.before.max.ms" in letter.text


def test_a_topic_with_log_append_time_accepts_old_records(
    visible_or_hidden: ReleaseBench, make_topic: MakeTopic
) -> None:
    topic = make_topic(**_WEEK, **{"message.timestamp.type": "LogAppendTime"})
    assert visible_or_hidden.release(due_to(topic, [{"deliver_at_ms": 1}, {}])) == 2
    assert values(visible_or_hidden.read(topic)) == [0, 1]


def test_nothing_is_written_to_a_topic_whose_transactions_might_never_end(
    bench: ReleaseBench, topic: str, make_topic: MakeTopic, rings: list[int]
) -> None:
    # Kafka finds its own marker too old, and the transaction stays open for ever.
    strict = make_topic(**{"message.timestamp.before.max.ms": "0"})
    soon = now_ms() + 1_000
    rows = [{"output_topic": (topic, strict)[n % 2], "deliver_at_ms": soon} for n in range(10)]
    assert bench.release(due_to(topic, rows)) == 10
    assert values(bench.read(topic)) == [*range(0, 10, 2)]
    letters = bench.read(bench.dead_letter)
    assert sorted(values(letters)) == [*range(1, 10, 2)]
    assert dict(received(letters[0], 0).headers)["delayline-error"] == b"record-refused"
    assert len(rings) == 1


@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.thorough), 3])
def test_a_record_too_early_for_its_topic_is_written_again_when_it_is_due(
    visible_or_hidden: ReleaseBench, make_topic: MakeTopic, count: int
) -> None:
    bench = visible_or_hidden
    topic = make_topic(**{"message.timestamp.after.max.ms": "0"})
    # Far more than it takes to open a ring.
    bench.change("release.lead=5s")
    soon = now_ms() + 6_000
    assert bench.release(due_to(topic, [{"deliver_at_ms": soon + n} for n in range(count)])) == count
    assert [message.timestamp()[1] for message in bench.read(topic)] == [soon + n for n in range(count)]
    assert bench.read(bench.dead_letter) == []


def test_a_topic_that_takes_no_timestamp_ahead_of_its_brokers_clock_costs_no_ring_for_each_message(
    visible_or_hidden: ReleaseBench, make_topic: MakeTopic, topic: str, rings: list[int], request: pytest.FixtureRequest
) -> None:
    bench = visible_or_hidden
    strict = make_topic(**{"message.timestamp.after.max.ms": "0"})
    release = bench.start()
    assert_eventually(lambda: release.releasing)
    dues = [now_ms() + 1_500 + 100 * n for n in range(20)]
    rows = [{"output_topic": (strict, topic)[n % 2], "deliver_at_ms": due} for n, due in enumerate(dues)]
    bench.stage(due_to(strict, rows))
    bench.wait(release)
    assert [message.timestamp()[1] for message in bench.read(strict)] == dues[::2]
    assert [message.timestamp()[1] for message in bench.read(topic)] == dues[1::2]
    assert bench.read(bench.dead_letter) == []
    # A hidden limit is learned by one refusal.
    is_hidden = request.node.callspec.params["visible_or_hidden"] == "hidden"
    assert len(rings) <= 1 + is_hidden


def test_a_topic_whose_broker_has_a_clock_that_is_behind_gets_its_messages_later_and_not_as_dead_letters(
    visible_or_hidden: ReleaseBench, make_topic: MakeTopic, clock: HostClock, rings: list[int]
) -> None:
    bench = visible_or_hidden
    strict = make_topic(**{"message.timestamp.after.max.ms": "0"})
    clock.ahead_ms = 500
    release = bench.start()
    assert_eventually(lambda: release.releasing)
    dues = [clock.now_ms() + 1_500 + 100 * n for n in range(20)]
    bench.stage(due_to(strict, [{"deliver_at_ms": due} for due in dues]))
    bench.wait(release)
    assert bench.read(bench.dead_letter) == []
    assert [message.timestamp()[1] for message in bench.read(strict)] == dues
    # One for each step.
    assert len(rings) <= 4
