"""Records that a topic refuses, against a real broker: which are redirected, and which wait."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pyarrow as pa
import pytest

from conf.errors import InjectedFailure
from sinks.release import known_topics, ring
from sinks.release.wall_clock import now_ms
from sinks.topics.limits import TopicLimits
from sources.dead_letters.letter import read_letter
from sources.subscriber import received
from state import kinds
from state.order import in_order
from tests.conftest import Configure, MakeTopic
from tests.eventually import assert_eventually
from tests.messages import headers, messages
from tests.sinks.release.bench import ReleaseBench
from tests.sinks.release.conftest import HostClock
from tests.sinks.release.topic_records import values
from tests.thorough import some_thorough

_DAY_MS = 86_400_000
_WEEK = {"message.timestamp.before.max.ms": str(7 * _DAY_MS)}
_FEW_SECONDS = {"message.timestamp.before.max.ms": "20000"}


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides what the topics accept, so that only a refusal shows it."""
    monkeypatch.setattr(known_topics, "read_limits", lambda _, topics: dict.fromkeys(topics, TopicLimits()))


@pytest.fixture(params=["described", "hidden"])
def visible_or_hidden(bench: ReleaseBench, request: pytest.FixtureRequest) -> ReleaseBench:
    """An application with topics that show their limits, or hide them so that only a refusal shows them."""
    if request.param == "hidden":
        request.getfixturevalue("hidden")
    return bench


@pytest.fixture
def compacted(make_topic: MakeTopic) -> str:
    """An output topic that requires keys."""
    return make_topic(**{"cleanup.policy": "compact"})


def _due(topic: str, rows: Iterable[dict[str, Any]], first: int = 0) -> pa.Table:
    """Return messages to `topic` with their row numbers as values. A row changes the columns that it names."""
    defaults = {"output_topic": topic, "key": b"k", "deliver_at_ms": now_ms() - 1_000, "timestamp_ms": 30}
    table = messages(
        {**defaults, "offset": first + n, "value": b"%d" % (first + n), **row} for n, row in enumerate(rows)
    )
    return in_order(table)


def test_a_record_without_a_key_becomes_a_dead_letter_if_keys_are_required_and_the_rest_follows_in_order(
    visible_or_hidden: ReleaseBench, topic: str, compacted: str, configure: Configure
) -> None:
    bench = visible_or_hidden
    bad, traced = {"key": None}, {"headers": headers(("trace", b"7"), ("trace", None))}
    elsewhere = {"output_topic": topic, "key": None}
    bench.hand_over(_due(compacted, [{}, elsewhere, {**bad, **traced}, {}, bad, elsewhere, {}, bad]))
    release = bench.start()
    bench.wait(release)
    # Later messages are released by the same process.
    bench.hand_over(_due(compacted, [{}, bad, {}], first=8))
    bench.wait(release)
    # The requirements of a topic may change while a process runs.
    configure(topic, **{"cleanup.policy": "compact"})
    bench.hand_over(_due(topic, [{}, bad, {}], first=11))
    bench.wait(release)

    assert values(bench.read(compacted)) == [0, 3, 6, 8, 10]
    assert values(bench.read(topic)) == [1, 5, 11, 13]
    letters = {int(record.value() or b""): record for record in bench.read(bench.dead_letter)}
    assert sorted(letters) == [2, 4, 7, 9, 12]
    assert letters[2].timestamp()[1] > now_ms() - 600_000
    letter = read_letter(received(letters[2], 0))
    assert letter is not None
    assert (letter.id, letter.code, letter.timestamp_ms, letter.key) == ("delayline-in/0/2", "record-refused", 30, None)
    assert letter.headers == [("trace", b"7"), ("trace", None)]
    assert re.match(rf"record-refused: .*{compacted}.*", letter.text)
    assert "cleanup.policy" in letter.text


