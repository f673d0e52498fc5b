"""Builds the image without an engine: the steps of its Dockerfile, as a script in a folder that stands for its root."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import venv
from io import BytesIO
from pathlib import Path

from dockerfile_parse import DockerfileParser

from conf.java.jars.installed import jars_folder

ROOT = Path(__file__).parent.parent
DOCKERFILE = ROOT / "conf/docker/Dockerfile"
# The places of the image that its steps write to.
_PLACES = re.compile(r"(?<![\w./-])/(?=(?:opt|var/lib)/delayline\b)")
# Commands that change the machine, which already has the things that they install. Each is given by its beginning.
_LEFT_OUT = (
    ("mkdir", "-p", "/usr/share/man/man1"),
    ("apt-get", "update"),
    ("apt-get", "install"),
    ("rm", "-rf", "/var/lib/apt/lists/*"),
    ("useradd",),
    ("chown",),
)
# Other commands that the steps may start.
_RUN = ("pip", "delayline", "mkdir", "rm")
_IGNORED = ("COMMENT", "FROM", "ARG", "USER")
# The variables that Spark 4.0 sets for an executor's container, besides Java's options.
POD = {
    "SPARK_USER": "delayline",
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver.svc:7078",
    "SPARK_EXECUTOR_CORES": "1",
    "SPARK_EXECUTOR_MEMORY": "1024m",
    "SPARK_APPLICATION_ID": "spark-application-1",
    "SPARK_CONF_DIR": "/opt/spark/conf",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
    "SPARK_EXECUTOR_POD_NAME": "delayline-exec-3",
}


class UnknownStep(Exception):
    """The Dockerfile has a step that this module cannot carry out without an engine."""


class Image:
    """The image that the Dockerfile makes, below a folder."""

    def __init__(self, root: Path, java: str, with_pip: bool = True) -> None:
        """Begin with an empty folder, a Python in place of the base image's, and the `java` at this path."""
        self._root = root
        self._python = root / "usr/local"
        self._java = Path(java).parent
        self._home = root / "root"
        self._home.mkdir(parents=True)
        (root / "var/lib").mkdir(parents=True)
        venv.create(self._python, with_pip=with_pip, symlinks=True)
        self.workdir = root
        self.entrypoint: list[str] = []
        self.command: list[str] = []

    def build(self, dockerfile: str, context: Path) -> None:
        """Carry out all steps, with the files of `context`. Raises UnknownStep, CalledProcessError."""
        for instruction, value in steps_of(dockerfile):
            if instruction == "WORKDIR":
                self.workdir = self._place(value)
                self.workdir.mkdir(parents=True, exist_ok=True)
            elif instruction == "COPY":
                self._copy(context, value)
            elif instruction == "RUN":
                script = " && ".join(self.inside(command) for command in kept_commands(value))
                # The jars are at hand; that they can be fetched is for other tests to show.
                environment = self.environment(DELAYLINE_JARS__FOLDER=str(jars_folder("spark").parent))
                subprocess.run(["sh", "-e", "-c", script], env=environment, cwd=self.workdir, check=True)
            elif instruction == "ENTRYPOINT":
                self.entrypoint = [self.inside(word) for word in json.loads(value)]
            elif instruction == "CMD":
                self.command = json.loads(value)
            elif instruction not in _IGNORED:
                raise UnknownStep(f"{instruction} {value}")

    def environment(self, **variables: str) -> dict[str, str]:
        """Return the variables of a process of the image, without the variables of this process."""
        # How this machine reaches the registries.
        registries = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_CERT_"))}
        # The cache is the machine's, not the image's: a build downloads half a gigabyte otherwise.
        registries.setdefault("PIP_CACHE_DIR", str(Path.home() / ".cache/pip"))
        path = os.pathsep.join((str(self._python / "bin"), str(self._java), os.defpath))
        return {**registries, "PATH": path, "HOME": str(self._home), **variables}

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Start a container: its entrypoint, by default with the image's arguments."""
        return subprocess.Popen(
            [*self.entrypoint, *(arguments or self.command)],
            env=self.environment(**variables),
            cwd=self.workdir,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def inside(self, text: str) -> str:
        """Return `text` with the image's paths as they are here."""
        return _PLACES.sub(f"{self._root}/", text)

    def run(self, *arguments: str, **variables: str) -> tuple[int, str]:
        """Run a container to its end, and return its exit code and its output."""
        with self.start(*arguments, **variables) as process:
            try:
                output, _ = process.communicate(timeout=600)
            finally:
                process.kill()
        return process.returncode, output

    def _place(self, path: str) -> Path:
        return Path(self.inside(path)) if path.startswith("/") else self.workdir / path

    def _copy(self, context: Path, value: str) -> None:
        *sources, target = shlex.split(value)
        if any(word.startswith("--") for word in sources):
            raise UnknownStep(f"COPY {value}")
        to = self._place(target)
        for source in sources:
            if (context / source).is_dir():
                shutil.copytree(context / source, to, dirs_exist_ok=True)
            else:
                shutil.copy(context / source, to)


def steps_of(dockerfile: str) -> list[tuple[str, str]]:
    """Return the steps of a Dockerfile: instruction and value."""
    parser = DockerfileParser(fileobj=BytesIO(dockerfile.encode()))
    return [(step["instruction"], step["value"]) for step in parser.structure]


def kept_commands(run: str) -> list[str]:
    """Return the commands of a RUN step but those that change the machine. Raises UnknownStep."""
    kept = []
    for command in (part.strip() for part in run.split("&&")):
        words = tuple(shlex.split(command))
        if any(words[: len(start)] == start for start in _LEFT_OUT):
            continue
        if words[0] not in _RUN or re.search(r"[;|<>`$]", command):
            raise UnknownStep(f"RUN {command}")
        # The image is to be small; of what pip installs this changes nothing.
        kept.append(command.replace(" --no-cache-dir ", " "))
    return kept


def clean_context(folder: Path) -> Path:
    """Copy what the engine sends to a build: the tracked files that the Dockerfile's `.dockerignore` lets through."""
    ignore = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text().splitlines()
    let_through = tuple(line.removeprefix("!") for line in ignore if line.startswith("!"))
    assert "*" in ignore, "all else is left out"
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in tracked.stdout.splitlines():
        if name.partition("/")[0] in let_through:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder
