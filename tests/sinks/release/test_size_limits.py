"""Messages that are too large for their topic, against a real broker: which are redirected, and which wait."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Mapping

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Message

from conf.errors import TopicMismatch
from sinks.release import known_topics, release_producer
from sinks.release.records import bytes_at_most, record_bytes, records
from sinks.release.waits import Waits
from sinks.release.wall_clock import now_ms
from sinks.topics.limits import TopicLimits
from sources.dead_letters.letter import read_letter
from sources.intake.partitioner import partitions_for
from sources.subscriber import received
from state.answers import Undecided
from state.kinds import REQUEST
from state.stub import Stub
from tests.conftest import MakeTopic
from tests.eventually import assert_eventually
from tests.messages import headers, messages
from tests.sinks.release.bench import ReleaseBench
from tests.sinks.release.refusing_topics import batch_to
from tests.sinks.release.topic_records import contents


@pytest.fixture
def bench(bench: ReleaseBench, limit: Callable[[str, int], None]) -> ReleaseBench:
    """An application with a dead-letter topic that accepts 20 kB."""
    limit(bench.dead_letter, 20_000)
    return bench


@pytest.mark.parametrize("count", [300, 2_000])
def test_recalls_go_in_batches_that_a_small_recalled_topic_takes(
    bench: ReleaseBench, limit: Callable[[str, int], None], make_topic: MakeTopic, count: int
) -> None:
    limit(bench.settings.recalled_topic, 60_000)
    results, far_ms = make_topic(), now_ms() + 600_000
    bench.stage(messages({"offset": n, "deliver_at_ms": far_ms} for n in range(count)))
    undecided = Undecided(far_ms + 1, now_ms(), shards=1, left=0).to_bytes()
    requests = (
        {"kind": REQUEST, "output_topic": results, "offset": count + n, "key": b"delayline-in/0/%d" % n,
         "value": undecided}
        for n in range(count)
    )  # fmt: skip
    bench.stage(messages(requests))
    release = bench.start()
    # The answers, and the messages that they take out.
    assert_eventually(lambda: release.ended.is_set() or bench.released == 2 * count, 60)
    assert release.error is None
    assert len(bench.read(bench.settings.recalled_topic)) == count


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The topics of each question for limits."""
    questions: list[set[str]] = []
    read = known_topics.read_limits

    def ask(options: Mapping[str, str], topics: Collection[str]) -> dict[str, TopicLimits]:
        questions.append(set(topics))
        return read(options, topics)

    monkeypatch.setattr(known_topics, "read_limits", ask)
    return questions


def test_a_limit_of_the_client_stops_no_message_that_its_topic_takes(bench: ReleaseBench, topic: str) -> None:
    bench.change("kafka.message.max.bytes=2000")
    large = b"x" * 6_000
    assert bench.release(batch_to(topic, b"a", large, b"b")) == 3
    assert contents(bench.read(topic)) == [b"a", large, b"b"]


def test_a_record_that_the_client_itself_refuses_is_found_like_any_other(
    bench: ReleaseBench, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release_producer, "NO_SIZE_LIMIT", {"message.max.bytes": "2000"})
    assert bench.release(batch_to(topic, b"a", b"x" * 6_000, b"b")) == 3
    assert contents(bench.read(topic)) == [b"a", b"b"]
    (record,) = bench.read(bench.dead_letter)
    letter = read_letter(received(record, 0))
    assert letter is not None
    assert (letter.id, letter.code) == ("delayline-in/0/1", "message-too-large")


def test_many_messages_to_a_topic_that_takes_little_are_released_at_the_first_try_among_those_of_others(
    bench: ReleaseBench, small: str, make_topic: MakeTopic, rings: list[int]
) -> None:
    large = make_topic()
    rows = [
        {"offset": n, "output_topic": (small, large)[n % 2], "key": b"k", "value": b"%d" % n * 100, "deliver_at_ms": 70}
        for n in range(1_000)
    ]
    assert bench.release(messages(rows)) == 1_000
    for topic, first in ((small, 0), (large, 1)):
        assert contents(bench.read(topic)) == [b"%d" % n * 100 for n in range(first, 1_000, 2)]
    assert len(rings) == 1


