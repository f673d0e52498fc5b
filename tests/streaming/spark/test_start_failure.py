"""A Spark that does not start: the command says why in a sentence, and shows no secret."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from conf.errors import SettingError
from conf.settings import Settings
from sinks.topics.topics import ensure_topics
from streaming.spark.start_failure import start_failure


def command(settings: Settings, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a `delayline` command for the broker of `settings`, which must end with an error, to its end."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("DELAYLINE_")}
    sets = [
        f"kafka.bootstrap_servers={settings.kafka.bootstrap_servers}",
        f"application_id={settings.application_id}",
    ]
    parts = [*arguments, *(part for one in sets for part in ("--set", one))]
    done = subprocess.run(
        [sys.executable, "-m", "streaming.cli", *parts], capture_output=True, text=True, env=own | environment
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    return done.stderr.splitlines()[-1]


def test_what_spark_or_java_does_not_start_with_is_a_wrong_setting_in_their_words(
    settings: Settings, tmp_path: Path
) -> None:
    ensure_topics(settings)
    storage = f"storage.path={tmp_path}"
    for option, says in (
        # Refused by what starts Java, by Java, by what starts Spark, by Spark, and by a session.
        ("spark.spark.driver.extraJavaOptions=-Xmx1g", "Not allowed to specify max heap"),
        ("spark.spark.driver.memory=abc", "Invalid maximum heap size: -Xmxabc"),
        ("spark.spark.master=locl[2]", "Master must either be yarn or start with spark, k8s, or local"),
        ("spark.spark.master=local[a]", "Could not parse Master URL: 'local[a]'"),
        ("spark.spark.sql.shuffle.partitions=abc", "spark.sql.shuffle.partitions should be int, but was abc"),
    ):
        done = command(settings, "rescale", "--shards", "3", "--set", storage, "--set", option)
        assert done.returncode == 2
        assert last_line(done).startswith("error: bad-setting: [spark]: ")
        assert says in last_line(done)
        assert "SparkSubmit.scala" not in done.stderr


def test_an_old_java_is_named_with_what_is_needed(settings: Settings, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    # It tells its version, and cannot load classes of a newer one.
    java.write_text('#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "11.0.2"\' >&2 && exit 0\nexit 1\n')
    java.chmod(0o755)
    done = command(settings, "status", JAVA_HOME=str(tmp_path))
    assert done.returncode == 1
    assert last_line(done).startswith(f"error: java-missing: {java} is Java 11; set JAVA_HOME to Java 17")


@pytest.mark.parametrize(
    ("said", "options"),
    [
        ("spark.my.password should be int, but was hunter2", {"spark.my.password": "hunter2"}),
        ("no such place: https://user:hunter2@host/x", {"spark.x": "y"}),
    ],
)
def test_a_secret_is_not_repeated(said: str, options: dict[str, str]) -> None:
    error = start_failure(PySparkException(said), options, list)
    assert isinstance(error, SettingError)
    assert str(error).startswith("bad-setting: [spark]: ")
    assert "hunter2" not in str(error)
