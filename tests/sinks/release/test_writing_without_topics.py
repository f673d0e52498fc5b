"""A release that goes on without a topic, ends, or waits for brokers to agree about it."""

from __future__ import annotations

from typing import cast

import pytest

from conf.errors import BrokerUnreachable, DelaylineError, RightMissing, TopicMismatch, TopicMissing
from conf.load import load_settings
from sinks.internal_topics.broker_retry import BrokerRetry
from sinks.internal_topics.position import Position
from sinks.release.context import ReleaseContext
from sinks.release.planned import Planned
from sinks.release.releases import Releases
from sinks.release.reports import Unwritable
from sinks.release.ring import Ring
from sinks.release.shard_beat import ShardBeat
from sinks.release.shard_rates import ShardRates
from sinks.release.shard_writer import ShardWriter
from tests.messages import messages
from tests.sinks.release.made_up_broker import GONE, OPEN, MadeUpBroker


class _Ring:
    """A ring that fails some times before it writes."""

    is_worn, longest_open_s = False, 0.0

    def __init__(self, failures: list[Exception]) -> None:
        self.failures = failures
        self.position = self.committed = None

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass

    def write(self, *_: object) -> dict[bytes, str]:
        if self.failures:
            raise self.failures.pop(0)
        return {}


def _writer(broker: MadeUpBroker, monkeypatch: pytest.MonkeyPatch, failures: list[Exception]) -> ShardWriter:
    settings = load_settings(None, ["kafka.outage_limit=3s"], environ={})
    context, beat = ReleaseContext(settings, "test"), ShardBeat(0, settings.kafka.outage_limit, broker)
    writer = ShardWriter(context, 0, beat, ShardRates(context, 0, beat), Releases(context))
    ring = cast(Ring, _Ring(failures))
    monkeypatch.setattr("sinks.release.shard_writer.Ring", lambda *_: ring)
    writer.open()
    return writer


@pytest.mark.parametrize(
    ("topic", "error", "raised"),
    [
        ("side", TopicMissing("gone"), None),
        ("side", RightMissing("barred"), None),
        ("delayline-out", TopicMissing("gone"), TopicMissing),
        ("delayline-dead-letter", RightMissing("barred"), RightMissing),
        ("delayline-position", TopicMismatch("short"), TopicMismatch),
    ],
)
def test_a_release_goes_on_without_a_topic_that_a_publisher_has_named_and_not_without_those_of_the_settings(
    broker_says: MadeUpBroker,
    monkeypatch: pytest.MonkeyPatch,
    topic: str,
    error: DelaylineError,
    raised: type[DelaylineError] | None,
) -> None:
    broker_says.topics["side"] = GONE
    writer = _writer(broker_says, monkeypatch, [Unwritable(topic, error)])
    planned = Planned(messages([{"output_topic": "side"}, {"offset": 1}]), Position(), 100)
    if raised is None:
        writer.write(planned, dict)
        assert list(writer.topics.closed.now) == ["side"]
    else:
        with pytest.raises(raised):
            writer.write(planned, dict)
        assert not writer.topics.closed.now


def test_a_topic_that_one_broker_has_and_another_does_not_is_waited_for_as_long_as_for_an_outage(
    broker_says: MadeUpBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[Exception] = []

    def wait(_: BrokerRetry, problem: Exception) -> None:
        waits.append(problem)
        if len(waits) == 3:
            raise BrokerUnreachable("for too long")

    monkeypatch.setattr(BrokerRetry, "wait", wait)
    broker_says.topics["side"] = OPEN
    writer = _writer(broker_says, monkeypatch, [Unwritable("side", TopicMissing("gone")) for _ in range(9)])
    with pytest.raises(BrokerUnreachable):
        writer.write(Planned(messages([{"output_topic": "side"}]), Position(), 100), dict)
    assert "brokers do not agree about side: topic-missing: gone" in str(waits[0])
