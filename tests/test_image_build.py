"""The image, built and started without an engine: its Dockerfile's steps run as a script, and its roles answer."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from conf.process_tree import kill_tree
from streaming.local.broker import EmbeddedBroker
from streaming.local.free_port import free_port
from streaming.spark.submit_files import LAUNCHER
from tests.eventually import assert_eventually
from tests.image_build import DOCKERFILE, POD, Image, UnknownStep, clean_context, kept_commands, steps_of


@pytest.fixture(scope="module")
def image(java: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """The image of this checkout. Its folder has more than a gigabyte, and goes with the tests."""
    folder = tmp_path_factory.mktemp("image")
    image = Image(folder / "root", java)
    image.build(DOCKERFILE.read_text(), clean_context(folder / "context"))
    yield image
    shutil.rmtree(folder)


def test_the_steps_of_the_dockerfile_are_known() -> None:
    runs = [kept_commands(value) for instruction, value in steps_of(DOCKERFILE.read_text()) if instruction == "RUN"]
    started = [command.split()[0] for commands in runs for command in commands]
    assert started == ["pip", "delayline", "delayline", "rm", "mkdir"]


@pytest.mark.parametrize(
    "step", ["RUN curl example.com", "RUN pip list; ls", "COPY --from=other /a /b", "ADD conf conf", "ENV NAME=value"]
)
def test_a_step_of_another_kind_is_refused(step: str, tmp_path: Path) -> None:
    with pytest.raises(UnknownStep):
        Image(tmp_path / "root", "/usr/bin/java", with_pip=False).build(step, tmp_path)


@pytest.mark.thorough
@pytest.mark.takes(150)
def test_the_image_builds_and_each_of_its_roles_starts(image: Image, broker: EmbeddedBroker, tmp_path: Path) -> None:
    assert image.run("--version") == (0, f"{version('delayline')}\n")

    # An executor of the class that Spark on Kubernetes wants. Its driver does not exist.
    code, output = image.run("executor", **{**POD, "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@127.0.0.1:1"})
    assert code != 0
    assert "Failed to connect to /127.0.0.1:1" in output

    # A driver that an operator submits.
    properties = tmp_path / "spark.properties"
    properties.write_text("spark.master local[1]\nspark.driver.memory 1g\n")
    launcher = "local://" + image.inside(f"/opt/delayline/submit/{LAUNCHER}")
    driver = ("driver", "--properties-file", str(properties), launcher, "--version")
    code, output = image.run(*driver, SPARK_DRIVER_BIND_ADDRESS="127.0.0.1")
    assert (code, output.splitlines()[-1]) == (0, version("delayline")), output

    # The services of docker-compose.yml, with their health checks.
    settings = {
        "DELAYLINE_APPLICATION_ID": f"image-{uuid.uuid4().hex[:8]}",
        "DELAYLINE_KAFKA__BOOTSTRAP_SERVERS": broker.bootstrap,
        "DELAYLINE_RELEASE__PROCESSES": "0",
        "DELAYLINE_MONITOR__JOB": f"127.0.0.1:{free_port()}",
        "DELAYLINE_MONITOR__RELEASE": f"127.0.0.1:{free_port()}",
    }
    code, output = image.run("topics", "create", **settings)
    assert code == 0, output
    with image.start("release", **settings) as release, image.start("run", **settings) as job:
        try:
            assert_eventually(lambda: image.run("health", **settings)[0] == 0, 120, "the health of the job")
            code, output = image.run("health", "release", "--live", **settings)
            assert code == 0, output
            code, output = image.run("publish", "--after", "1s", "hello", **settings)
            assert code == 0, output
            code, output = image.run("subscribe", "--from", "beginning", "--count", "1", "--timeout", "3m", **settings)
            assert code == 0, output
            assert "hello" in output
        finally:
            for process in (job, release):
                kill_tree(process.pid)
