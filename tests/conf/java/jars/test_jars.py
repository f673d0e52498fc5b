"""The jars that Ivy fetches."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from conf.errors import JarsMissing
from conf.java.jars import installed, ivy
from conf.java.jars.fetch import fetch_jars
from conf.java.jars.installed import broker_jars, jars_folder, pyspark_jars, s3_jars, spark_jars
from conf.java.jars.jar_lock import check_locked, locked
from conf.java.spark_line import spark_line

# By line of Spark: Delta's artifact, the version of the Kafka connector, and the jars for S3 that have the name of one
# which pyspark ships: there the annotations are JetBrains', here the SDK's.
_DELTA = {"4.0": "delta-spark_2.13", "4.1": "delta-spark_4.1_2.13"}
_CONNECTOR = {"4.0": "4.0.4", "4.1": "4.1.3"}
_NAMESAKES: dict[str, set[str]] = {"4.0": {"annotations"}, "4.1": set()}


def names(jars: list[Path]) -> set[str]:
    """Return the artifact names without versions."""
    return {re.split(r"-\d+\.", jar.name)[0] for jar in jars}


def test_sparks_jars_contain_none_that_pyspark_ships() -> None:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    shipped = names([*Path(spec.origin).parent.glob("jars/*.jar")])
    ours = names(spark_jars())
    assert {"spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13", _DELTA[spark_line()]} <= ours
    assert not ours & shipped


def test_the_broker_has_a_log_and_every_codec() -> None:
    # snappy-java is packaged as a bundle, which Ivy leaves out unless configured to include bundles.
    wanted = {"kafka_2.13", "log4j-slf4j-impl", "snappy-java", "zstd-jni", "lz4-java"}
    assert wanted <= names(broker_jars())


@pytest.mark.usefixtures("java")
def test_jars_are_fetched_once_into_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(JarsMissing, match="delayline jars"):
        spark_jars()
    lines: list[str] = []
    fetch_jars(lines.append)
    assert jars_folder("spark") == tmp_path / "share" / "delayline" / "jars" / "spark"
    assert {jar.parent for jar in spark_jars()} == {jars_folder("spark")}
    assert {"delta-spark", "hadoop-bare-naked-local-fs", "spark-sql-kafka"} <= {
        re.split(r"[-_]\d", jar.name)[0] for jar in spark_jars()
    }
    assert len(broker_jars()) > 40
    assert {folder.name for folder in jars_folder("spark").parent.iterdir()} == {"spark", "broker"}

    written_ns = jars_folder("spark").stat().st_mtime_ns
    lines.clear()
    fetch_jars(lines.append)
    assert [line.split(" in ")[0] for line in lines] == ["spark: complete", "broker: complete"]
    assert jars_folder("spark").stat().st_mtime_ns == written_ns


@pytest.mark.thorough
@pytest.mark.usefixtures("java")
def test_the_jars_for_s3_are_fetched_on_request_and_contain_none_that_pyspark_ships(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(JarsMissing, match="delayline jars --s3"):
        s3_jars()
    fetch_jars(lambda line: None, groups=["s3"])
    assert {"hadoop-aws", "spark-hadoop-cloud_2.13", "s3", "sts"} <= names(s3_jars())
    assert names(s3_jars()) & names(pyspark_jars()) == _NAMESAKES[spark_line()]
    # As Hadoop's own jars, in pyspark.
    (client,) = [jar.stem for jar in pyspark_jars() if jar.name.startswith("hadoop-client-api-")]
    assert client.replace("client-api", "aws") in {jar.stem for jar in s3_jars()}


def test_jars_of_another_version_count_as_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spark.xml").write_text("<ivy-module/>")
    monkeypatch.setattr(installed, "list_of", lambda group: tmp_path / f"{group}.xml")
    with pytest.raises(JarsMissing, match="have another version"):
        spark_jars()


@pytest.mark.usefixtures("java")
def test_a_failed_fetch_names_the_cause_and_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spark.xml").write_text("this is no ivy file")
    monkeypatch.setattr(ivy, "list_of", lambda group: tmp_path / f"{group}.xml")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(JarsMissing, match=r"could not fetch the spark jars[\s\S]*spark\.xml"):
        fetch_jars(lambda line: None)
    assert list((tmp_path / "share" / "delayline" / "jars").iterdir()) == []


def offline_folder(folder: Path) -> Path:
    """Return a folder with all jars, as one carries them to a machine without a network."""
    folder.mkdir()
    for jar in (*spark_jars(), *broker_jars()):
        (folder / jar.name).symlink_to(jar)
    return folder


def test_a_machine_without_a_network_takes_the_jars_from_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offline = offline_folder(tmp_path / "carried")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    fetch_jars(lambda line: None, offline=offline)
    assert {jar.name for jar in spark_jars()} == locked("spark").keys()
    assert {jar.name for jar in broker_jars()} == locked("broker").keys()


@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_jars_that_are_not_those_of_the_lock_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    offline = offline_folder(tmp_path / "carried")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    name = next(iter(locked("broker")))
    (offline / name).unlink()
    if damage == "changed":
        (offline / name).write_bytes(b"another")
    with pytest.raises(JarsMissing, match=f"{name} has the SHA-256" if damage == "changed" else f"{name} is missing"):
        fetch_jars(lambda line: None, offline=offline)
    assert [path.name for path in jars_folder("broker").parent.iterdir()] == ["spark"]


def test_a_file_too_many_is_refused(tmp_path: Path) -> None:
    offline = offline_folder(tmp_path / "carried")
    with pytest.raises(JarsMissing, match=r"kafka_\S+ is unexpected"):
        check_locked("spark", offline)


@pytest.mark.usefixtures("java")
def test_a_mirror_is_asked_in_place_of_maven_central(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    empty = tmp_path / "mirror"
    empty.mkdir()
    with pytest.raises(JarsMissing) as failure:
        fetch_jars(lambda line: None, mirror=empty.as_uri())
    assert f"spark-sql-kafka-0-10_2.13;{_CONNECTOR[spark_line()]}: not found" in str(failure.value)
