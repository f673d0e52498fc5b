"""The status that the running job says, with the broker's part."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

from conf.settings import Settings
from sinks.topics.topics import ensure_topics
from state.buckets.segments import ANY_SHARD, Segment
from state.checkpoint.planned_batch import PlannedBatch
from state.due_spans import DueRun
from streaming.cli.app import app
from streaming.local.free_port import free_port
from streaming.monitor.estimate import MutableDues
from streaming.monitor.job_metrics import JobCounts
from streaming.monitor.job_status import JobStatus, LastMerge, Merges
from streaming.monitor.server import Health, MonitorServer
from streaming.monitor.table_state import TableState
from streaming.status import storage_reader
from streaming.status.running import status_of_job
from streaming.storage.paths import checkpoint_path

MERGES = Merges(1, 3, 4.5, LastMerge(940_000, 1_500, 16))
CHECKPOINT = checkpoint_path(Settings(), "checkpoint")


@contextmanager
def job_that_says(status: JobStatus | None) -> Iterator[str]:
    """A process that answers like a job, and its address."""
    with MonitorServer("monitor.job", "127.0.0.1:0", CollectorRegistry(), Health, lambda: status) as server:
        yield server.address


def with_monitor(settings: Settings, address: str) -> Settings:
    return settings.model_copy(update={"monitor": settings.monitor.model_copy(update={"job": address})})


def options_of(settings: Settings) -> list[str]:
    overrides = {
        "kafka.bootstrap_servers": settings.kafka.bootstrap_servers,
        "application_id": settings.application_id,
        "topics.input": ",".join(settings.topics.input),
    }
    return [part for key, value in overrides.items() for part in ("--set", f"{key}={value}")]


def status_of(application_id: str, checkpoint: str = CHECKPOINT) -> JobStatus:
    counts = JobCounts(lambda: 1_000.0)
    counts.recovered(checkpoint)
    counts.batch_done(
        PlannedBatch(3, 900_000, 960_000, {}),
        {},
        {},
        0,
        0,
        {0: MutableDues([DueRun(1_030_000, 1_030_000, 4)], 40)},
    )
    counts.reported(3, mutable_buckets=1, lag={"in": 7})
    counts.table_now(TableState([Segment(1, ANY_SHARD, 0, "p", 5_000_000, 5_000_000, 9, 90)], buckets=1, merges=MERGES))
    status = counts.status(application_id, 2)
    assert status is not None
    return status


def test_the_command_shows_what_the_job_says_and_starts_no_spark(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_reader, "open_session", lambda *_: pytest.fail("Spark was to be started"))
    ensure_topics(settings, 1)
    arguments = ["status", *options_of(settings)]
    with job_that_says(status_of(settings.application_id)) as address:
        arguments += ["--set", f"monitor.job={address}"]
        shown = CliRunner().invoke(app, [*arguments, "--format", "json"])
        assert shown.exit_code == 0, shown.output
        status = json.loads(shown.stdout)
        table = CliRunner().invoke(app, arguments).stdout.splitlines()
    assert (status["read_from"], status["committed_batch"]["batch_id"]) == ("job", 3)
    assert (status["waiting"]["total"], status["waiting"]["mutable"], status["waiting"]["merged"]) == (13, 4, 9)
    assert (status["due"]["1m"], status["due"]["6h"], status["next_due_ms"]) == (4, 9, 1_030_000)
    assert status["input_lag"]["total"] == 0
    last = {"at_ms": 940_000, "took_ms": 1_500, "buckets": 16}
    assert status["merges"] == {"running": 1, "finished": 3, "seconds": 4.5, "last": last}
    merges = "1 running; 3 finished since the start, the last 1 min ago: 16 buckets in 1.5 s"
    assert f"merges             {merges}" in table
    assert table[0] == f"checkpoint         {CHECKPOINT}; this is from the running job"
    assert [line.split() for line in table if line.strip().startswith("merged")] == [["merged", "9"]]


def test_the_command_shows_what_lies_behind_an_open_transaction(settings: Settings) -> None:
    ensure_topics(settings, 1)
    (topic,) = settings.topics.input
    producer = Producer({"bootstrap.servers": settings.kafka.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    for _ in range(3):
        producer.produce(topic, b"open")
    assert producer.flush(10) == 0
    arguments = ["status", *options_of(settings)]
    with job_that_says(status_of(settings.application_id)) as address:
        arguments += ["--set", f"monitor.job={address}"]
        lag = json.loads(CliRunner().invoke(app, [*arguments, "--format", "json"]).stdout)["input_lag"]
        table = CliRunner().invoke(app, arguments).stdout.splitlines()
    assert (lag["total"], lag["held"]) == (0, 3)
    assert lag["partitions"] == [
        {"topic": topic, "partition": 0, "read_offset": 0, "end_offset": 0, "held": 3, "lag": 0}
    ]
    assert "input lag          0 records; 3 more behind open transactions of publishers" in table
    assert table[-1] == f"       0         3  {topic}/0, read up to 0 of 0"
    producer.abort_transaction(10)


def test_top_shows_it_again_and_again_and_goes_on_without_an_answer(settings: Settings) -> None:
    ensure_topics(settings, 1)
    arguments = ["top", "--every", "500ms", "--times", "2", *options_of(settings)]
    with job_that_says(status_of(settings.application_id)) as address:
        shown = CliRunner().invoke(app, [*arguments, "--set", f"monitor.job={address}"])
    assert shown.exit_code == 0, shown.output
    assert (
        shown.stdout.count(
            f"  {settings.application_id}\n\nwaiting            13 messages; 0 ready, 4 mutable, 9 sealed"
        )
        == 2
    )
    shown = CliRunner().invoke(app, [*arguments, "--set", f"monitor.job=127.0.0.1:{free_port()}"])
    assert shown.exit_code == 0, shown.output
    assert (
        shown.stdout.count(
            "does not answer, does not yet know which messages wait, "
            "or belongs to another application (application_id, storage.path)\n"
        )
        == 2
    )


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [([], "monitor.job is not set"), (["--every", "1ms"], "--every 1ms: allowed is 500ms or longer")],
)
def test_top_needs_an_address_and_a_pause(arguments: list[str], problem: str) -> None:
    refused = CliRunner().invoke(app, ["top", *arguments], env={"DELAYLINE_CONFIG": None})
    assert (refused.exit_code, problem in refused.stderr) == (2, True)


def test_what_is_read_instead_if_the_job_cannot_say(settings: Settings) -> None:
    assert status_of_job(settings) is None
    assert status_of_job(with_monitor(settings, f"127.0.0.1:{free_port()}")) is None
    # It has just begun.
    with job_that_says(None) as address:
        assert status_of_job(with_monitor(settings, address)) is None
    with job_that_says(status_of("another")) as address:
        assert status_of_job(with_monitor(settings, address)) is None
    # A test's job, on the same host.
    with job_that_says(status_of(settings.application_id, "/elsewhere/checkpoint")) as address:
        assert status_of_job(with_monitor(settings, address)) is None
