"""A real S3 server on loopback: versitygw, which keeps each object as a file."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections import Counter
from pathlib import Path

from streaming.local.free_port import free_port
from tests.eventually import assert_eventually

_MODULE = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
# Go's module proxy has it. Built once: that takes minutes.
_BUILT = Path.home() / ".cache" / "delayline-tests"
_BUILD_S = 1_200
_KEY, _SECRET = "delayline-tests", "not-a-secret-of-anybody"
BUCKET = "delayline"


class NoServer(Exception):
    """The server cannot be had here. The text says why."""


def server_program() -> str:
    """Return the path of versitygw: of this machine, or built by Go. Raises NoServer."""
    found = shutil.which("versitygw", path=os.pathsep.join([os.environ.get("PATH", ""), str(_BUILT)]))
    if found:
        return found
    go = shutil.which("go", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/go/bin"]))
    if go is None:
        raise NoServer("versitygw is not in PATH, and there is no Go to build it")
    environment = os.environ | {"GOBIN": str(_BUILT), "CGO_ENABLED": "0"}
    done = subprocess.run([go, "install", _MODULE], env=environment, capture_output=True, text=True, timeout=_BUILD_S)
    if done.returncode:
        raise NoServer(f"versitygw could not be built: {done.stderr.strip()[-500:]}")
    return str(_BUILT / "versitygw")


class S3Server:
    """The server, with the empty bucket `BUCKET`, until `close`. An object is a file below `folder / "objects"`."""

    def __init__(self, program: str, folder: Path) -> None:
        """Start it, with its files in `folder`."""
        self.objects = folder / "objects"
        self._requests = folder / "requests.log"
        (self.objects / BUCKET).mkdir(parents=True)
        (folder / "metadata").mkdir()
        port = free_port()
        self.endpoint = f"http://127.0.0.1:{port}"
        # Beside the objects: not every file system has extended attributes.
        command = [
            *(program, "--port", f"127.0.0.1:{port}", "--access-log", str(self._requests), "--quiet"),
            *("posix", "--sidecar", str(folder / "metadata"), str(self.objects)),
        ]
        environment = os.environ | {"ROOT_ACCESS_KEY": _KEY, "ROOT_SECRET_KEY": _SECRET}
        with (folder / "server.log").open("wb") as output:
            self._process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)

        def answers() -> bool:
            assert self._process.poll() is None, (folder / "server.log").read_text()
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        assert_eventually(answers, 30, "the S3 server")

    @property
    def environment(self) -> dict[str, str]:
        """The credentials, as variables of the AWS SDK."""
        return {"AWS_ACCESS_KEY_ID": _KEY, "AWS_SECRET_ACCESS_KEY": _SECRET}

    @property
    def overrides(self) -> list[str]:
        """The settings by which Hadoop finds the server."""
        options = {
            "endpoint": self.endpoint,
            "endpoint.region": "us-east-1",
            "path.style.access": "true",
            "connection.ssl.enabled": "false",
        }
        return [f"spark.spark.hadoop.fs.s3a.{name}={value}" for name, value in options.items()]

    def requests(self) -> Counter[str]:
        """Return how many requests of each kind were answered: s3_PutObject, s3_CopyObject and so on."""
        lines = self._requests.read_text().splitlines() if self._requests.exists() else []
        return Counter(word for line in lines for word in line.split() if word.startswith("s3_"))

    def close(self) -> None:
        """End the server."""
        self._process.kill()
        self._process.wait()
