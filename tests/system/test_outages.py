"""The whole service while its broker dies and comes back: it waits, and continues by itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from streaming.local.broker import EmbeddedBroker
from tests.eventually import assert_eventually
from tests.quick_java import quick_broker
from tests.system.conftest import Application, MakeService
from tests.system.load import publish_mixed


@pytest.fixture(scope="module")
def broker(java: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A separate broker for these tests, instead of the one that all others share."""
    # It comes back in two seconds, not in nine.
    quick = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "500"}
    with quick_broker(tmp_path_factory.mktemp("outages"), properties=quick) as running:
        yield running


@pytest.mark.thorough
@pytest.mark.takes(60)
def test_the_job_waits_for_a_broker_that_dies_and_no_message_is_lost_duplicated_or_early(
    broker: EmbeddedBroker, application: Application, make_service: MakeService
) -> None:
    service, ledger = make_service("release.transaction_timeout=3s")
    service.start()

    def outage_warnings() -> int:
        assert service.is_running(), service.log[-3000:]
        return service.log.count("Kafka does not answer")

    # Killed in the middle of deliveries, and away until the transactions are given up.
    publish_mixed(ledger, application, 600, seed=1, longest_ms=15_000)
    assert_eventually(lambda: len(ledger.got) > 50, 60)
    broker.kill()
    assert_eventually(outage_warnings, 60)
    broker.start()
    seen = len(ledger.got)
    assert_eventually(lambda: len(ledger.got) > seen + 20, 60)
    # Killed while the job reads new records.
    publish_mixed(ledger, application, 300, seed=2, longest_ms=6_000)
    broker.kill()
    broker.start()
    publish_mixed(ledger, application, 100, seed=3, longest_ms=3_000)
    ledger.verify_after_outage(60)
    assert service.stop() == 0, service.log[-3000:]


@pytest.mark.thorough
def test_sigterm_while_the_broker_is_away_ends_the_job_and_the_next_start_continues(
    broker: EmbeddedBroker, application: Application, make_service: MakeService
) -> None:
    # How long Java's client asks for offsets before it gives up: a minute by default.
    quick = ["kafka.default.api.timeout.ms=5000", "kafka.request.timeout.ms=4000"]
    # A task is tried once, because each of four tries would wait for the broker again.
    quick += ["kafka.outage_limit=5s", "spark.spark.master=local[2,1]"]
    service, ledger = make_service("release.transaction_timeout=3s", *quick)
    publish_mixed(ledger, application, 300, seed=4, longest_ms=40_000)
    service.start()
    assert_eventually(lambda: len(ledger.got) > 30, 60)
    broker.kill()
    assert_eventually(lambda: "Kafka does not answer" in service.log, 60)
    # The job ends after the running batch. One that waits for the broker fails when the outage limit is over.
    # Java and librdkafka write to the same log, also after the error.
    code = service.stop()
    assert code == 0 or "\nerror: broker-unreachable: " in service.log, service.log[-3000:]
    assert "Traceback" not in service.log, service.log[-3000:]
    assert len(ledger.got) < len(ledger.sent)
    broker.start()
    service.start()
    ledger.verify_after_outage(60)


@pytest.mark.thorough
@pytest.mark.takes(60)
def test_a_start_that_loses_its_broker_waits_for_it_and_its_release_processes_go_on(
    broker: EmbeddedBroker, application: Application, make_service: MakeService
) -> None:
    # After a kill, a start waits for the holder of the lease: longer than a release process takes to get its shards.
    service, ledger = make_service("release.transaction_timeout=3s", "lease.period=20s")
    publish_mixed(ledger, application, 300, seed=5, longest_ms=60_000)
    service.start()
    assert_eventually(lambda: len(ledger.got) > 30, 60)
    service.kill()

    service.start(wait=False)
    assert_eventually(lambda: "group assigned" in service.log, 60)
    broker.kill()
    assert_eventually(lambda: len(re.findall("the (start|lease): Kafka does not answer", service.log)) > 1, 120)
    broker.start()
    assert_eventually(lambda: "\nrunning\n" in service.log, 120)
    started = re.findall(r"release process \S+ is \d+", service.log)
    assert len(started) == 1, service.log[-3000:]
    ledger.verify_after_outage(90)
    assert service.stop() == 0, service.log[-3000:]