def test_a_message_that_is_older_than_its_topic_takes_is_delivered_with_the_time_of_writing(
    visible_or_hidden: ReleaseBench, make_topic: MakeTopic
) -> None:
    begun_ms = now_ms()
    topic = make_topic(**_WEEK)
    due = _due(topic, [{"deliver_at_ms": begun_ms - 30 * _DAY_MS}, {}, {"deliver_at_ms": 1}])
    assert visible_or_hidden.release(due) == 3
    records = visible_or_hidden.read(topic)
    assert values(records) == [2, 0, 1]
    assert all(record.timestamp()[1] >= begun_ms for record in records[:2])


def test_a_message_later_than_its_topic_takes_is_delivered_with_the_time_of_writing(
    bench: ReleaseBench, make_topic: MakeTopic
) -> None:
    begun_ms = now_ms()
    topic = make_topic(**_FEW_SECONDS)
    assert bench.release(_due(topic, [{"deliver_at_ms": begun_ms - 30_000 + n} for n in range(3)])) == 3
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
    assert bench.release(_due(topic, [{"deliver_at_ms": due} for due in dues])) == 100
    records = bench.read(topic)
    assert values(records) == [*range(100)]
    assert [record.timestamp()[1] for record in records] == dues
    assert bench.read(bench.dead_letter) == []


@pytest.mark.usefixtures("hidden")
@pytest.mark.parametrize(("bad", "count"), [({3}, 10), ({0, 3, 4}, 10), ({0, 1, 2, 3}, 4)])
def test_a_record_too_old_for_a_topic_that_hides_it_becomes_a_dead_letter_and_the_rest_follows_in_order(
    bench: ReleaseBench, make_topic: MakeTopic, bad: set[int], count: int
) -> None:
    topic = make_topic(**_FEW_SECONDS)
    late, soon = now_ms() - 30_000, now_ms() + 2_000
    due = _due(topic, [{"deliver_at_ms": late if n in bad else soon} for n in range(count)])
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
    assert visible_or_hidden.release(_due(topic, [{"deliver_at_ms": 1}, {}])) == 2
    assert values(visible_or_hidden.read(topic)) == [0, 1]


def test_many_refused_records_are_redirected_exactly_once_over_several_transactions(
    bench: ReleaseBench, make_topic: MakeTopic
) -> None:
    bench.change("release.transaction_messages=2000")
    topic = make_topic(2, **{"cleanup.policy": "compact"})
    bad = _due(topic, [{"key": None, "output_partition": n % 2} for n in range(6_000)])
    good = _due(topic, [{"output_partition": n % 2} for n in range(1_000)], first=6_000)
    assert bench.release(bad, good) == 7_000
    records = bench.read(topic)
    for number in range(2):
        assert values(each for each in records if each.partition() == number) == [*range(6_000 + number, 7_000, 2)]
    assert sorted(values(bench.read(bench.dead_letter))) == [*range(6_000)]


@pytest.mark.usefixtures("hidden")
def test_many_refused_records_of_a_transaction_are_found_at_once(
    bench: ReleaseBench, compacted: str, rings: list[int]
) -> None:
    bad = {n for n in range(1_000) if n % 7 in {2, 3}}
    assert bench.release(_due(compacted, [{"key": None} if n in bad else {} for n in range(1_000)])) == 1_000
    assert values(bench.read(compacted)) == [n for n in range(1_000) if n not in bad]
    assert sorted(values(bench.read(bench.dead_letter))) == sorted(bad)
    # The first ring, the ring of the search, and the last one.
    assert len(rings) == 3


@pytest.mark.usefixtures("hidden")
def test_all_that_a_transaction_has_for_a_topic_becomes_dead_letters_if_it_refuses_too_often(
    bench: ReleaseBench, topic: str, compacted: str, rings: list[int]
) -> None:
    bench.most_refusals = 3
    bench.change("release.transaction_messages=100")
    due = _due(topic, [{"output_topic": (topic, compacted)[n % 2], "key": None} for n in range(200)])
    assert bench.release(due) == 200
    assert values(bench.read(topic)) == [*range(0, 200, 2)]
    letters = bench.read(bench.dead_letter)
    assert sorted(values(letters)) == [*range(1, 200, 2)]
    texts = [read_letter(received(each, 0)) for each in letters]
    assert {each.code for each in texts if each is not None} == {"record-refused"}
    # The first transaction has four refusals, and the second one has a single refusal.
    assert len(rings) == 6


