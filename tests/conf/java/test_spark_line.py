"""The lines of Spark: which is installed, and the jars and locks of each."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from xml.etree import ElementTree as XML

import pytest
from packaging.requirements import Requirement

from conf.errors import SparkUnsupported
from conf.java import spark_line as module
from conf.java.jars.installed import spark_jars
from conf.java.jars.jar_lock import LISTS
from conf.java.spark_line import LINES, checkpoint_class, spark_line

ROOT = Path(__file__).parents[3]
Install = Callable[[str | None], None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """A function that makes a version of pyspark, or no version, seem to be installed."""

    def seem(version: str | None) -> None:
        def of(package: str) -> str:
            assert package == "pyspark"
            if version is None:
                raise PackageNotFoundError(package)
            return version

        monkeypatch.setattr(module, "version", of)
        spark_line.cache_clear()

    yield seem
    spark_line.cache_clear()


@pytest.mark.parametrize(("line", "version"), LINES.items())
def test_the_installed_version_decides_the_line(install: Install, line: str, version: str) -> None:
    install(version)
    assert spark_line() == line
    assert re.fullmatch(
        r"org\.apache\.spark\.sql\.\S+\.CheckpointFileManager", checkpoint_class("CheckpointFileManager")
    )


@pytest.mark.parametrize("version", ["3.5.7", "4.0.0", "4.0.5", "4.1.3", "4.2.0", "4.1.1.dev3", "unknown"])
def test_any_other_version_is_refused_with_those_that_were_run(install: Install, version: str) -> None:
    install(version)
    with pytest.raises(SparkUnsupported, match=rf"pyspark {re.escape(version)} is installed\. .* 4\.0\.4 or 4\.1\.1$"):
        spark_jars()


def test_without_pyspark_that_is_said(install: Install) -> None:
    install(None)
    with pytest.raises(SparkUnsupported, match="pyspark is not installed"):
        spark_jars()


@pytest.mark.parametrize("line", LINES)
def test_the_jars_that_a_line_lists_are_locked(line: str) -> None:
    for group in ("spark", "s3"):
        locked = {entry.rpartition("/")[2] for entry in (LISTS / f"{group}-{line}.sha256").read_text().split("\n")}
        listing = XML.parse(LISTS / f"{group}-{line}.xml")  # noqa: S314, a file of ours
        for listed in listing.iter("dependency"):
            assert f"{listed.get('name')}-{listed.get('rev')}.jar" in locked


@pytest.mark.parametrize("package", ["pyspark", "delta-spark"])
def test_pip_installs_no_version_but_those_that_are_pinned_for_a_line(package: str) -> None:
    pinned = ["constraints.txt", *(f"constraints-spark-{line}.txt" for line in LINES if line != "4.0")]
    versions = {re.findall(rf"^{package}==(\S+)$", (ROOT / each).read_text(), re.MULTILINE)[0] for each in pinned}
    if package == "pyspark":
        assert versions == set(LINES.values())
    needs = map(Requirement, tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])
    (range_of,) = (each.specifier for each in needs if each.name == package)
    patches = [f"{major}.{minor}.{patch}" for major in (3, 4, 5) for minor in range(10) for patch in range(9)]
    assert set(range_of.filter(patches)) == versions
