"""Looks through the session of a job: who is answered, one at a time, for so long. Spark is real, the job is not."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession

from conf.errors import StorageFailed
from conf.load import load_settings
from conf.settings import Settings
from streaming.local.free_port import free_port
from streaming.monitor.look_door import LookDoor, Reply
from streaming.monitor.server import Health, MonitorServer
from streaming.status import job_looks, storage_reader
from streaming.status.job_looks import JobLooks
from streaming.status.look import Look
from streaming.status.look_reader import LookReader, NotThroughTheJob, look_through_job
from streaming.status.look_request import decoded_rows, encoded_request
from streaming.status.sealed_rows import ReadLimits, TooMuchToRead
from streaming.status.waiting_rows import ROW_SCHEMA
from streaming.storage.paths import storage_path

# On a busy machine, the first look of a new session takes a while.
_LONG_S = 300.0


def _nothing_forwarded() -> int:
    return 0


@pytest.fixture
def settings(tmp_path: object) -> Settings:
    """Settings of an application that has stored nothing."""
    return load_settings(None, [f"storage.path={tmp_path}", "kafka.bootstrap_servers=127.0.0.1:1"], environ={})


@contextmanager
def served(settings: Settings, looks: JobLooks) -> Iterator[Settings]:
    """Let a job's server answer looks, and give settings with its address."""
    door = LookDoor(settings.web.token, looks.reply)
    server = MonitorServer("monitor.job", "127.0.0.1:0", CollectorRegistry(), Health, looks=door)
    with server:
        yield settings.model_copy(update={"monitor": settings.monitor.model_copy(update={"job": server.address})})


def _request(settings: Settings, wanted: Look = Look()) -> bytes:  # noqa: B008, it is frozen
    return encoded_request(wanted, settings.application_id, storage_path(settings))


def _error(reply: Reply) -> tuple[int, str]:
    return reply.status, json.loads(reply.body)["error"]


def _table(*cut: bool) -> pa.Table:
    fields = dict.fromkeys(ROW_SCHEMA.names)
    return pa.Table.from_pylist([fields | {"is_cut": each} for each in cut], schema=ROW_SCHEMA)


def test_the_job_answers_as_long_as_it_has_a_session(spark: SparkSession, settings: Settings) -> None:
    looks = JobLooks(settings, most_s=_LONG_S)
    with served(settings, looks) as found:
        with pytest.raises(NotThroughTheJob, match="the job is starting or stopping"):
            look_through_job(found, Look())
        with looks.through(spark, _nothing_forwarded):
            assert look_through_job(found, Look(), _LONG_S) == ROW_SCHEMA.empty_table()
        with pytest.raises(NotThroughTheJob, match="the job is starting or stopping"):
            look_through_job(found, Look())
        # A job that starts again, as after an outage.
        with looks.through(spark, _nothing_forwarded):
            assert look_through_job(found, Look(), _LONG_S).num_rows == 0