def test_nothing_is_written_to_a_topic_whose_transactions_might_never_end(
    bench: ReleaseBench, topic: str, make_topic: MakeTopic, rings: list[int]
) -> None:
    # Kafka finds its own marker too old, and the transaction stays open for ever.
    strict = make_topic(**{"message.timestamp.before.max.ms": "0"})
    soon = now_ms() + 1_000
    rows = [{"output_topic": (topic, strict)[n % 2], "deliver_at_ms": soon} for n in range(10)]
    assert bench.release(_due(topic, rows)) == 10
    assert values(bench.read(topic)) == [*range(0, 10, 2)]
    letters = bench.read(bench.dead_letter)
    assert sorted(values(letters)) == [*range(1, 10, 2)]
    assert dict(received(letters[0], 0).headers)["delayline-error"] == b"record-refused"
    assert len(rings) == 1


@pytest.mark.usefixtures("hidden")
def test_a_release_that_is_stopped_searches_no_further_and_the_next_one_releases_all(
    bench: ReleaseBench, compacted: str, rings: list[int]
) -> None:
    bench.hand_over(_due(compacted, [{"key": None} for _ in range(100)]))
    release = bench.start()
    assert_eventually(lambda: len(rings) > 2)
    opened = len(rings)
    bench.stop(release)
    assert len(rings) <= opened + 2
    assert bench.settled() == 0
    bench.most_refusals = 1
    assert bench.release() == 100
    assert sorted(values(bench.read(bench.dead_letter))) == [*range(100)]


@pytest.mark.usefixtures("hidden")
def test_records_that_several_topics_refuse_in_turn_are_all_found(
    bench: ReleaseBench, compacted: str, make_topic: MakeTopic
) -> None:
    # The broker answers for each topic separately, and it is chance which refusal comes first.
    other = make_topic(**{"cleanup.policy": "compact"})
    due = _due(compacted, [{"output_topic": (compacted, other)[n % 2]} | ({"key": None} if n in {4, 5} else {})
                           for n in range(10)])  # fmt: skip
    assert bench.release(due) == 10
    assert values(bench.read(compacted)) == [0, 2, 6, 8]
    assert values(bench.read(other)) == [1, 3, 7, 9]
    assert sorted(values(bench.read(bench.dead_letter))) == [4, 5]


@pytest.mark.usefixtures("hidden")
def test_a_refused_record_is_found_among_transactions_that_are_written_ahead(
    bench: ReleaseBench, compacted: str
) -> None:
    bench.change("release.lead=1s", "release.slice=10ms")
    soon = now_ms() + 2_500
    rows = [{"deliver_at_ms": soon + 20 * n, "key": None if n == 15 else b"k"} for n in range(20)]
    assert bench.release(_due(compacted, rows)) == 20
    assert values(bench.read(compacted)) == [n for n in range(20) if n != 15]
    assert values(bench.read(bench.dead_letter)) == [15]


def test_what_was_refused_is_forgotten_once_it_is_released(
    bench: ReleaseBench, compacted: str, monkeypatch: pytest.MonkeyPatch, hidden: None
) -> None:
    asked: list[str] = []
    hide = known_topics.read_limits

    def ask(options: Mapping[str, str], topics: Collection[str]) -> dict[str, TopicLimits]:
        asked.extend(topics)
        return hide(options, topics)

    monkeypatch.setattr(known_topics, "read_limits", ask)
    bench.hand_over(_due(compacted, [{}, {"key": None}]))
    release = bench.start()
    bench.wait(release)
    bench.hand_over(_due(compacted, [{}], first=2))
    bench.wait(release)
    asked.clear()
    # The topics are asked again only before a record is refused.
    bench.hand_over(_due(compacted, [{}], first=3))
    bench.wait(release)
    assert asked == []
    assert values(bench.read(compacted)) == [0, 2, 3]


