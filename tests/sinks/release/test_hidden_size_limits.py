"""Size limits that only a refusal shows: hidden ones, and those for compressed messages, against a real broker."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from sinks.release import known_topics
from sinks.topics.limits import TopicLimits
from sources.subscriber import received
from tests.conftest import MakeTopic
from tests.messages import messages
from tests.sinks.release.bench import ReleaseBench
from tests.sinks.release.refusing_topics import batch_to
from tests.sinks.release.topic_records import contents


@pytest.fixture
def bench(bench: ReleaseBench, limit: Callable[[str, int], None]) -> ReleaseBench:
    """An application with a dead-letter topic that accepts 20 kB."""
    limit(bench.dead_letter, 20_000)
    return bench


@pytest.mark.usefixtures("hidden")
def test_two_refused_messages_of_one_size_become_dead_letters(bench: ReleaseBench, make_topic: MakeTopic) -> None:
    small = make_topic(2, **{"max.message.bytes": "5000"})
    rows = [
        {"offset": n, "output_topic": small, "output_partition": n % 2, "key": b"k", "value": b"x" * 6_000}
        for n in range(2)
    ]
    assert bench.release(messages({**row, "deliver_at_ms": 70} for row in rows)) == 2
    assert len(bench.read(bench.dead_letter)) == 2


def test_a_message_too_large_for_a_hidden_limit_is_redirected_and_the_rest_follows_in_order(
    bench: ReleaseBench, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_topics, "read_limits", lambda _, topics: dict.fromkeys(topics, TopicLimits()))
    # Together the small messages are too large as well, but none of them is the cause.
    many, large = [b"%d" % n * 500 for n in range(8)], b"x" * 6_000
    assert bench.release(batch_to(small, *many, large, b"z")) == 10
    assert contents(bench.read(small)) == [*many, b"z"]
    assert contents(bench.read(bench.dead_letter)) == [large]


@pytest.mark.usefixtures("hidden")
def test_messages_that_are_too_large_together_for_a_hidden_limit_are_released_in_smaller_batches_from_then_on(
    bench: ReleaseBench, small: str, topic: str, rings: list[int]
) -> None:
    many, large = [b"%03d" % n * 150 for n in range(400)], b"x" * 6_000
    rows = [{"offset": n, "output_topic": (small, topic)[n % 2], "key": b"k", "value": value, "deliver_at_ms": 70}
            for n, value in enumerate([*many, large])]  # fmt: skip
    release = bench.start()
    bench.stage(messages(rows))
    bench.wait(release)
    # Each refusal halves the largest batch of the topic. The last refusal is for the large message.
    assert len(rings) < 10
    before = len(rings)
    bench.stage(batch_to(small, *many, first=1_000))
    bench.wait(release)
    assert len(rings) == before
    assert contents(bench.read(small)) == many[::2] + many
    assert contents(bench.read(topic)) == many[1::2]
    assert contents(bench.read(bench.dead_letter)) == [large]


@pytest.mark.usefixtures("hidden")
def test_many_messages_that_are_too_large_for_a_hidden_limit_cost_no_ring_each(
    bench: ReleaseBench, small: str, rings: list[int]
) -> None:
    large = [b"x" * (5_000 + n) for n in range(50)]
    assert bench.release(batch_to(small, b"a", *large, b"b")) == 52
    assert contents(bench.read(small)) == [b"a", b"b"]
    assert sorted(contents(bench.read(bench.dead_letter))) == large
    # To halve the batches of both topics.
    assert len(rings) < 16


@pytest.mark.usefixtures("hidden")
def test_a_topic_of_a_hidden_limit_that_refuses_often_gets_nothing_more_of_that_transaction(
    bench: ReleaseBench, small: str, rings: list[int]
) -> None:
    bench.most_refusals = 4
    # Each is smaller than the one that was refused before.
    large = [b"x" * (5_900 - n) for n in range(50)]
    assert bench.release(batch_to(small, b"a", *large, b"b")) == 52
    assert sorted(contents(bench.read(small) + bench.read(bench.dead_letter))) == sorted([b"a", *large, b"b"])
    # To halve the batches of both topics, and to find five.
    assert len(rings) < 24


def test_a_topic_that_refuses_many_compressed_messages_gets_no_other_one_over_its_limit_in_that_transaction(
    bench: ReleaseBench, small: str, rings: list[int]
) -> None:
    bench.most_refusals = 2
    bench.change("kafka.compression.type=lz4", "release.transaction_messages=40")
    noise, fits = [os.urandom(6_000) for _ in range(37)], b"0" * 15_000
    assert bench.release(batch_to(small, b"a", fits, *noise, b"b", fits)) == 41
    # The last one is in the next transaction.
    assert contents(bench.read(small)) == [b"a", b"b", fits]
    letters = bench.read(bench.dead_letter)
    assert sorted(contents(letters)) == sorted([fits, *noise])
    assert {dict(received(each, 0).headers)["delayline-error"] for each in letters} == {b"message-too-large"}
    assert len(rings) == 4
