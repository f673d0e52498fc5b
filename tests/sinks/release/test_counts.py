"""The counts that a release process keeps of its transactions."""

from __future__ import annotations

from sinks.release.counts import BOUNDS_MS, MOST_TOPICS, OTHER_TOPICS, ReleaseCounts
from state.kinds import ANSWER
from state.reasons import Reason
from tests.messages import answer_value, messages


def test_messages_count_by_topic_and_by_how_late_they_were() -> None:
    counts = ReleaseCounts()
    dues = [(0, "a"), (98, "a"), (99, "b"), (100, "a"), (101, "a")]
    rows = [{"offset": n, "deliver_at_ms": due, "output_topic": topic} for n, (due, topic) in enumerate(dues)]
    counts.add(messages(rows), {}, 100)
    counts.add(messages([{"offset": 9, "deliver_at_ms": 0, "output_topic": "a"}]), {}, 10**8)
    own = counts.topics()["a"]
    by_bound = dict(zip([*BOUNDS_MS, None], own.by_bound.tolist(), strict=True))
    # Late by -1, 0, 2 and 100 ms, and by more than an hour.
    assert {bound: count for bound, count in by_bound.items() if count} == {1: 2, 2: 1, 100: 1, None: 1}
    assert (own.messages, own.late_ms, own.early) == (5, 102 + 10**8, 1)
    assert counts.topics()["b"].messages == 1


def test_dead_letters_count_by_reason_and_not_among_the_delivered_messages() -> None:
    counts = ReleaseCounts()
    rows = [
        {"offset": 0, "output_topic": "out"},
        {"offset": 1, "topic": "in", "partition": 0, "output_topic": "out"},
        {"offset": 2, "output_topic": "dead", "error_code": "bad-delay", "error_text": "no number"},
    ]
    counts.add(messages(rows), {1: "message-too-large"}, 100)
    assert {topic: own.messages for topic, own in counts.topics().items()} == {"out": 1}
    assert counts.dead_letters() == {"bad-delay": 1, "message-too-large": 1}


def test_of_occurrences_with_one_id_only_those_that_expired_are_dead_letters() -> None:
    counts = ReleaseCounts()
    counts.add(messages([{"offset": 0, "output_topic": "out"}] * 9), dict.fromkeys(range(4), "expired"), 100)
    assert counts.topics()["out"].messages == 5
    assert counts.dead_letters() == {"expired": 4}


def test_answers_to_cancels_count_by_result_and_are_no_messages() -> None:
    counts = ReleaseCounts()
    asked = ("in", 0, 1)
    answers = [
        answer_value(asked, Reason.RECALLED),
        # An id that a publisher asks for may have any text.
        answer_value(('", "result": "cancelled', 0, 1), Reason.NO_INPUT_TOPIC),
        answer_value(asked, Reason.WITHDRAWN, accepted=True),
        answer_value(asked, Reason.RELEASED),
    ]
    rows = [{"offset": n, "kind": ANSWER, "output_topic": "results", "value": value} for n, value in enumerate(answers)]
    counts.add(messages([*rows, {"offset": 9, "output_topic": "out", "value": answers[0]}]), {}, 100)
    assert counts.answers() == {"cancelled": 2, "due-now": 0, "too-late": 1, "kept": 0, "unknown": 1}
    assert [*counts.topics()] == ["out"]


def test_topics_beyond_a_limit_count_together() -> None:
    counts = ReleaseCounts()
    rows = [{"offset": n, "output_topic": f"out-{n:04d}"} for n in range(MOST_TOPICS + 50)]
    counts.add(messages(rows), {}, 100)
    by_topic = counts.topics()
    assert len(by_topic) == MOST_TOPICS + 1
    assert by_topic[OTHER_TOPICS].messages == 50
