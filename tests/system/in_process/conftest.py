"""A job inside the test's process, on the session that all tests share."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from pyspark.sql import SparkSession

from conf.settings import Settings
from streaming.spark.options import spark_options
from tests.system.conftest import MakeService
from tests.system.in_process.job import JobInProcess
from tests.system.ledger import Ledger

MakeJob = Callable[..., tuple[JobInProcess, Ledger]]


@pytest.fixture
def shared_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give commands that start Spark the shared session with their options, and keep them from stopping it."""
    before: dict[str, str | None] = {}

    def use_shared_session(settings: Settings, options: Mapping[str, str] | None = None) -> SparkSession:
        for name, value in {**spark_options(settings), **(options or {})}.items():
            if name.startswith("spark.sql.") and spark.conf.isModifiable(name):
                before.setdefault(name, spark.conf.get(name, None))
                spark.conf.set(name, value)
        return spark

    def restore_options() -> None:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)
        before.clear()
        # Clear the cache, which is keyed by path. A new process starts without it.
        jvm: Any = spark._jvm
        jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        # The job turns the log off when it ends.
        spark.sparkContext.setLogLevel("ERROR")

    for module in ("spark.exclusive_session", "status.storage_reader"):
        monkeypatch.setattr(f"streaming.{module}.open_session", use_shared_session)
    monkeypatch.setattr(spark, "stop", restore_options)


@pytest.fixture
def restored_signal_handlers() -> Iterator[None]:
    """Restore the signal handlers that `delayline run` replaces."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def make_job(make_service: MakeService, shared_session: None, restored_signal_handlers: None) -> MakeJob:
    """A function that makes a job, its ledger and its topics, with further `--set` overrides."""

    def make(*overrides: str, partitions: int = 2) -> tuple[JobInProcess, Ledger]:
        service, ledger = make_service(*overrides, partitions=partitions)
        job = JobInProcess(service.overrides)
        ledger.check = job.check
        return job, ledger

    return make
