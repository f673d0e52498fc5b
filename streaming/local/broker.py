"""One Kafka node in KRaft mode, from the jars that `conf.java.jars` fetched: for demo, tests, a first try."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from conf.end_signals import deferred
from conf.errors import BrokerFailed
from conf.java.jars import JAVA_FILES, broker_jars, java_command
from streaming.local.broker_properties import address, node_properties, properties_text

_LOG_CONFIG = JAVA_FILES / "broker-log4j2.properties"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
_FORMAT_TIMEOUT_S = 60.0
_SHOWN_LOG_LINES = 30
# Becomes the broker, after it asked the kernel (PR_SET_PDEATHSIG = 1) to kill it when its parent dies:
# nothing may be left running by a test that was killed. Its own program, since code between fork and exec
# of a process with threads can hang. Kafka bears SIGKILL: what it acknowledged is in the page cache.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]): sys.exit("the parent is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


class EmbeddedBroker:
    """A broker that keeps its data, configuration and logs in `directory`, and serves on `host`:`port`.

    Port 0 picks a free one, which stays the same for this object's later starts. `properties` are Kafka's own
    and go over those of `broker_properties`. `secured` names security protocols (SSL, SASL_SSL) that it serves
    as well, each on a port of its own; what they need is in `properties`. The plain listener stays: the node speaks
    with itself there. As a context manager it starts and stops; otherwise call `start` from a thread that outlives the
    broker, which dies with that thread (Linux).
    """

    def __init__(
        self,
        directory: Path,
        port: int = 0,
        host: str = "127.0.0.1",
        properties: Mapping[str, str] | None = None,
        heap: str = "1g",
        secured: Sequence[str] = (),
    ) -> None:
        self.directory = Path(directory).absolute()
        self.host = host
        self.port = port
        self.heap = heap
        self.log_file = self.directory / "broker.log"
        self._properties = dict(properties or {})
        self._secured = dict.fromkeys(secured, 0)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """`host:port`, for `bootstrap_servers`; known once started."""
        return address(self.host, self.port)

    def secured(self, protocol: str) -> str:
        """`host:port` of the listener for that security protocol; known once started."""
        return address(self.host, self._secured[protocol])

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self, timeout_s: float = START_TIMEOUT_S) -> EmbeddedBroker:
        """Start, and return once it answers requests. Formats the storage when it is new.

        Raises BrokerFailed, with the end of its log once it has one; JarsMissing, JavaMissing.
        """
        if self.pid is not None:
            raise BrokerFailed(f"the broker in {self.directory} runs already (process {self.pid})")
        jars, java = broker_jars(), java_command()
        classpath = f"{jars[0].parent}/*"
        try:
            config = self._write_config()
            if not (self.directory / "data" / "meta.properties").exists():
                self._format(java, classpath, config)
            with deferred():
                self._process = self._launch(java, classpath, config)
            self._wait_until_it_serves(time.monotonic() + timeout_s)
        except OSError as problem:
            self.kill()
            raise BrokerFailed(f"cannot run a broker in {self.directory}: {problem}") from problem
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """End it in order (SIGTERM); SIGKILL when it has not ended after `STOP_TIMEOUT_S`."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def kill(self) -> None:
        """End it as a crash would (SIGKILL), and wait until it is gone.

        The next start then takes about 10 s: Kafka's controller holds the node for alive until
        `broker.session.timeout.ms` (9 s) has passed.
        """
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def check(self) -> None:
        """Raise BrokerFailed if it was started and ended by itself."""
        if self._process is not None and (code := self._process.poll()) is not None:
            raise self._failed(f"ended with exit code {code}")

    def log_end(self, lines: int = _SHOWN_LOG_LINES) -> str:
        """The last lines that it logged, and what the JVM itself printed."""
        texts = [_read(self.log_file), _read(self.directory / "broker.out")]
        return "\n".join(line for text in texts for line in text.splitlines()[-lines:])

    def __enter__(self) -> EmbeddedBroker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _write_config(self) -> Path:
        if "," in str(self.directory):
            raise BrokerFailed(f"{self.directory}: Kafka takes a comma in log.dirs for a separator")
        self.directory.mkdir(parents=True, exist_ok=True)
        self.port = self.port or _free_port(self.host)
        self._secured = {protocol: port or _free_port(self.host) for protocol, port in self._secured.items()}
        properties = node_properties(
            data=self.directory / "data",
            listener=self.bootstrap,
            # Nobody keeps this address, so any free port will do at each start.
            controller=address(self.host, _free_port(self.host)),
            secured={protocol: self.secured(protocol) for protocol in self._secured},
        )
        config = self.directory / "server.properties"
        config.write_text(properties_text(properties | self._properties), encoding="latin-1")
        return config

    def _format(self, java: str, classpath: str, config: Path) -> None:
        cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # Kafka's ids must not begin with a dash: its own option parser would take it for an option.
        cluster_id = "A" + cluster_id[1:]
        command = [java, "-Xmx128m", "-XX:TieredStopAtLevel=1", *self._log_options(), "-cp", classpath]
        command += ["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(config)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_FORMAT_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise BrokerFailed(f"formatting {self.directory} took over {_FORMAT_TIMEOUT_S:.0f} s") from error
        if done.returncode != 0:
            raise BrokerFailed(f"could not format {self.directory}:\n{done.stdout}{done.stderr}")

    def _launch(self, java: str, classpath: str, config: Path) -> subprocess.Popen[bytes]:
        command = [java, f"-Xmx{self.heap}", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"]
        command += [*self._log_options(), "-cp", classpath, "kafka.Kafka", str(config)]
        wrapper = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]
        self.log_file.unlink(missing_ok=True)
        with open(self.directory / "broker.out", "wb") as out:
            # A session of its own, so that Ctrl-C on a terminal reaches who started it and not the broker.
            return subprocess.Popen(wrapper, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)

    def _log_options(self) -> list[str]:
        return [f"-Dlog4j2.configurationFile={_LOG_CONFIG}", f"-Ddelayline.broker.log={self.log_file}"]

    def _wait_until_it_serves(self, deadline_s: float) -> None:
        while True:
            self.check()
            if _serves(self.host, self.port):
                return
            if time.monotonic() > deadline_s:
                raise self._failed(f"does not answer at {self.bootstrap}")
            time.sleep(0.05)

    def _failed(self, how: str) -> BrokerFailed:
        return BrokerFailed(f"the broker in {self.directory} {how}; the end of its log:\n{self.log_end()}")


def _free_port(host: str) -> int:
    """A port that was free a moment ago. Raises BrokerFailed where `host` is no address of this machine."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.bind((host, 0))
            return int(probe.getsockname()[1])
    # Unicode: a name that the resolver cannot even be asked for, such as one with two dots in a row.
    except (OSError, UnicodeError) as problem:
        raise BrokerFailed(f"cannot listen on {host!r}, which has to be this machine's: {problem}") from problem


def _serves(host: str, port: int) -> bool:
    """Whether the node answers that it is a registered broker; its port is open well before that."""
    try:
        # A plain connection first: the client would log each refusal as a warning.
        socket.create_connection((host, port), timeout=1).close()
        with KafkaAdminClient(bootstrap_servers=address(host, port), bootstrap_timeout_ms=2_000) as admin:
            return any(not broker.get("is_fenced") for broker in admin.describe_cluster()["brokers"])
    except (OSError, KafkaError):
        return False


def _read(file: Path) -> str:
    return file.read_text(errors="replace") if file.exists() else ""
