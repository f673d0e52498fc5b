"""A Spark standalone cluster on loopback: one master, and workers that can be killed, paused and restarted."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil
import pyspark

from benchmarks.waiting import wait_until
from conf.process_tree import kill_tree
from streaming.local.free_port import free_port

SPARK = Path(pyspark.__file__).parent / "bin"
LOOPBACK = {"SPARK_LOCAL_IP": "127.0.0.1"}
_START_TIMEOUT_S = 90.0


class Cluster:
    """One master and workers with two cores each, all in separate processes and each worker on its own host."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder = folder
        # The whole network 127.0.0.0/8 is this machine. Spark takes each address for a host.
        self._hosts = {"master": "127.0.0.1", **{f"worker-{n}": f"127.0.0.{n + 1}" for n in range(1, workers + 1)}}
        port = free_port()
        self.url = f"spark://127.0.0.1:{port}"
        self._ports = ["--port", str(port), "--webui-port", str(free_port())]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start the master and the workers, and return when the workers are registered."""
        self._start_master()
        for name in self.workers:
            self.start_worker(name)

    def restart_master(self) -> None:
        """Kill the master, and start one that knows nothing of its applications."""
        kill_tree(self._processes["master"].pid)
        self._processes["master"].wait()
        self._start_master()

    def _start_master(self) -> None:
        self._start("master", ["org.apache.spark.deploy.master.Master", *self._ports], "I have been elected leader")

    @property
    def workers(self) -> list[str]:
        """The workers' names."""
        return [name for name in self._hosts if name != "master"]

    def process(self, name: str) -> psutil.Process:
        """Return the process of the master or of a worker. A worker's executors are its children."""
        return psutil.Process(self._processes[name].pid)

    def start_worker(self, name: str) -> None:
        """Start or restart a worker, and return when it is registered."""
        folder = self._folder / name
        command = ["org.apache.spark.deploy.worker.Worker", "--cores", "2", "--memory", "2g"]
        command += ["--webui-port", "0", "--work-dir", str(folder), self.url]
        self._start(name, command, "Successfully registered with master")

    def kill_worker(self, name: str) -> None:
        """Kill the worker, its executors and their Python processes (SIGKILL), like a crash of its host."""
        kill_tree(self._processes[name].pid)
        self._processes[name].wait()

    def stop(self) -> None:
        """Kill all processes by SIGKILL; their data is not kept."""
        for process in self._processes.values():
            if process.poll() is None:
                kill_tree(process.pid)
                process.wait()

    def delivering(self, name: str, broker_port: int) -> bool:
        """Return whether a Python process of this worker has a connection to the broker, like a writer."""
        return any(self._connections(process, broker_port) for process in self._python_processes(name))

    def daemons(self, name: str) -> int:
        """Return how many daemons of Python workers run on this worker. Each has imported the service's modules."""
        found = self._python_processes(name)
        return sum(process.ppid() not in {other.pid for other in found} for process in found)

    def connections(self, name: str, broker_port: int) -> int:
        """Return the number of connections to the broker of the Python processes of this worker."""
        return sum(self._connections(process, broker_port) for process in self._python_processes(name))

    def _python_processes(self, name: str) -> list[psutil.Process]:
        found = []
        for process in self.process(name).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if "streaming.spark.worker_daemon" in process.cmdline():
                    found.append(process)
        return found

    def _connections(self, process: psutil.Process, broker_port: int) -> int:
        with suppress(psutil.NoSuchProcess):
            connections = process.net_connections("tcp")
            return sum(bool(each.raddr) and each.raddr.port == broker_port for each in connections)
        return 0

    def _start(self, name: str, command: list[str], ready: str) -> None:
        log = self._folder / f"{name}.log"
        before = log.read_text(errors="replace").count(ready) if log.exists() else 0
        with log.open("ab") as output:
            self._processes[name] = subprocess.Popen(
                [str(SPARK / "spark-class"), command[0], "--host", self._hosts[name], *command[1:]],
                env=os.environ | {"SPARK_LOCAL_IP": self._hosts[name], "SPARK_DAEMON_MEMORY": "256m"},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        wait_until(
            lambda: log.read_text(errors="replace").count(ready) > before,
            _START_TIMEOUT_S,
            f"the start of {name}",
            lambda: None,
        )