@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.thorough), 3])
def test_a_record_too_early_for_its_topic_is_written_again_when_it_is_due(
    visible_or_hidden: ReleaseBench, make_topic: MakeTopic, count: int
) -> None:
    bench = visible_or_hidden
    topic = make_topic(**{"message.timestamp.after.max.ms": "0"})
    # Far more than it takes to open a ring.
    bench.change("release.lead=5s")
    soon = now_ms() + 6_000
    assert bench.release(_due(topic, [{"deliver_at_ms": soon + n} for n in range(count)])) == count
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
    bench.hand_over(_due(strict, rows))
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
    bench.hand_over(_due(strict, [{"deliver_at_ms": due} for due in dues]))
    bench.wait(release)
    assert bench.read(bench.dead_letter) == []
    assert [message.timestamp()[1] for message in bench.read(strict)] == dues
    # One for each step.
    assert len(rings) <= 4


@pytest.mark.parametrize(
    "point", some_thorough(["transaction-filled", "transaction-ended"], always=["transaction-ended"])
)
def test_a_crash_among_refusals_does_not_change_the_output(
    visible_or_hidden: ReleaseBench, compacted: str, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    bench = visible_or_hidden

    def crash(name: str) -> None:
        if name == point:
            raise InjectedFailure(name)

    bench.change("release.transaction_messages=5")
    due = _due(compacted, [{"key": None} if n in {1, 8} else {} for n in range(12)])
    with monkeypatch.context() as patch:
        patch.setattr(ring, "failpoint", crash)
        with pytest.raises(InjectedFailure):
            bench.release(due)
    done = len(bench.read(compacted)) + len(bench.read(bench.dead_letter))
    assert bench.settled() == done
    assert (done > 0) == (point == "transaction-ended")
    assert bench.release() == 12 - done
    assert bench.release() == 0
    assert values(bench.read(compacted)) == [n for n in range(12) if n not in {1, 8}]
    assert sorted(values(bench.read(bench.dead_letter))) == [1, 8]


@pytest.mark.parametrize("redirected", [True, False])
def test_a_dead_letter_that_its_topic_refuses_for_its_missing_key_becomes_a_stub_with_one(
    visible_or_hidden: ReleaseBench, compacted: str, configure: Configure, redirected: bool
) -> None:
    bench = visible_or_hidden
    configure(bench.dead_letter, **{"cleanup.policy": "compact"})
    rejected = {"output_topic": bench.dead_letter, "error_code": "bad-deliver-at", "error_text": "no instant"}
    due = _due(compacted, [{}, {"key": None, **({} if redirected else rejected)}, {}])
    assert bench.release(due) == 3
    assert values(bench.read(compacted)) == [0, 2]
    (record,) = bench.read(bench.dead_letter)
    letter = read_letter(received(record, 0))
    assert letter is not None
    assert (letter.id, letter.key, letter.value) == ("delayline-in/0/1", b"delayline-in/0/1", None)
    assert letter.code == ("record-refused" if redirected else "bad-deliver-at")
    assert letter.stub is not None
    assert (letter.stub.key_bytes, letter.stub.value_bytes) == (None, 1)


def test_a_dead_letter_for_a_former_dead_letter_topic_that_refuses_it_keeps_its_error(
    visible_or_hidden: ReleaseBench, compacted: str
) -> None:
    bench = visible_or_hidden
    # Staged before topics.dead_letter was changed.
    rejected = {"key": None, "headers": headers(("trace", b"7")), "error_code": "bad-cancel", "error_text": "no id"}
    assert bench.release(_due(compacted, [{}, rejected, {}])) == 3
    assert values(bench.read(compacted)) == [0, 2]
    (record,) = bench.read(bench.dead_letter)
    letter = read_letter(received(record, 0))
    assert letter is not None
    assert (letter.id, letter.code, letter.text) == ("delayline-in/0/1", "bad-cancel", "no id")
    assert (letter.headers, letter.value, letter.timestamp_ms, letter.stub) == ([("trace", b"7")], b"1", 30, None)


def test_a_message_that_the_dead_letter_topic_refuses_becomes_a_stub_with_its_error(
    visible_or_hidden: ReleaseBench, configure: Configure
) -> None:
    bench = visible_or_hidden
    configure(bench.dead_letter, **{"cleanup.policy": "compact"})
    # Staged when the dead-letter topic was an output topic.
    due = _due(bench.dead_letter, [{}, {"key": None, "headers": headers(("trace", b"7"))}, {}])
    assert bench.release(due) == 3
    records = [received(record, 0) for record in bench.read(bench.dead_letter)]
    assert {record.value for record in records} == {b"0", b"2", None}
    (letter,) = filter(None, map(read_letter, records))
    assert (letter.id, letter.code, letter.headers) == ("delayline-in/0/1", "record-refused", [("trace", b"7")])
    assert letter.stub is not None
    assert letter.stub.value_bytes == 1
    assert bench.counts.dead_letters() == {"record-refused": 1}
    assert [own.messages for own in bench.counts.topics().values()] == [2]


@pytest.mark.usefixtures("hidden")
def test_a_message_that_the_dead_letter_topic_refuses_keeps_its_value_if_that_takes_its_dead_letter(
    bench: ReleaseBench, configure: Configure
) -> None:
    configure(bench.dead_letter, **_FEW_SECONDS)
    assert bench.release(_due(bench.dead_letter, [{}, {"deliver_at_ms": now_ms() - 30_000}, {}])) == 3
    records = [received(record, 0) for record in bench.read(bench.dead_letter)]
    assert {record.value for record in records} == {b"0", b"1", b"2"}
    (letter,) = filter(None, map(read_letter, records))
    assert (letter.value, letter.code, letter.stub) == (b"1", "record-refused", None)


@pytest.mark.parametrize("setting", ["topics.results", "topics.input"])
def test_a_message_for_what_is_the_topic_of_answers_or_an_input_topic_by_now_becomes_a_dead_letter(
    bench: ReleaseBench, topic: str, setting: str
) -> None:
    bench.change(f"{setting}={topic}")
    rows: list[dict[str, Any]] = [{}, {"kind": kinds.ANSWER}, {"kind": kinds.DUE_NOW}, {"kind": kinds.ANSWER}]
    elsewhere = {"output_topic": bench.settings.topics.output}
    assert bench.release(_due(topic, [*rows, elsewhere])) == 5
    assert values(bench.read(topic)) == [1, 3]
    assert values(bench.read(bench.settings.topics.output)) == [4]
    letters = [read_letter(received(record, 0)) for record in bench.read(bench.dead_letter)]
    assert sorted((letter.value, letter.code) for letter in letters if letter is not None) == [
        (b"0", "topic-closed"), (b"2", "topic-closed"),
    ]  # fmt: skip


def test_a_dead_letter_with_a_time_that_its_topic_refuses_becomes_a_stub_without_one(
    visible_or_hidden: ReleaseBench, clock: HostClock, topic: str, configure: Configure
) -> None:
    bench = visible_or_hidden
    configure(bench.dead_letter, **{"message.timestamp.after.max.ms": "3600000"})
    # This host's clock is two hours ahead of the broker's.
    clock.ahead_ms = 2 * 3_600_000
    rejected = {"output_topic": bench.dead_letter, "error_code": "bad-deliver-at", "error_text": "no instant"}
    assert bench.release(_due(topic, [{}, rejected, {}])) == 3
    assert values(bench.read(topic)) == [0, 2]
    (record,) = bench.read(bench.dead_letter)
    letter = read_letter(received(record, 0))
    assert letter is not None
    assert letter.stub is not None
    assert (letter.id, letter.stub.value_bytes) == ("delayline-in/0/1", 1)