def test_many_dead_letters_to_a_topic_that_takes_little_are_written_at_the_first_try(
    bench: ReleaseBench, small: str, rings: list[int]
) -> None:
    assert bench.release(batch_to(small, *[b"x" * 6_000] * 20)) == 20
    assert len(bench.read(bench.dead_letter)) == 20
    assert len(rings) == 1


def test_only_the_topic_that_would_refuse_a_message_is_asked_for_its_limits_again_and_not_for_each_transaction(
    bench: ReleaseBench, small: str, make_topic: MakeTopic, asked: list[set[str]]
) -> None:
    other = make_topic()
    bench.waits = Waits(fresh=3_600.0)
    bench.change("release.transaction_messages=5")
    release = bench.start()
    for due in (batch_to(small, *[b"x" * 6_000] * 20), batch_to(other, b"a", first=20)):
        bench.stage(due)
        bench.wait(release)
    assert asked == [{small, bench.dead_letter}, {other}]
    release._writer.topics.waits = Waits(fresh=0.0)
    bench.stage(pa.concat_tables([batch_to(other, b"b", first=21), batch_to(small, b"x" * 6_000, first=22)]))
    bench.wait(release)
    assert asked[2:] == [{small, bench.dead_letter}]


def test_a_dead_letter_goes_where_kafkas_own_partitioner_sends_its_key(bench: ReleaseBench, small: str) -> None:
    keys = [b"%d" % n for n in range(20)]
    large = {"deliver_at_ms": 1, "output_topic": small, "value": b"x" * 6_000}
    assert bench.release(messages({**large, "offset": n, "key": key} for n, key in enumerate(keys))) == 20
    landed = {message.key(): message.partition() for message in bench.read(bench.dead_letter)}
    expected = partitions_for(pa.array(keys, pa.binary()), np.zeros(20, np.int64), np.full(20, 2))
    assert [landed[key] for key in keys] == expected.tolist()


def _ids(delivered: list[Message]) -> set[str | None]:
    return {received(message, 0).id for message in delivered}


def test_a_message_too_large_becomes_a_dead_letter_and_the_rest_follows_in_order_while_the_limit_changes(
    bench: ReleaseBench, topic: str, limit: Callable[[str, int], None]
) -> None:
    bench.waits = Waits(fresh=0.0)
    release = bench.start()

    def go(due: pa.Table) -> None:
        bench.stage(due)
        bench.wait(release)

    large, many = b"x" * 6_000, [b"%d" % n for n in range(1_000)]
    go(batch_to(topic, b"a", large, b"b"))
    limit(topic, 5_000)
    # The client batches many small messages. That their batch is too large must not make them dead letters.
    go(batch_to(topic, b"c", large, *many, large, b"d", first=10))
    go(batch_to(topic, b"e", large, b"f", first=2_000))
    limit(topic, 10_000)
    go(batch_to(topic, b"g", large, first=3_000))

    assert contents(bench.read(topic)) == [b"a", large, b"b", b"c", *many, b"d", b"e", b"f", b"g", large]
    letters = bench.read(bench.dead_letter)
    assert _ids(letters) == {f"delayline-in/0/{offset}" for offset in (11, 1_012, 2_001)}
    assert contents(letters) == [large] * 3
    assert len({message.partition() for message in letters}) == 1, "dead letters of one key in two partitions"
    letter_headers = dict(received(letters[0], 0).headers)
    assert letter_headers["delayline-error"] == b"message-too-large"
    assert b"max.message.bytes of " + topic.encode() + b" is 5000" in (letter_headers["delayline-error-text"] or b"")
    assert "delayline-deliver-at" not in letter_headers
    # If it is resent, its delay counts from then. The record itself is new, so that no topic deletes it for its age.
    assert letter_headers["delayline-timestamp"] == b"30"
    assert letters[0].timestamp()[1] > now_ms() - 600_000


