"""The job on a Spark cluster: two executors deliver, and the job survives the loss of a worker and of the driver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.cluster import Cluster
from conf.load import load_settings
from sinks.topics.topics import ensure_topics
from tests.eventually import assert_eventually
from tests.system.conftest import Application
from tests.system.ledger import Ledger
from tests.system.load import publish_mixed
from tests.system.submitted import Environment, SubmittedJob


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A master and two workers."""
    cluster = Cluster(tmp_path)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def ledger(application: Application) -> Iterator[Ledger]:
    """A ledger, with its topics."""
    ensure_topics(load_settings(None, application.overrides(), environ={}), partitions=2)
    with application.ledger() as ledger:
        yield ledger


@pytest.fixture
def job(application: Application, cluster: Cluster, ledger: Ledger, tmp_path: Path) -> Iterator[SubmittedJob]:
    """The submitted job. It ends with the test, before the ledger's final check."""
    job = SubmittedJob(tmp_path, Environment(tmp_path), cluster, application.overrides())
    try:
        yield job
    finally:
        job.stop()


@pytest.mark.thorough
@pytest.mark.takes(110)
def test_two_executors_deliver_and_after_killing_a_worker_and_the_driver_no_message_is_lost_duplicated_or_early(
    application: Application, cluster: Cluster, job: SubmittedJob, ledger: Ledger
) -> None:
    broker_port = int(application.bootstrap.rpartition(":")[2])
    job.start()
    assert_eventually(lambda: job.starts, 300, "the first start")
    publish_mixed(ledger, application, 300, seed=1, longest_ms=60_000)
    for name in ("worker-1", "worker-2"):
        assert_eventually(lambda: cluster.delivering(name, broker_port), 300, f"a delivery by {name}")  # noqa: B023
    # However many shards an executor has run.
    assert [cluster.daemons(name) for name in cluster.workers] == [1, 1]

    publish_mixed(ledger, application, 300, seed=2, longest_ms=8_000)
    cluster.kill_worker("worker-1")
    before = len(ledger.got)
    publish_mixed(ledger, application, 300, seed=3, longest_ms=8_000)
    assert_eventually(lambda: len(ledger.got) > before + 50, 300, "a delivery without the killed worker")
    assert job.starts == 1, "the driver did not survive it"
    cluster.start_worker("worker-1")

    publish_mixed(ledger, application, 300, seed=4, longest_ms=8_000)
    job.kill_driver()
    publish_mixed(ledger, application, 300, seed=5, longest_ms=8_000)
    assert_eventually(lambda: job.starts == 2, 300, "the start by the supervisor")
    ledger.verify_after_outage(90)


@pytest.mark.thorough
@pytest.mark.takes(150)
def test_a_job_that_a_restarted_master_does_not_know_ends_and_goes_on_when_it_is_started_again(
    application: Application, cluster: Cluster, ledger: Ledger, tmp_path: Path
) -> None:
    job = SubmittedJob(tmp_path, Environment(tmp_path), cluster, [*application.overrides(), "kafka.outage_limit=30s"])
    try:
        job.start()
        assert_eventually(lambda: job.starts, 300, "the first start")
        publish_mixed(ledger, application, 300, seed=1, longest_ms=8_000)
        assert_eventually(lambda: len(ledger.got) > 100, 300, "deliveries")
        cluster.restart_master()
        publish_mixed(ledger, application, 300, seed=2, longest_ms=60_000)
        assert_eventually(lambda: job.starts == 2, 300, "the start by the supervisor")
        assert "the running batch has had no executor for" in job.log
        ledger.verify_after_outage(90)
    finally:
        job.stop()
