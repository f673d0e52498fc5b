"""A job inside the test's process, on the session that all tests share."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from pyspark.sql import SparkSession

from conf.settings import Settings
from streaming.spark.session import spark_options
from tests.system.conftest import MakeService
from tests.system.in_process.job import JobInProcess
from tests.system.ledger import Ledger

MakeJob = Callable[..., tuple[JobInProcess, Ledger]]


@pytest.fixture
def shared_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give commands that start Spark the session that is there, with options of their own, and do not stop it."""
    before: dict[str, str | None] = {}

    def opened(settings: Settings, options: Mapping[str, str] | None = None) -> SparkSession:
        for name, value in {**spark_options(settings), **(options or {})}.items():
            if name.startswith("spark.sql.") and spark.conf.isModifiable(name):
                before.setdefault(name, spark.conf.get(name, None))
                spark.conf.set(name, value)
        return spark

    def stopped() -> None:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)
        before.clear()
        # By path, as a new process does not know it.
        jvm: Any = spark._jvm
        jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        # The job turns it off at its end.
        spark.sparkContext.setLogLevel("ERROR")

    monkeypatch.setattr("streaming.spark.exclusive_session.open_session", opened)
    monkeypatch.setattr(spark, "stop", stopped)


@pytest.fixture
def signal_handlers_kept() -> Iterator[None]:
    """Put the handlers of the signals back that `delayline run` takes for its own."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def make_job(make_service: MakeService, shared_session: None, signal_handlers_kept: None) -> MakeJob:
    """A function that makes a job and its ledger, with further `--set` overrides. The topics are made by it."""

    def make(*overrides: str, partitions: int = 2) -> tuple[JobInProcess, Ledger]:
        service, ledger = make_service(*overrides, partitions=partitions)
        job = JobInProcess(service.overrides)
        ledger.check = job.check
        return job, ledger

    return make
