"""Executors that are processes of their own: a session on a cluster of one worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.cluster import LOOPBACK, Cluster
from tests.quick_java import QUICK_JAVA

# A task that fails, at once for all.
_FAILING = """
import sys
from conf.load import load_settings
from streaming.spark.session import open_session

if __name__ == "__main__":
    settings = load_settings(None, sys.argv[1:], environ={})
    spark = open_session(settings, {"spark.driver.host": "127.0.0.1", "spark.task.maxFailures": "1"})
    try:
        spark.sparkContext.parallelize([0], 1).map(lambda zero: 1 / zero).collect()
    finally:
        spark.stop()
"""


@pytest.fixture
def cluster(tmp_path: Path, java: str) -> Iterator[Cluster]:
    """A master and one worker."""
    cluster = Cluster(tmp_path, workers=1)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.mark.thorough
@pytest.mark.takes(30)
def test_executors_have_the_drivers_format_of_the_log(cluster: Cluster, tmp_path: Path) -> None:
    overrides = ["monitor.log_format=json", f"spark.spark.master={cluster.url}", "spark.spark.cores.max=1"]
    overrides += [f"spark.spark.{role}.extraJavaOptions={QUICK_JAVA}" for role in ("driver", "executor")]
    overrides += ["spark.spark.executor.memory=700m"]
    result = subprocess.run(
        [sys.executable, "-c", _FAILING, *overrides], env={**os.environ, **LOOPBACK}, capture_output=True, text=True
    )
    assert "ZeroDivisionError" in result.stderr
    (log,) = tmp_path.glob("worker-1/app-*/0/stderr")
    lines = [line for line in log.read_text().splitlines() if line.startswith("{")]
    errors = [json.loads(line) for line in lines]
    assert "ZeroDivisionError" in next(each for each in errors if each["logger"].endswith(".Executor"))["exception"]
    assert {each["level"] for each in errors} == {"ERROR"}
    assert "INFO" not in log.read_text()
