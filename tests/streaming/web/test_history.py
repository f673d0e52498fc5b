"""The samples that the page takes from a job. A server stands for the job, and no broker runs."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry

from conf.load import load_settings
from conf.settings import Settings
from state.checkpoint.planned_batch import PlannedBatch
from state.due_spans import LATER, SPANS_MS
from streaming.monitor.estimate import WaitingInShard
from streaming.monitor.job_status import JobStatus, Merges
from streaming.monitor.server import Health, MonitorServer
from streaming.storage.paths import checkpoint_path
from streaming.web import history as module
from streaming.web.history import History
from tests.eventually import assert_eventually


class Job:
    """Answers as a job does."""

    def __init__(self) -> None:
        now_ms = time.time_ns() // 1_000_000
        batch = PlannedBatch(7, now_ms, now_ms, {})
        due = dict.fromkeys([*SPANS_MS, LATER], 0) | {LATER: 5}
        self.status: JobStatus | None = JobStatus(
            "mine",
            checkpoint_path(Settings(), "checkpoint"),
            now_ms,
            batch,
            None,
            [WaitingInShard(0, 2, 3, now_ms)],
            0,
            10,
            20,
            now_ms,
            1,
            4,
            due,
            Merges(2, 5, 1.5, None),
        )
        self.server = MonitorServer(
            "monitor.job",
            "127.0.0.1:0",
            CollectorRegistry(),
            Health,
            lambda: self.status,
            application_id="mine",
            process="job",
        )

    def settings(self) -> Settings:
        overrides = [f"monitor.job={self.server.address}", "application_id=mine", "kafka.bootstrap_servers=127.0.0.1:1"]
        return load_settings(None, overrides, environ={})


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    # Nobody answers for the broker.
    monkeypatch.setattr("sinks.internal_topics.newest_record._READ_TIMEOUT_S", 0.5)
    job = Job()
    yield job
    job.server.close()


def test_samples_are_taken_while_the_job_answers_and_their_status_is_the_newest(job: Job) -> None:
    with History(job.settings(), every_s=0.1, most_cpu=1.0) as history:
        assert_eventually(lambda: len(history.now(0)["samples"]) >= 2, 60)
        known = history.now(0)
        assert known["status"]["waiting"]["total"] == 5
        sample = known["samples"][0]
        assert (sample["waiting"], sample["buckets"], sample["segments"], sample["merging"]) == (5, 1, 4, 2)
        # The broker does not answer.
        assert (sample["lag"], sample["read"], sample["released"], sample["p99_ms"]) == (None, None, None, None)
        assert history.now(known["samples"][-1]["at_ms"] + 3_600_000)["samples"] == []
        job.status = None
        assert_eventually(lambda: history.now(0)["status"] is None, 60)


def test_an_unknown_error_is_logged_and_sampling_goes_on(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    status_of_job = module.status_of_job
    failed: list[bool] = []

    def first_failing(settings: Settings) -> object:
        if not failed:
            failed.append(True)
            raise RuntimeError("a defect")
        return status_of_job(settings)

    monkeypatch.setattr(module, "status_of_job", first_failing)
    with History(job.settings(), every_s=0.1, most_cpu=1.0) as history:
        assert_eventually(lambda: history.now(0)["samples"], 60)
    assert "could not take a sample" in caplog.text
    assert "a defect" in caplog.text


def test_the_problems_of_the_jobs_log_are_among_the_samples(job: Job) -> None:
    with History(job.settings(), every_s=0.1, most_cpu=1.0) as history:
        module.log.warning("something is wrong")
        assert_eventually(lambda: history.now(0)["problems"], 60)
        newest = history.now(0)["problems"][0]
    assert (newest["process"], newest["level"]) == ("job", "WARNING")
