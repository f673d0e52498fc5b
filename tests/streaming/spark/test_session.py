"""The options that Spark is started with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from conf.instants import instant
from conf.load import load_settings
from conf.spark_options import FIXED_OPTIONS
from streaming.spark import options as spark_options_module
from streaming.spark import session
from streaming.spark.options import executors_python, spark_options

pytestmark = pytest.mark.usefixtures("java")

_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"


@pytest.mark.parametrize(
    ("path", "manager"),
    [
        ("./data", "FileSystemBasedCheckpointFileManager"),
        ("file:///srv/delayline", "FileSystemBasedCheckpointFileManager"),
        ("hdfs://name/delayline", None),
        ("s3a://bucket/x", "AbortableStreamBasedCheckpointFileManager"),
    ],
)
def test_a_checkpoint_has_the_file_manager_of_its_file_system(
    monkeypatch: pytest.MonkeyPatch, path: str, manager: str | None
) -> None:
    monkeypatch.setattr(spark_options_module, "s3_jars", lambda: [Path("/jars/hadoop-aws.jar")])
    options = spark_options(load_settings(None, [f"storage.path={path}"], environ={}))
    assert (options.get(_MANAGER, "").rpartition(".")[2] or None) == manager
    assert ("/jars/hadoop-aws.jar" in options["spark.jars"]) == path.startswith("s3a:")


def test_the_code_cache_is_large_enough_on_the_driver_and_on_executors() -> None:
    options = spark_options(load_settings(None, [], environ={}))
    for role in ("driver", "executor"):
        assert "-XX:ReservedCodeCacheSize=480m" in options[f"spark.{role}.defaultJavaOptions"]


@pytest.mark.parametrize(
    ("submitted", "variable", "option", "python"),
    [
        (False, None, None, sys.executable),
        (False, "/variable/python", None, "/variable/python"),
        (False, "/variable/python", "/option/python", "/option/python"),
        # The variable is what spark-submit made of its own option.
        (True, "/variable/python", "/option/python", "/variable/python"),
        (True, None, "/option/python", "/option/python"),
    ],
)
def test_the_python_of_executors(
    monkeypatch: pytest.MonkeyPatch, submitted: bool, variable: str | None, option: str | None, python: str
) -> None:
    for name, value in (("PYSPARK_GATEWAY_PORT", "1" if submitted else None), ("PYSPARK_PYTHON", variable)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    overrides = [] if option is None else [f"spark.spark.pyspark.python={option}"]
    options = spark_options(load_settings(None, overrides, environ={}))
    assert executors_python(options) == python
    # Delayline's files are known to be where they are here only if Python is.
    assert ("log4j2.properties" in options["spark.executor.defaultJavaOptions"]) == (python == sys.executable)


def test_options_of_a_deployment_override_those_of_delayline() -> None:
    settings = load_settings(None, ["spark.spark.driver.memory=5g", "bucket.shards=3"], environ={})
    options = spark_options(settings)
    assert (options["spark.driver.memory"], options["spark.sql.shuffle.partitions"]) == ("5g", "3")


def test_delayline_sets_every_option_that_it_refuses() -> None:
    assert spark_options(load_settings(None, [], environ={})).keys() >= FIXED_OPTIONS.keys()


def test_an_option_that_the_service_rests_on_is_delaylines_even_if_spark_submit_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    submitted = [("spark.sql.shuffle.partitions", "7"), ("spark.driver.memory", "5g"), ("spark.app.name", "job.py")]
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr(session, "SparkConf", lambda: SimpleNamespace(getAll=lambda: submitted))
    assert session._submitted() == {"spark.driver.memory"}


# Two starts of Java, for what a test sees only in a process of its own.
_PROGRAM = """
import os, sys, threading
from conf.load import load_settings
from conf.logs import configure_logging
from conf.spark_options import TABLE_DEFAULTS
from streaming.spark.session import open_session

configure_logging("info", sys.argv[1])
settings = load_settings(None, [f"monitor.log_format={sys.argv[1]}"], environ={})
seen, started = set(), threading.Event()
def look():
    while not started.wait(0.01):
        seen.add((os.getcwd(), os.fstat(2).st_ino))
looker = threading.Thread(target=look)
looker.start()
spark = open_session(settings, {f"{TABLE_DEFAULTS}appendOnly": "true"})
started.set()
looker.join()
manager = spark._jvm.org.apache.logging.log4j.LogManager
manager.getLogger("a.b").error("two\\nlines", spark._jvm.java.lang.IllegalStateException("why"))
manager.getLogger("a.b").error("Aborting task")
try:
    print(spark.conf.get(f"{TABLE_DEFAULTS}appendOnly", "unset"), len(seen), flush=True)
    spark.range(10**12).selectExpr("sum(hash(id))").collect()
except KeyboardInterrupt:
    spark.stop()
    sys.exit(130)
"""


class Ended(NamedTuple):
    """The output of the program, on a host that is not in UTC, until Ctrl-C ended it in a call of Java."""

    begun: datetime
    stdout: str
    stderr: list[str]
    code: int


def _interrupted(log_format: str) -> Ended:
    begun = datetime.now(UTC)
    # A separate process group, as in a terminal: Java and its children get the signal too.
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, log_format],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
        env={**os.environ, "TZ": "Asia/Tokyo"},
    )
    try:
        assert process.stdout is not None
        stdout = process.stdout.readline()
        os.killpg(process.pid, signal.SIGINT)
        rest, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    return Ended(begun, stdout + rest, stderr.splitlines(), process.returncode)


@pytest.fixture(scope="module")
def logs_json(java: str) -> Ended:
    """The end of the program with logs in JSON."""
    return _interrupted("json")


@pytest.fixture(scope="module")
def logs_text(java: str) -> Ended:
    """The end of the program with logs as text."""
    return _interrupted("text")


def test_what_a_cluster_sets_for_all_new_tables_does_not_count_in_the_session(logs_json: Ended) -> None:
    assert logs_json.stdout.startswith("unset "), logs_json.stderr


def test_other_threads_keep_their_folder_and_standard_error_while_java_starts(logs_json: Ended) -> None:
    # Their relative paths would lead elsewhere, and their children would write to a pipe that ends with this process.
    assert logs_json.stdout.endswith(" 1\n"), logs_json.stdout


def test_ctrl_c_in_a_call_of_java_is_a_keyboard_interrupt_without_a_traceback(logs_json: Ended) -> None:
    # The one line comes from the program.
    assert (logs_json.code, len(logs_json.stderr)) == (130, 1), logs_json.stderr


def test_java_logs_json_with_the_keys_of_python(logs_json: Ended) -> None:
    line = json.loads(logs_json.stderr[0])
    assert {name: line[name] for name in ("level", "logger", "message")} == {
        "level": "ERROR", "logger": "a.b", "message": "two\nlines",
    }  # fmt: skip
    assert datetime.fromisoformat(line["time"]).timestamp() * 1000 == pytest.approx(line["time_ms"], abs=0.5)
    assert line["exception"].startswith("java.lang.IllegalStateException: why")


@pytest.mark.thorough
def test_java_writes_the_instant_of_a_line_as_python_does(logs_text: Ended) -> None:
    at, rest = logs_text.stderr[0].split(" ", 1)
    assert rest == "ERROR b: two"
    written = datetime.fromisoformat(at)
    assert instant(int(written.timestamp() * 1000)) == at
    assert logs_text.begun - timedelta(milliseconds=1) <= written <= datetime.now(UTC)
