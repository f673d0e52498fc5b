"""The job as its operators submit it to a cluster: a wheel in an archive, `spark-submit`, a supervisor."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import psutil

from benchmarks.cluster import LOOPBACK, SPARK, Cluster
from conf.java.jars.installed import jars_folder
from conf.process_tree import kill_tree
from tests.quick_java import QUICK_JAVA
from tests.system.environments import new_environment

_ROOT = Path(__file__).parent.parent.parent


class Environment:
    """A Python environment with Delayline installed from its wheel, and an archive of it for workers.

    Delayline's dependencies come from the environment of the tests, as they would from the image of a worker.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "env"
        self.archive = folder / "env.tar.gz"
        wheel = _built_wheel(folder)
        self.python = new_environment(self.folder)
        _pip("--python", str(self.python), "install", "--no-deps", "--no-index", str(wheel))
        with tarfile.open(self.archive, "w:gz") as archive:
            archive.add(self.folder, ".")
        # Only for the driver: workers get the jars from it.
        for group in ("spark",):
            target = self.folder / "share" / "delayline" / "jars" / group
            shutil.copytree(jars_folder(group), target)

    def delayline(self, *arguments: str) -> str:
        """Run the environment's `delayline` command and return its output."""
        result = subprocess.run([self.python, "-m", "streaming.cli", *arguments], cwd=self.folder, capture_output=True)
        assert result.returncode == 0, result.stderr.decode()
        return result.stdout.decode()


def _built_wheel(folder: Path) -> Path:
    # Build from a copy, because building leaves files next to the sources.
    source = folder / "source"
    source.mkdir()
    for name in ("conf", "sources", "state", "sinks", "streaming"):
        shutil.copytree(_ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(_ROOT / name, source)
    _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source))
    (wheel,) = folder.glob("delayline-*.whl")
    return wheel


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


_SUPERVISOR = """
[supervisord]
nodaemon = true
user = root
logfile = {folder}/supervisord.log
pidfile = {folder}/supervisord.pid

[program:delayline]
command = {command}
directory = {folder}
autorestart = true
startsecs = 0
stopasgroup = true
stopwaitsecs = 60
redirect_stderr = true
stdout_logfile = {folder}/job.log
stdout_logfile_maxbytes = 0
"""


class SubmittedJob:
    """`spark-submit` of the job to a cluster, under a supervisor that starts it again whenever it ends."""

    def __init__(self, folder: Path, environment: Environment, cluster: Cluster, overrides: list[str]) -> None:
        self._folder = folder
        environment.delayline("submit-files", str(folder))
        command = [str(SPARK / "spark-submit"), "--master", cluster.url]
        command += ["--properties-file", f"{folder}/spark.properties", "--archives", f"{environment.archive}#env"]
        for option in (
            "spark.pyspark.python=./env/bin/python",
            f"spark.pyspark.driver.python={environment.python}",
            "spark.driver.host=127.0.0.1",
            "spark.executor.cores=1",
            "spark.cores.max=2",
            "spark.executor.memory=700m",
            f"spark.executor.extraJavaOptions={QUICK_JAVA}",
        ):
            command += ["--conf", option]
        command += [f"{folder}/delayline_job.py", "run"]
        for override in overrides:
            command += ["--set", override]
        config = folder / "supervisord.conf"
        config.write_text(_SUPERVISOR.format(folder=folder, command=shlex.join(command)))
        self._command = [sys.executable, "-m", "supervisor.supervisord", "-c", str(config)]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """The output of all starts."""
        path = self._folder / "job.log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def starts(self) -> int:
        """How often the job's query has started."""
        return self.log.splitlines().count("running")

    def start(self) -> None:
        with (self._folder / "supervisor.out").open("wb") as output:
            self._process = subprocess.Popen(
                self._command, env=os.environ | LOOPBACK, stdout=output, stderr=subprocess.STDOUT, cwd=self._folder
            )

    def kill_driver(self) -> None:
        """Kill the driver, its Python and its Java, but not the supervisor."""
        assert self._process is not None
        for driver in psutil.Process(self._process.pid).children():
            kill_tree(driver.pid)

    def stop(self) -> None:
        """End the supervisor, which ends the job."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(90)
            finally:
                if self._process.poll() is None:
                    kill_tree(self._process.pid)