def test_a_look_runs_in_the_pool_of_maintenance(
    spark: SparkSession, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools = list[str | None]()

    def read(session: SparkSession, *_: object) -> pa.Table:
        pools.append(session.sparkContext.getLocalProperty("spark.scheduler.pool"))
        return _table()

    monkeypatch.setattr(job_looks, "look", read)
    looks = JobLooks(settings)
    with looks.through(spark, _nothing_forwarded):
        assert looks.reply(_request(settings)).status == 200
    assert pools == ["maintenance"]
    assert spark.sparkContext.getLocalProperty("spark.scheduler.pool") is None


def test_another_application_and_a_wrong_request_are_refused(spark: SparkSession, settings: Settings) -> None:
    looks = JobLooks(settings)
    with looks.through(spark, _nothing_forwarded):
        for application_id, storage in ((settings.application_id, "/elsewhere"), ("another", storage_path(settings))):
            status, error = _error(looks.reply(encoded_request(Look(), application_id, storage)))
            assert (status, "of another application" in error) == (409, True)
        assert looks.reply(b"{").status == 400


def test_a_second_look_waits_for_its_turn_and_is_then_refused(
    spark: SparkSession, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def read(*_: object) -> pa.Table:
        begun.set()
        assert go_on.wait(60)
        return _table()

    monkeypatch.setattr(job_looks, "look", read)
    looks = JobLooks(settings, turn_s=0.1, most_s=60)
    with looks.through(spark, _nothing_forwarded), ThreadPoolExecutor() as clients:
        first = clients.submit(looks.reply, _request(settings))
        assert begun.wait(60)
        assert _error(looks.reply(_request(settings))) == (429, "another look is running. Try again")
        go_on.set()
        assert first.result().status == 200
        assert looks.reply(_request(settings)).status == 200


def _never_end(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    time.sleep(600)
    yield from batches


def test_a_look_that_takes_too_long_is_cancelled_and_so_is_one_at_the_jobs_end(
    spark: SparkSession, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    def read(session: SparkSession, *_: object) -> pa.Table:
        begun.set()
        rows: pa.Table = session.range(2).mapInArrow(_never_end, "id long").toArrow()
        return rows

    def through_retries(session: SparkSession, *_: object) -> pa.Table:
        return storage_reader.retry_while_files_vanish(lambda: read(session), "here")

    monkeypatch.setattr(job_looks, "look", through_retries)
    looks = JobLooks(settings, most_s=1)
    with looks.through(spark, _nothing_forwarded):
        assert _error(looks.reply(_request(settings))) == (504, "the look took longer than 1 s")
        # The next one has its turn.
        assert looks.reply(_request(settings)).status == 504
    begun.clear()
    looks = JobLooks(settings)
    with ThreadPoolExecutor() as clients:
        with looks.through(spark, _nothing_forwarded):
            last = clients.submit(looks.reply, _request(settings))
            assert begun.wait(60)
        assert last.result(60).status == 503
    # The session does what others want of it.
    assert spark.range(3).count() == 3


def test_a_failure_of_the_storage_is_an_answer(
    spark: SparkSession, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object) -> pa.Table:
        raise StorageFailed("the disk is gone")

    monkeypatch.setattr(job_looks, "look", read)
    looks = JobLooks(settings)
    with looks.through(spark, _nothing_forwarded):
        assert _error(looks.reply(_request(settings))) == (503, "storage-failed: the disk is gone")


def test_a_look_that_is_too_large_for_the_job_is_refused(
    spark: SparkSession, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = list[int | None]()

    def read(_: SparkSession, __: Settings, wanted: Look, limits: ReadLimits) -> pa.Table:
        assert limits == ReadLimits(128 * 1024 * 1024, _nothing_forwarded)
        shown.append(wanted.shown_bytes)
        if wanted.topic == "large":
            raise TooMuchToRead
        return _table(False, wanted.key is not None)

    monkeypatch.setattr(job_looks, "look", read)
    looks = JobLooks(settings)
    with looks.through(spark, _nothing_forwarded):
        assert _error(looks.reply(_request(settings, Look(topic="large"))))[0] == 413
        # Whole messages: one is longer than the part that the job shows of each of 400.
        status, error = _error(looks.reply(_request(settings, Look(key=b"", limit=400))))
        assert (status, error) == (413, "the messages are too large for one answer. Look at fewer")
        assert looks.reply(_request(settings, Look(limit=400))).status == 200
        # It is cut where the client wants it.
        reply = looks.reply(_request(settings, Look(key=b"", limit=400, shown_bytes=2_000)))
        assert (reply.status, decoded_rows(reply.body).num_rows) == (200, 2)
        assert looks.reply(_request(settings, Look(key=b"", limit=10_000, shown_bytes=2_000))).status == 413
    assert shown == [209_715, 10_485, 10_485, 2_000, 419]


def test_without_a_job_a_spark_of_its_own_reads_and_the_reader_says_why(
    spark: SparkSession, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_reader, "open_session", lambda *_: spark)
    monkeypatch.setattr(storage_reader, "check_clients", lambda *_: None)
    monkeypatch.setattr(spark, "stop", lambda: None)
    said = list[str]()
    nobody = f"127.0.0.1:{free_port()}"
    for address, reason in (("", "monitor.job is not set"), (nobody, f"no answer from {nobody}")):
        alone = settings.model_copy(update={"monitor": settings.monitor.model_copy(update={"job": address})})
        with LookReader(alone) as reader:
            assert reader.look(Look(), said.append).num_rows == 0
        assert reason in said[-1]
    looks = JobLooks(settings, most_s=_LONG_S)
    with served(settings, looks) as found, LookReader(found, _LONG_S) as reader:
        assert reader.look(Look(), said.append).num_rows == 0
        assert "refused: the job is starting or stopping" in said[-1]
        with looks.through(spark, _nothing_forwarded):
            reader.look(Look(), pytest.fail)
    spark.sparkContext.setLogLevel("ERROR")
