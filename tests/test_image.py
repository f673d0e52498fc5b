"""The image's entrypoint, with fake programs, such as `java` and `delayline`, that print how they were called."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from streaming.spark.submit_files import PROPERTIES
from tests.image_build import POD

ROOT = Path(__file__).parent.parent
DOCKERFILE = ROOT / "conf/docker/Dockerfile"
BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"


@pytest.fixture
def fakes(tmp_path: Path) -> Path:
    for name in ("java", "delayline", "spark-submit"):
        fake = tmp_path / name
        fake.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(['{name}', *sys.argv[1:]]))\n")
        fake.chmod(0o755)
    return tmp_path


def command_of(fakes: Path, *arguments: str, **variables: str) -> list[str]:
    """Return the command that the entrypoint executes: the program and its arguments."""
    result = start(fakes, *arguments, **variables)
    assert result.returncode == 0, result.stderr
    command: list[str] = json.loads(result.stdout)
    return command


def start(fakes: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": f"{fakes}:{Path(sys.executable).parent}:{os.defpath}", **variables}
    return subprocess.run([entrypoint(), *arguments], env=environment, capture_output=True, text=True)


def entrypoint() -> Path:
    """Return the path in this checkout of the file that the image starts."""
    (line,) = (line for line in DOCKERFILE.read_text().splitlines() if line.startswith("ENTRYPOINT "))
    (inside,) = json.loads(line.removeprefix("ENTRYPOINT "))
    return ROOT / Path(inside).relative_to("/opt/delayline")


def test_arguments_other_than_driver_and_executor_are_a_delayline_command(fakes: Path) -> None:
    assert command_of(fakes, "run", "--set", "topics.output=a b") == [
        "delayline",
        "run",
        "--set",
        "topics.output=a b",
    ]
    assert command_of(fakes) == ["delayline"]


def test_a_driver_is_submitted_with_the_options_that_its_java_needs_and_the_arguments_of_its_pod(
    fakes: Path, tmp_path: Path
) -> None:
    image = tmp_path / "image"
    (image / "conf/docker").mkdir(parents=True)
    shutil.copy(entrypoint(), image / "conf/docker")
    (image / "submit").mkdir()
    # As `delayline submit-files` writes it, where a backslash is the escape character.
    properties = [
        "spark.driver.extraJavaOptions -Da=b -Dc=d\\\\e",
        # That of the application's own file holds.
        "spark.driver.memory 2g",
        "spark.jars /a.jar,/b.jar",
    ]
    (image / "submit" / PROPERTIES).write_text("".join(f"{line}\n" for line in properties))
    arguments = ["--properties-file", "/opt/spark/conf/spark.properties", "local:///opt/job.py", "run"]
    environment = {"PATH": f"{fakes}:{os.defpath}", "SPARK_DRIVER_BIND_ADDRESS": "10.0.0.5"}
    result = subprocess.run(
        [image / "conf/docker/entrypoint.sh", "driver", *arguments], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    command = json.loads(result.stdout)
    assert command == [
        "spark-submit",
        *("--deploy-mode", "client"),
        *("--conf", "spark.driver.bindAddress=10.0.0.5"),
        *("--conf", "spark.driver.extraJavaOptions=-Da=b -Dc=d\\e"),
        *("--conf", "spark.jars=/a.jar,/b.jar"),
        *arguments,
    ]


def test_an_executor_starts_with_the_options_of_its_pod(fakes: Path) -> None:
    java_options = {"SPARK_JAVA_OPT_1": "-Dspark.driver.port=7078", "SPARK_JAVA_OPT_0": "-Dwords=of two words"}
    java, *arguments = command_of(fakes, "executor", **POD, **java_options)
    assert java == "java"
    at = arguments.index(BACKEND)
    executor_options = dict(zip(arguments[at + 1 :: 2], arguments[at + 2 :: 2], strict=True))
    assert executor_options == {
        "--driver-url": POD["SPARK_DRIVER_URL"],
        "--executor-id": "3",
        "--cores": "1",
        "--app-id": "spark-application-1",
        "--hostname": "10.0.0.7",
        "--resourceProfileId": "0",
        "--podName": "delayline-exec-3",
    }
    assert arguments[: at - 2] == ["-Dwords=of two words", "-Dspark.driver.port=7078", "-Xms1024m", "-Xmx1024m"]
    assert (arguments[at - 2], arguments[at - 1]) == ("-cp", f"/opt/spark/conf:{spark_jars()}/*")


def test_twelve_options_keep_their_order_and_a_configured_class_path_precedes_sparks(fakes: Path) -> None:
    java_options = {f"SPARK_JAVA_OPT_{number}": f"-D{number}" for number in range(12)}
    arguments = command_of(fakes, "executor", **POD, **java_options, SPARK_CLASSPATH="/extra/*")[1:]
    assert arguments[:12] == [f"-D{number}" for number in range(12)]
    assert arguments[arguments.index("-cp") + 1] == f"/opt/spark/conf:/extra/*:{spark_jars()}/*"


def test_a_missing_variable_is_named(fakes: Path) -> None:
    pod = {name: value for name, value in POD.items() if name != "SPARK_DRIVER_URL"}
    result = start(fakes, "executor", **pod)
    assert result.returncode != 0
    assert "SPARK_DRIVER_URL" in result.stderr


def test_pyspark_ships_the_jar_of_the_kubernetes_executor() -> None:
    assert len(list(spark_jars().glob("spark-kubernetes_*.jar"))) == 1


def spark_jars() -> Path:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]) / "jars"
