"""Brokers forget a producer that was idle for long: a week by default, and two seconds here."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from sinks.release.ring import PRODUCERS
from tests.messages import messages
from tests.quick_java import quick_broker
from tests.sinks.release.bench import ReleaseBench
from tests.sinks.release.conftest import MakeBench
from tests.sinks.release.topic_records import ids

_EXPIRATION_S = 2
_FORGETFUL = {
    "transactional.id.expiration.ms": str(_EXPIRATION_S * 1000),
    "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
    "producer.id.expiration.ms": str(_EXPIRATION_S * 1000),
}


@pytest.fixture
def bench(java: str, tmp_path_factory: pytest.TempPathFactory, make_bench: MakeBench) -> Iterator[ReleaseBench]:
    with quick_broker(tmp_path_factory.mktemp("forgetful"), properties=_FORGETFUL, heap="512m") as broker:
        bench = make_bench(broker)
        yield bench
        bench.close()


@pytest.mark.thorough
@pytest.mark.takes(30)
def test_a_shard_that_was_idle_for_long_releases_again(bench: ReleaseBench, caplog: pytest.LogCaptureFixture) -> None:
    output = bench.settings.topics.output
    release = bench.start()
    staged = 0
    # Each producer of the ring in its turn, and a large transaction as well as one of a single record.
    for count in (1, 500):
        for _ in range(PRODUCERS // 4):
            rows = ({"offset": staged + n, "deliver_at_ms": 1, "output_topic": output} for n in range(count))
            bench.stage(messages(rows))
            staged += count
            bench.wait(release)
            time.sleep(3 * _EXPIRATION_S)
    bench.stop(release)
    # The case that this test is about has occurred.
    assert "Kafka does not answer" in caplog.text
    assert ids(bench.read(output)) == list(range(staged))
