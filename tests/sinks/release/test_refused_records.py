"""Records that a topic refuses, against a real broker: they become dead letters, and the rest follows in order."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import pytest

from conf.errors import InjectedFailure
from sinks.release import known_topics, ring
from sinks.release.wall_clock import now_ms
from sinks.topics.limits import TopicLimits
from sources.dead_letters.letter import read_letter
from sources.subscriber import received
from state import kinds
from tests.conftest import Configure, MakeTopic
from tests.eventually import assert_eventually
from tests.messages import headers
from tests.sinks.release.bench import ReleaseBench
from tests.sinks.release.refusing_topics import due_to
from tests.sinks.release.topic_records import values
from tests.thorough import some_thorough


def test_a_record_without_a_key_becomes_a_dead_letter_if_keys_are_required_and_the_rest_follows_in_order(
    visible_or_hidden: ReleaseBench, topic: str, compacted: str, configure: Configure
) -> None:
    bench = visible_or_hidden
    bad, traced = {"key": None}, {"headers": headers(("trace", b"7"), ("trace", None))}
    elsewhere = {"output_topic": topic, "key": None}
    bench.stage(due_to(compacted, [{}, elsewhere, {**bad, **traced}, {}, bad, elsewhere, {}, bad]))
    release = bench.start()
    bench.wait(release)
    # Later messages are released by the same process.
    bench.stage(due_to(compacted, [{}, bad, {}], first=8))
    bench.wait(release)
    # The requirements of a topic may change while a process runs.
    configure(topic, **{"cleanup.policy": "compact"})
    bench.stage(due_to(topic, [{}, bad, {}], first=11))
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


def test_many_refused_records_are_redirected_exactly_once_over_several_transactions(
    bench: ReleaseBench, make_topic: MakeTopic
) -> None:
    bench.change("release.transaction_messages=2000")
    topic = make_topic(2, **{"cleanup.policy": "compact"})
    bad = due_to(topic, [{"key": None, "output_partition": n % 2} for n in range(6_000)])
    good = due_to(topic, [{"output_partition": n % 2} for n in range(1_000)], first=6_000)
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
    assert bench.release(due_to(compacted, [{"key": None} if n in bad else {} for n in range(1_000)])) == 1_000
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
    due = due_to(topic, [{"output_topic": (topic, compacted)[n % 2], "key": None} for n in range(200)])
    assert bench.release(due) == 200
    assert values(bench.read(topic)) == [*range(0, 200, 2)]
    letters = bench.read(bench.dead_letter)
    assert sorted(values(letters)) == [*range(1, 200, 2)]
    texts = [read_letter(received(each, 0)) for each in letters]
    assert {each.code for each in texts if each is not None} == {"record-refused"}
    # The first transaction has four refusals, and the second one has a single refusal.
    assert len(rings) == 6


@pytest.mark.usefixtures("hidden")
def test_a_release_that_is_stopped_searches_no_further_and_the_next_one_releases_all(
    bench: ReleaseBench, compacted: str, rings: list[int]
) -> None:
    bench.stage(due_to(compacted, [{"key": None} for _ in range(100)]))
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
    due = due_to(compacted, [{"output_topic": (compacted, other)[n % 2]} | ({"key": None} if n in {4, 5} else {})
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
    assert bench.release(due_to(compacted, rows)) == 20
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
    bench.stage(due_to(compacted, [{}, {"key": None}]))
    release = bench.start()
    bench.wait(release)
    bench.stage(due_to(compacted, [{}], first=2))
    bench.wait(release)
    asked.clear()
    # The topics are asked again only before a record is refused.
    bench.stage(due_to(compacted, [{}], first=3))
    bench.wait(release)
    assert asked == []
    assert values(bench.read(compacted)) == [0, 2, 3]


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
    due = due_to(compacted, [{"key": None} if n in {1, 8} else {} for n in range(12)])
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


@pytest.mark.parametrize("setting", ["topics.results", "topics.input"])
def test_a_message_for_what_is_the_topic_of_answers_or_an_input_topic_by_now_becomes_a_dead_letter(
    bench: ReleaseBench, topic: str, setting: str
) -> None:
    bench.change(f"{setting}={topic}")
    rows: list[dict[str, Any]] = [{}, {"kind": kinds.ANSWER}, {"kind": kinds.DUE_NOW}, {"kind": kinds.ANSWER}]
    elsewhere = {"output_topic": bench.settings.topics.output}
    assert bench.release(due_to(topic, [*rows, elsewhere])) == 5
    assert values(bench.read(topic)) == [1, 3]
    assert values(bench.read(bench.settings.topics.output)) == [4]
    letters = [read_letter(received(record, 0)) for record in bench.read(bench.dead_letter)]
    assert sorted((letter.value, letter.code) for letter in letters if letter is not None) == [
        (b"0", "topic-closed"), (b"2", "topic-closed"),
    ]  # fmt: skip
