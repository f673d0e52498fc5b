"""Dead letters that the dead-letter topic refuses, against a real broker: what becomes of them."""

from __future__ import annotations

import pytest

from sinks.release.wall_clock import now_ms
from sources.dead_letters.letter import read_letter
from sources.subscriber import received
from tests.conftest import Configure
from tests.messages import headers
from tests.sinks.release.bench import ReleaseBench
from tests.sinks.release.conftest import HostClock
from tests.sinks.release.refusing_topics import FEW_SECONDS, due_to
from tests.sinks.release.topic_records import values


@pytest.mark.parametrize("redirected", [True, False])
def test_a_dead_letter_that_its_topic_refuses_for_its_missing_key_becomes_a_stub_with_one(
    visible_or_hidden: ReleaseBench, compacted: str, configure: Configure, redirected: bool
) -> None:
    bench = visible_or_hidden
    configure(bench.dead_letter, **{"cleanup.policy": "compact"})
    rejected = {"output_topic": bench.dead_letter, "error_code": "bad-deliver-at", "error_text": "no instant"}
    due = due_to(compacted, [{}, {"key": None, **({} if redirected else rejected)}, {}])
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
    assert bench.release(due_to(compacted, [{}, rejected, {}])) == 3
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
    due = due_to(bench.dead_letter, [{}, {"key": None, "headers": headers(("trace", b"7"))}, {}])
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
    configure(bench.dead_letter, **FEW_SECONDS)
    assert bench.release(due_to(bench.dead_letter, [{}, {"deliver_at_ms": now_ms() - 30_000}, {}])) == 3
    records = [received(record, 0) for record in bench.read(bench.dead_letter)]
    assert {record.value for record in records} == {b"0", b"1", b"2"}
    (letter,) = filter(None, map(read_letter, records))
    assert (letter.value, letter.code, letter.stub) == (b"1", "record-refused", None)


def test_a_dead_letter_with_a_time_that_its_topic_refuses_becomes_a_stub_without_one(
    visible_or_hidden: ReleaseBench, clock: HostClock, topic: str, configure: Configure
) -> None:
    bench = visible_or_hidden
    configure(bench.dead_letter, **{"message.timestamp.after.max.ms": "3600000"})
    # This host's clock is two hours ahead of the broker's.
    clock.ahead_ms = 2 * 3_600_000
    rejected = {"output_topic": bench.dead_letter, "error_code": "bad-deliver-at", "error_text": "no instant"}
    assert bench.release(due_to(topic, [{}, rejected, {}])) == 3
    assert values(bench.read(topic)) == [0, 2]
    (record,) = bench.read(bench.dead_letter)
    letter = read_letter(received(record, 0))
    assert letter is not None
    assert letter.stub is not None
    assert (letter.id, letter.stub.value_bytes) == ("delayline-in/0/1", 1)
