"""A broker that answers with errors that concern one topic, or one transaction, and that no setting brings about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import NewTopic

from conf.errors import BrokerUnreachable
from sinks.release import narrowing
from sources.dead_letters.letter import read_letter
from sources.subscriber import received
from streaming.local.broker import EmbeddedBroker
from streaming.local.free_port import free_port
from tests.messages import messages
from tests.quick_java import quick_broker
from tests.refusing_proxy import RefusingProxy
from tests.sinks.release.bench import ReleaseBench
from tests.sinks.release.conftest import MakeBench
from tests.sinks.release.topic_records import create_topics, values

_ALWAYS = 1_000_000


@pytest.fixture(scope="module")
def proxy() -> Iterator[RefusingProxy]:
    """The proxy through which all clients reach `refusing`."""
    made = RefusingProxy()
    yield made
    made.close()


@pytest.fixture(scope="module")
def refusing(java: str, proxy: RefusingProxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker that names the proxy's address as its own."""
    proxy.target = free_port("127.0.0.1")
    own = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"}
    with quick_broker(tmp_path_factory.mktemp("refusing"), proxy.target, properties=own, heap="512m") as running:
        yield running


@pytest.fixture
def bench(refusing: EmbeddedBroker, proxy: RefusingProxy, make_bench: MakeBench) -> Iterator[ReleaseBench]:
    """An application of `refusing`, and another topic, `<application_id>-other`."""
    made = make_bench(refusing)
    create_topics(refusing, NewTopic(_other(made), 1, 1))
    proxy.changed = 0
    yield made
    proxy.refuse.clear()
    proxy.fail_commits = proxy.fail_descriptions = 0


def _other(bench: ReleaseBench) -> str:
    return f"{bench.settings.application_id}-other"


def _due(bench: ReleaseBench, count: int, first: int = 0) -> pa.Table:
    """Return messages to the output topic and to the other one in turn, with their numbers as values."""
    topics = bench.settings.topics.output, _other(bench)
    return messages(
        {"offset": n, "output_topic": topics[n % 2], "key": b"k", "value": b"%d" % n, "deliver_at_ms": 70}
        for n in range(first, first + count)
    )


def _some_thorough(codes: list[int], always: set[int]) -> list[Any]:
    return [pytest.param(code, marks=[] if code in always else [pytest.mark.thorough]) for code in codes]


@pytest.mark.parametrize(
    "code",
    _some_thorough(
        [KafkaError.POLICY_VIOLATION, KafkaError.UNKNOWN, KafkaError.INVALID_CONFIG, KafkaError.TOPIC_EXCEPTION],
        always={KafkaError.POLICY_VIOLATION},
    ),
)
def test_what_a_topic_refuses_with_any_error_becomes_dead_letters_and_the_rest_follows_in_order(
    bench: ReleaseBench, proxy: RefusingProxy, code: int
) -> None:
    bench.change("release.transaction_messages=6")
    proxy.refuse[_other(bench)] = code, _ALWAYS
    assert bench.release(_due(bench, 6), _due(bench, 6, first=6)) == 12
    assert values(bench.read(bench.settings.topics.output)) == [*range(0, 12, 2)]
    assert bench.read(_other(bench)) == []
    letters = bench.read(bench.dead_letter)
    assert sorted(values(letters)) == [*range(1, 12, 2)]
    for each in letters:
        letter = read_letter(received(each, 0))
        assert letter is not None
        assert letter.code == "record-refused"
        assert KafkaError(code).name() in letter.text


@pytest.mark.parametrize("code", [KafkaError.UNKNOWN, KafkaError.KAFKA_STORAGE_ERROR, KafkaError.INVALID_MSG])
@pytest.mark.parametrize("count", [2, pytest.param(10, marks=pytest.mark.thorough)])
def test_an_error_of_a_topic_that_passes_makes_no_dead_letter(
    bench: ReleaseBench, proxy: RefusingProxy, code: int, count: int
) -> None:
    proxy.refuse[_other(bench)] = code, 1
    assert bench.release(_due(bench, count)) == count
    assert proxy.changed == 1
    assert values(bench.read(bench.settings.topics.output)) == [*range(0, count, 2)]
    assert values(bench.read(_other(bench))) == [*range(1, count, 2)]
    assert bench.read(bench.dead_letter) == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    "code",
    _some_thorough(
        [KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_TIMESTAMP], always={KafkaError.INVALID_TIMESTAMP}
    ),
)
def test_a_topic_that_refuses_whatever_it_gets_loses_no_message_and_stops_no_other_topic(
    bench: ReleaseBench, proxy: RefusingProxy, code: int
) -> None:
    proxy.refuse[_other(bench)] = code, _ALWAYS
    assert bench.release(_due(bench, 20)) == 20
    assert values(bench.read(bench.settings.topics.output)) == [*range(0, 20, 2)]
    assert sorted(values(bench.read(bench.dead_letter))) == [*range(1, 20, 2)]


def test_a_topic_that_refuses_a_transaction_too_often_gets_nothing_of_it(
    bench: ReleaseBench, proxy: RefusingProxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(narrowing, "MOST_REWRITES", 3)
    proxy.refuse[_other(bench)] = KafkaError.MSG_SIZE_TOO_LARGE, _ALWAYS
    assert bench.release(_due(bench, 200)) == 200
    assert proxy.changed == 3
    assert sorted(values(bench.read(bench.dead_letter))) == [*range(1, 200, 2)]
    (line,) = (each.getMessage() for each in caplog.records if "writing a transaction again" in each.getMessage())
    assert _other(bench) in line


def test_a_topic_that_a_broker_cannot_describe_counts_as_one_that_hides_its_limits(
    bench: ReleaseBench, proxy: RefusingProxy
) -> None:
    proxy.fail_descriptions = KafkaError.POLICY_VIOLATION
    assert bench.release(_due(bench, 4)) == 4
    assert proxy.changed > 0
    assert values(bench.read(bench.settings.topics.output)) == [0, 2]
    assert bench.read(bench.dead_letter) == []


def test_commits_that_always_fail_end_the_release_after_the_limit_of_an_outage(
    bench: ReleaseBench, proxy: RefusingProxy
) -> None:
    bench.change("kafka.outage_limit=3s")
    proxy.fail_commits = KafkaError.INVALID_PRODUCER_ID_MAPPING
    with pytest.raises(BrokerUnreachable, match=r"for 3 s \(kafka\.outage_limit\)"):
        bench.release(_due(bench, 2))
    proxy.fail_commits = 0
    assert bench.release() == 2
    assert values(bench.read(bench.settings.topics.output)) == [0]
