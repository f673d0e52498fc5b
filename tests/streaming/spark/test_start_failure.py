"""If Spark does not start, the command prints why in one sentence and shows no secret."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from conf.errors import SettingError
from conf.java.spark_line import spark_line
from conf.settings import Settings
from sinks.topics.topics import ensure_topics
from streaming.spark.start_failure import start_failure

_NUMBER = "spark.sql.parquet.columnarReaderBatchSize"
# The message of each Spark line about an option that is not a number.
_NO_INT = {
    "4.0": f"{_NUMBER} should be int, but was abc",
    "4.1": f"""The value 'abc' in the config "{_NUMBER}" is invalid. It should be a/an 'int' value""",
}


def command(settings: Settings, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a `delayline` command for the broker of `settings` until it ends. It must print no traceback."""
    base_environment = {name: value for name, value in os.environ.items() if not name.startswith("DELAYLINE_")}
    sets = [
        f"kafka.bootstrap_servers={settings.kafka.bootstrap_servers}",
        f"application_id={settings.application_id}",
    ]
    parts = [*arguments, *(part for one in sets for part in ("--set", one))]
    result = subprocess.run(
        [sys.executable, "-m", "streaming.cli", *parts],
        capture_output=True,
        text=True,
        env=base_environment | environment,
    )
    assert "Traceback" not in result.stderr, result.stderr
    return result


def last_line(result: subprocess.CompletedProcess[str]) -> str:
    return result.stderr.splitlines()[-1]


@pytest.mark.thorough
def test_an_option_that_spark_or_java_refuses_is_a_wrong_setting_with_their_message(
    settings: Settings, tmp_path: Path
) -> None:
    ensure_topics(settings)
    storage = f"storage.path={tmp_path}"
    for option, message in (
        # Refused by Java's launcher, by Java, by Spark's launcher, by Spark, and by a session.
        ("spark.spark.driver.extraJavaOptions=-Xmx1g", "Not allowed to specify max heap"),
        ("spark.spark.driver.memory=abc", "Invalid maximum heap size: -Xmxabc"),
        ("spark.spark.master=locl[2]", "Master must either be yarn or start with spark, k8s, or local"),
        ("spark.spark.master=local[a]", "Could not parse Master URL: 'local[a]'"),
        (f"spark.{_NUMBER}=abc", _NO_INT[spark_line()]),
    ):
        result = command(settings, "rescale", "--shards", "3", "--set", storage, "--set", option)
        assert result.returncode == 2
        assert last_line(result).startswith("error: bad-setting: [spark]: ")
        assert message in last_line(result)
        assert "SparkSubmit.scala" not in result.stderr


def test_an_old_java_is_named_with_the_version_that_is_needed(settings: Settings, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    # It prints its version, and cannot load classes of a newer one.
    java.write_text('#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "11.0.2"\' >&2 && exit 0\nexit 1\n')
    java.chmod(0o755)
    result = command(settings, "status", JAVA_HOME=str(tmp_path))
    assert result.returncode == 1
    assert last_line(result).startswith(f"error: java-missing: {java} is Java 11. Set JAVA_HOME to Java 17")


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("spark.my.password should be int, but was hunter2", {"spark.my.password": "hunter2"}),
        ("no such place: https://user:hunter2@host/x", {"spark.x": "y"}),
    ],
)
def test_a_secret_is_not_repeated(message: str, options: dict[str, str]) -> None:
    error = start_failure(PySparkException(message), options, list)
    assert isinstance(error, SettingError)
    assert str(error).startswith("bad-setting: [spark]: ")
    assert "hunter2" not in str(error)