def test_with_compression_only_the_broker_decides_what_is_too_large(bench: ReleaseBench, small: str) -> None:
    bench.change("kafka.compression.type=lz4")
    fits, noise = b"0" * 15_000, os.urandom(6_000)
    assert bench.release(batch_to(small, b"a", fits, noise, b"b", fits, noise)) == 6
    assert contents(bench.read(small)) == [b"a", fits, b"b", fits]
    assert contents(bench.read(bench.dead_letter)) == [noise, noise]


@pytest.mark.parametrize("is_hidden", [False, True])
@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_a_message_too_large_for_the_dead_letter_topic_too_becomes_a_stub(
    bench: ReleaseBench, small: str, monkeypatch: pytest.MonkeyPatch, is_hidden: bool, compression: str
) -> None:
    bench.change(f"kafka.compression.type={compression}")
    if is_hidden:
        monkeypatch.setattr(known_topics, "read_limits", lambda _, topics: dict.fromkeys(topics, TopicLimits()))
    large = os.urandom(30_000)
    assert bench.release(batch_to(small, b"a", large, b"b")) == 3
    assert contents(bench.read(small)) == [b"a", b"b"]
    (record,) = bench.read(bench.dead_letter)
    letter = read_letter(received(record, 0))
    assert letter is not None
    assert (letter.id, letter.code, letter.key, letter.value) == ("delayline-in/0/1", "message-too-large", b"k", None)
    assert letter.stub == Stub(1, 30_000, hashlib.sha256(large).hexdigest(), 0)
    assert letter.headers == []


def test_a_dead_letter_topic_that_takes_no_stub_stops_the_release_and_nothing_is_lost(
    bench: ReleaseBench, small: str, limit: Callable[[str, int], None]
) -> None:
    limit(bench.dead_letter, 300)
    with pytest.raises(TopicMismatch, match=rf"topic {bench.dead_letter} refuses message delayline-in/0/1 and also"):
        bench.release(batch_to(small, b"a", b"x" * 30_000, b"b"))
    assert bench.read(small) == bench.read(bench.dead_letter) == []
    limit(bench.dead_letter, 40_000)
    assert bench.release() == 3
    assert (contents(bench.read(small)), len(bench.read(bench.dead_letter))) == ([b"a", b"b"], 1)


@pytest.mark.parametrize("is_output", [False, True])
def test_a_dead_letter_topic_that_refuses_stubs_unseen_stops_the_release_too(
    bench: ReleaseBench, small: str, limit: Callable[[str, int], None], monkeypatch: pytest.MonkeyPatch, is_output: bool
) -> None:
    monkeypatch.setattr(known_topics, "read_limits", lambda _, topics: dict.fromkeys(topics, TopicLimits()))
    limit(bench.dead_letter, 300)
    with pytest.raises(TopicMismatch, match=rf"topic {bench.dead_letter} refuses message delayline-in/0/0 and also"):
        bench.release(batch_to(bench.dead_letter if is_output else small, b"x" * 30_000))


@pytest.mark.parametrize("over", [0, 1])
def test_a_record_of_exactly_the_limit_is_released(bench: ReleaseBench, small: str, over: int) -> None:
    def due(size: int) -> pa.Table:
        pairs = [("a", None), ("ö" * 80, b"1"), ("", b"")]
        rows = [{"deliver_at_ms": 1, "output_topic": small, "value": b"x" * size, "headers": headers(*pairs)}]
        return messages(rows)

    taken = record_bytes(next(records(due(4_500).to_batches()[0])))
    assert bench.release(due(4_500 + 5_000 - taken + over)) == 1
    assert (len(bench.read(small)), len(bench.read(bench.dead_letter))) == (1 - over, over)


def test_an_upper_bound_of_a_records_bytes_is_never_too_low() -> None:
    rows = [
        {"value": b"x" * size, "key": b"k" * size, "headers": headers(*[("ö" * size, b"v" * size)] * size)}
        for size in (0, 1, 63, 64, 200)
    ] + [{"value": None, "headers": None, "error_code": "bad", "error_text": "e" * 2_000}]
    (batch,) = messages(rows).slice(1).combine_chunks().to_batches()
    exact = [record_bytes(record) for record in records(batch)]
    assert all(most >= size for most, size in zip(bytes_at_most(batch).tolist(), exact, strict=True))
