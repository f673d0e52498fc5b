"""Options of [kafka] that would slow or stop a release if its producers had them."""

from __future__ import annotations

import pytest

from sinks.release.waits import Waits
from tests.messages import messages
from tests.sinks.release.bench import ReleaseBench


@pytest.mark.parametrize(
    "options",
    [
        ["batch.num.messages=1", "batch.size=1"],
        pytest.param(["linger.ms=900000"], marks=pytest.mark.thorough),
        ["queue.buffering.max.ms=900000"],
        ["max.in.flight=1", "retries=1"],
        ["message.max.bytes=1000", "batch.size=2000000000"],
        ["compression.type=zstd", "message.max.bytes=1000"],
        ["delivery.timeout.ms=0", "queue.buffering.max.messages=1"],
        ["socket.max.fails=1", "topic.metadata.refresh.interval.ms=-1", "metadata.max.age.ms=1"],
        ["message.max.bytes=1000000000", "enable.random.seed=false"],
        ["fetch.max.bytes=2147483135", "queued.max.messages.kbytes=1", "max.partition.fetch.bytes=1"],
    ],
    ids=" ".join,
)
def test_no_option_of_the_client_stops_a_release_or_makes_each_message_wait(
    bench: ReleaseBench, topic: str, options: list[str]
) -> None:
    # The client sends a batch that is not full when this is over, or when it is flushed.
    bench.waits = Waits(linger=20.0)
    bench.change(*(f"kafka.{option}" for option in options))
    sent = [b"%020000d" % n for n in range(100)]
    rows = [{"offset": n, "output_topic": topic, "key": b"k", "value": value} for n, value in enumerate(sent)]
    assert bench.release(messages({**row, "deliver_at_ms": 70} for row in rows)) == 100
    assert [message.value() for message in bench.read(topic)] == sent
