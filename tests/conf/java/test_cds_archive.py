"""The archive of Spark's classes: where it is looked for, and that a start works without it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

from conf.java import cds_archive as module
from conf.java.cds_archive import cds_archive, cds_options, make_cds_archive


def test_a_session_loads_its_classes_from_the_archive_that_set_up_made(spark: SparkSession) -> None:
    assert cds_archive().is_file(), "make it with `delayline jars`"
    gateway: Any = spark.sparkContext._gateway
    started = psutil.Process(gateway.proc.pid)
    javas = [process for process in (started, *started.children()) if process.name() == "java"]
    mapped = {each.path for java in javas for each in java.memory_maps()}
    assert str(cds_archive()) in mapped


@pytest.mark.usefixtures("java")
def test_another_java_or_other_jars_have_another_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = cds_archive()
    jar = tmp_path / "one.jar"
    shutil.copy(module.spark_jars()[0], jar)
    monkeypatch.setattr(module, "spark_jars", lambda: [jar])
    other = cds_archive()
    assert other != before
    os.utime(jar, (1, 1))
    assert cds_archive() not in (before, other)
    assert cds_options() == ""


@pytest.mark.usefixtures("java")
def test_a_failed_training_run_is_reported_and_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    folder = tmp_path / "share" / "delayline"
    folder.mkdir(parents=True)
    (folder / "spark-classes-of-before.jsa").touch()
    monkeypatch.setattr(module, "spark_jars", list)

    def fail(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 1, "", "Traceback\nno Java\n")

    monkeypatch.setattr(subprocess, "run", fail)
    lines: list[str] = []
    make_cds_archive(lines.append)
    assert lines[-1] == "classes: no archive was written (no Java). Starts take longer"
    assert list(folder.iterdir()) == []
