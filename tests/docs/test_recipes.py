"""The recipes of docs/publish for a retry, a cancel and a replacement, run with kafka-python on a real broker.

The program of `tests/sources/intake/captured` runs the recipe for Spring.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pyarrow as pa
import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient
from kafka.errors import TopicAlreadyExistsError
from kafka.structs import TopicPartition

from conf.topic_tables import PRESETS
from sources.intake.accept import accept
from sources.intake.presets import presets_named
from streaming.local.broker import EmbeddedBroker
from tests.conftest import MakeTopic
from tests.docs.documents import ROOT
from tests.messages import PARTITIONS, headers, records, some_batch_settings

_PAGES = ROOT / "docs" / "publish"
_INPUT = "delayline-in"
_DUE_MS = 1_700_000_000_000
# A message that was published with a delay of an hour, as a subscriber receives it.
_RECEIVED = [
    ("trace", b"7"),
    ("deliver-after", b"1h"),
    ("deliver-to", b"orders"),
    ("trace", b"8"),
    ("delayline-id", b"delayline-in/0/1"),
    ("delayline-deliver-at", b"%d" % _DUE_MS),
]


def recipe(page: str, name: str) -> Any:
    """Return what the program of a page defines as `name`: a function, or a set of headers."""
    text = (_PAGES / f"{page}.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102, a reader of the document runs it too
    return names[name]


@pytest.fixture
def producer(broker: EmbeddedBroker, admin: KafkaAdminClient) -> Iterator[KafkaProducer]:
    """A producer, with the input topic that the document names."""
    with suppress(TopicAlreadyExistsError):
        admin.create_topics({_INPUT: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
    with closing(KafkaProducer(bootstrap_servers=broker.bootstrap)) as made:
        yield made


def _record(broker: EmbeddedBroker, sent: Any) -> Any:
    """Return the record of a `send`, as kafka-python receives it."""
    written = sent.get(30)
    return _read(broker, written.topic, written.partition, written.offset)


def _read(broker: EmbeddedBroker, topic: str, partition: int, offset: int) -> Any:
    place = TopicPartition(topic, partition)
    with closing(KafkaConsumer(bootstrap_servers=broker.bootstrap)) as consumer:
        consumer.assign([place])
        consumer.seek(place, offset)
        return next(consumer)


def _accepted(record: Any) -> dict[str, Any]:
    (message,) = _all_accepted(record)
    return message


def _all_accepted(record: Any) -> list[dict[str, Any]]:
    row = {
        "key": record.key,
        "value": record.value,
        "headers": headers(*record.headers),
        "timestamp_ms": record.timestamp,
    }
    batch_settings = some_batch_settings(allowed_outputs=("orders",), partitions=PARTITIONS | {"delayline-results": 1})
    accepted: list[dict[str, Any]] = accept(
        pa.table(records([row])), batch_settings, record.timestamp
    ).messages.to_pylist()
    return accepted


def test_a_received_message_that_is_published_again_by_the_recipe_is_delayed_from_now(
    broker: EmbeddedBroker, producer: KafkaProducer, topic: str
) -> None:
    retry = recipe("retrying", "retry")
    received = _record(broker, producer.send(topic, b"v", b"k", headers=_RECEIVED, timestamp_ms=_DUE_MS))
    assert received.headers == _RECEIVED
    again = _record(broker, retry(producer, received, "30s"))
    assert (again.topic, again.key, again.value) == (_INPUT, b"k", b"v")
    assert again.headers == [("trace", b"7"), ("deliver-to", b"orders"), ("trace", b"8"), ("deliver-after", b"30s")]
    message = _accepted(again)
    assert (message["error_code"], message["output_topic"]) == (None, "orders")
    assert message["deliver_at_ms"] == again.timestamp + 30_000
    # As kafka-python reads a header without a value, which it cannot write.
    nothing = received._replace(headers=[("empty", None)])
    assert _record(broker, retry(producer, nothing, "30s")).headers == [("empty", b""), ("deliver-after", b"30s")]
    assert again.timestamp > _DUE_MS + 3_600_000


def test_a_received_message_with_one_more_delay_header_is_refused(
    broker: EmbeddedBroker, producer: KafkaProducer, topic: str
) -> None:
    twice = [*_RECEIVED, ("deliver-after", b"30s")]
    message = _accepted(_record(broker, producer.send(topic, b"v", b"k", headers=twice)))
    assert message["error_code"] == "two-delays"


@pytest.mark.parametrize(
    "where",
    ["docs/publish/coming-from/spring-kafka.md", "tests/sources/intake/captured/spring-kafka/Capture.java"],
)
def test_the_recipe_for_spring_takes_out_what_that_for_a_retry_does_and_the_target(where: str) -> None:
    (names,) = re.findall(r"NOT_AGAIN = List\.of\((.*?)\);", (ROOT / where).read_text(), re.DOTALL)
    assert set(re.findall(r'"(\S+?)"', names)) == recipe("retrying", "NOT_AGAIN") | {"deliver-to"}


def test_each_preset_begins_with_the_lines_to_change() -> None:
    pages = [page.read_text() for page in sorted((_PAGES / "coming-from").glob("*.md"))]
    by_preset = {name: each for each in pages for name in re.findall(r"^Preset `(\S+)`\.", each, re.MULTILINE)}
    assert sorted(by_preset) == sorted(PRESETS)
    for preset in presets_named(PRESETS):
        before, _, after = by_preset[preset.name].partition("```diff\n")
        assert before.count("\n") < 5, f"{preset.name}: the lines to change come first"
        lines = after.partition("```")[0].splitlines()
        added = "\n".join(line for line in lines if line.startswith("+"))
        assert added
        assert any(line.startswith("-") for line in lines)
        headers = set(re.findall(r'"([A-Za-z]+[-_][\w-]+)"', added)) - {"orders-delayed"}
        assert headers <= {header.name for header in preset.schedule} | {preset.target, "deliver-to"}


def test_the_recipe_for_a_cancel_asks_for_the_message_in_its_own_partition(
    broker: EmbeddedBroker, producer: KafkaProducer, make_topic: MakeTopic
) -> None:
    cancel, topic = recipe("cancelling", "cancel"), make_topic(3)
    producer.send(topic, b"v", headers=[("deliver-after", b"1h")], partition=2).get()
    request_id = cancel(producer, f"{topic}/2/0")
    assert request_id == f"{topic}/2/1"
    message = _accepted(_read(broker, topic, 2, 1))
    assert (message["output_topic"], message["key"]) == ("delayline-results", f"{topic}/2/0".encode())


def test_the_recipe_for_a_replacement_publishes_it_behind_the_message_that_it_replaces(
    broker: EmbeddedBroker, producer: KafkaProducer, make_topic: MakeTopic
) -> None:
    replace, topic = recipe("replacing", "replace"), make_topic(3)
    producer.send(topic, b"v", headers=[("deliver-after", b"1h")], partition=2).get()
    assert replace(producer, f"{topic}/2/0", b"new", b"2h") == f"{topic}/2/1"
    record = _read(broker, topic, 2, 1)
    message, request = _all_accepted(record)
    assert (message["value"], message["deliver_at_ms"] - record.timestamp) == (b"new", 2 * 3_600_000)
    assert (request["output_topic"], request["key"]) == ("delayline-results", f"{topic}/2/0".encode())
