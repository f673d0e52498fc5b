"""A single Kafka node in KRaft mode, run from the jars that `conf.java.jars` downloaded."""

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
from conf.java.command import JAVA_FILES, java_command
from conf.java.jars.installed import broker_jars
from streaming.local.broker_properties import address, node_properties, properties_text
from streaming.local.free_port import free_port

_LOG_CONFIG = JAVA_FILES / "broker-log4j2.properties"
_LONG_RUNNING = ("-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
# The second compiler pays off only after minutes, and until then takes half of a broker's CPU time.
SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
_FORMAT_TIMEOUT_S = 60.0
_SHOWN_LOG_LINES = 30
# A program that asks the kernel to kill it when its parent dies (PR_SET_PDEATHSIG = 1), and then becomes the broker:
# a killed test must not leave a broker running. It is a separate program, because in a process with threads, code
# between fork and exec can hang. SIGKILL does no harm to Kafka: acknowledged records are in the page cache.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]): sys.exit("the parent is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


class EmbeddedBroker:
    """A broker with its data, configuration and logs in `directory`, which listens on `host`:`port`.

    As a context manager it starts and stops the broker. Otherwise, call `start` from a thread that outlives the broker:
    on Linux the broker dies with that thread.

    Args:
        directory: folder for data, configuration and logs.
        port: the port; 0 picks a free one, which stays the same for later starts of this object.
        host: the address to listen on.
        properties: Kafka properties that override the defaults of `broker_properties`.
        heap: Java's maximum heap size.
        secured: security protocols (SSL, SASL_SSL) to serve in addition, each on a separate port; `properties` has
            their certificates and logins. The plain listener stays, because the node itself uses it.
        java: Java's options, by default those for a broker that runs for long.
    """

    def __init__(
        self,
        directory: Path,
        port: int = 0,
        host: str = "127.0.0.1",
        properties: Mapping[str, str] | None = None,
        heap: str = "1g",
        secured: Sequence[str] = (),
        java: Sequence[str] = _LONG_RUNNING,
    ) -> None:
        self.directory = Path(directory).absolute()
        self.host = host
        self.port = port
        self.heap = heap
        self.log_file = self.directory / "broker.log"
        self._properties = dict(properties or {})
        self._secured = dict.fromkeys(secured, 0)
        self._java_options = java
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """`host:port`, for `bootstrap_servers`; valid after the start."""
        return address(self.host, self.port)

    def secured(self, protocol: str) -> str:
        """Return `host:port` of the listener for that security protocol; valid after the start."""
        return address(self.host, self._secured[protocol])

    @property
    def pid(self) -> int | None:
        """The broker's process id; None if it does not run."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self, timeout_s: float = START_TIMEOUT_S) -> EmbeddedBroker:
        """Start the broker, and return when it answers requests. Formats the storage if it is new.

        Raises BrokerFailed, with the end of the log if there is one; JarsMissing, JavaMissing.
        """
        if self.pid is not None:
            raise BrokerFailed(f"the broker in {self.directory} is already running (process {self.pid})")
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
        """Stop the broker by SIGTERM, or by SIGKILL if it has not ended after `STOP_TIMEOUT_S`."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def kill(self) -> None:
        """Kill the broker by SIGKILL, like a crash, and wait until it has ended.

        The next start then takes about 10 s: Kafka's controller considers the node alive until
        `broker.session.timeout.ms` (9 s) has passed.
        """
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def check(self) -> None:
        """Raise BrokerFailed if the broker was started and has ended by itself."""
        if self._process is not None and (code := self._process.poll()) is not None:
            raise self._failed(f"ended with exit code {code}")

    def log_end(self, lines: int = _SHOWN_LOG_LINES) -> str:
        """Return the last lines of the broker's log, and of the JVM's own output."""
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
            raise BrokerFailed(
                f"{self.directory}: the path must not contain a comma, because log.dirs is a comma-separated list"
            )
        self.directory.mkdir(parents=True, exist_ok=True)
        self.port = self.port or free_port(self.host)
        self._secured = {protocol: port or free_port(self.host) for protocol, port in self._secured.items()}
        properties = node_properties(
            data=self.directory / "data",
            listener=self.bootstrap,
            # Nothing stores this address, so each start can use another free port.
            controller=address(self.host, free_port(self.host)),
            secured={protocol: self.secured(protocol) for protocol in self._secured},
        )
        config = self.directory / "server.properties"
        config.write_text(properties_text(properties | self._properties), encoding="latin-1")
        return config

    def _format(self, java: str, classpath: str, config: Path) -> None:
        cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # The id must not begin with a dash: Kafka's option parser would read it as an option.
        cluster_id = "A" + cluster_id[1:]
        command = [java, "-Xmx128m", *SHORT_LIVED, *self._log_options(), "-cp", classpath]
        command += ["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(config)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_FORMAT_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise BrokerFailed(f"formatting {self.directory} took longer than {_FORMAT_TIMEOUT_S:.0f} s") from error
        if done.returncode != 0:
            raise BrokerFailed(f"could not format {self.directory}:\n{done.stdout}{done.stderr}")

    def _launch(self, java: str, classpath: str, config: Path) -> subprocess.Popen[bytes]:
        command = [java, f"-Xmx{self.heap}", *self._java_options]
        command += [*self._log_options(), "-cp", classpath, "kafka.Kafka", str(config)]
        wrapper = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]
        self.log_file.unlink(missing_ok=True)
        with open(self.directory / "broker.out", "wb") as out:
            # A new group, so that Ctrl-C on a terminal does not reach the broker. Not a new session: Linux gives each
            # session the same share of the processors, and priorities then mean nothing between two of them.
            return subprocess.Popen(wrapper, stdin=subprocess.DEVNULL, stdout=out, stderr=out, process_group=0)

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

    def _failed(self, problem: str) -> BrokerFailed:
        return BrokerFailed(f"the broker in {self.directory} {problem}; the end of its log:\n{self.log_end()}")


def _serves(host: str, port: int) -> bool:
    """Return whether the node is a registered broker. Its port opens some time before that."""
    try:
        # Try a plain connection first: the Kafka client would log each refusal as a warning.
        socket.create_connection((host, port), timeout=1).close()
        with KafkaAdminClient(bootstrap_servers=address(host, port), bootstrap_timeout_ms=2_000) as admin:
            return any(not broker.get("is_fenced") for broker in admin.describe_cluster()["brokers"])
    except (OSError, KafkaError):
        return False


def _read(file: Path) -> str:
    return file.read_text(errors="replace") if file.exists() else ""
