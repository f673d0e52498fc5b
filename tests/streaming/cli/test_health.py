"""`delayline health`: its output about a process, and its exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

from conf.errors import SettingError
from streaming.cli.app import app
from streaming.local.free_port import free_port
from streaming.monitor.server import Health, MonitorServer
from tests.http_answers import answering, say


class Process:
    """A process with a health that a test sets."""

    health = Health()

    def __init__(self, port: int = 0) -> None:
        self.server = MonitorServer(
            "monitor.job", f"127.0.0.1:{port}", CollectorRegistry(), lambda: self.health, application_id="delayline"
        )


@contextmanager
def two_processes() -> Iterator[tuple[Process, Process]]:
    """Two processes, the second at the port behind the first's."""
    for _ in range(100):
        first = Process()
        try:
            second = Process(int(first.server.address.rpartition(":")[2]) + 1)
        except (SettingError, OverflowError):
            first.server.close()
            continue
        with first.server, second.server:
            yield first, second
        return
    raise AssertionError("no two free ports side by side")


@pytest.fixture
def process() -> Iterator[Process]:
    process = Process()
    yield process
    process.server.close()


def health(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["health", *arguments])
    return result.exit_code, result.output.strip()


def test_it_says_whether_the_process_is_ready_and_why_not(process: Process) -> None:
    at = ("--set", f"monitor.job={process.server.address}")
    assert health(*at) == (0, "ready")
    process.health = Health(True, False, ["no batch finished for 61 s", "it is cold"])
    assert health(*at) == (1, "not ready: no batch finished for 61 s; it is cold")
    assert health("--live", *at) == (0, "live: no batch finished for 61 s; it is cold")
    process.health = Health(False, False, ["it stands still"])
    assert health("--live", *at) == (1, "not live: it stands still")


def test_another_job_that_has_the_address_says_nothing_of_this_one(process: Process) -> None:
    at = ("--set", f"monitor.job={process.server.address}", "--set", "application_id=other")
    assert health(*at) == (1, f"another application answers at {process.server.address}: delayline")
    assert health(*at, "--live")[0] == 1


def test_an_address_for_all_of_the_host_is_asked_on_this_host(process: Process) -> None:
    port = process.server.address.rpartition(":")[2]
    assert health("release", "--set", f"monitor.release=0.0.0.0:{port}") == (0, "ready")


def test_each_release_process_of_the_job_must_be_ready() -> None:
    with two_processes() as (first, second):
        at = ("release", "--set", "release.processes=2", "--set", f"monitor.release={first.server.address}")
        assert health(*at) == (0, f"{first.server.address}: ready\n{second.server.address}: ready")
        second.health = Health(True, False, ["it stands by"])
        assert health(*at) == (1, f"{first.server.address}: ready\n{second.server.address}: not ready: it stands by")
        assert health(*at, "--live")[0] == 0
        assert health(*at, "--set", "release.processes=0") == (0, "ready")
        second.server.close()
        code, said = health(*at)
        assert code == 1
        assert said.startswith(f"{first.server.address}: ready\nno answer from {second.server.address}: ")


def test_a_process_that_is_not_there_is_not_ready() -> None:
    address = f"127.0.0.1:{free_port()}"
    code, said = health("--set", f"monitor.job={address}")
    assert (code, said.partition(": ")[0]) == (1, f"no answer from {address}")


@pytest.mark.parametrize("address", ["", "127.0.0.1:0"])
def test_an_address_without_a_port_cannot_be_asked(address: str) -> None:
    code, said = health("--set", f"monitor.job={address}")
    assert code == 2
    assert said.startswith("error: bad-usage: monitor.job = ")


@pytest.mark.parametrize("address", ["9464", "host:70000", ":1", "a b:1", "http://host:1"])
def test_what_is_no_address_is_refused(address: str) -> None:
    code, said = health("--set", f"monitor.job={address}")
    assert code == 2
    assert "monitor.job" in said


def test_a_terminal_obeys_nothing_of_what_another_server_says() -> None:
    body = b'{"reasons": ["\\u001b[2J"]}'
    with answering(lambda request: say(request, 503, body)) as address:
        assert health("--set", f"monitor.job={address}") == (1, "not ready: \N{REPLACEMENT CHARACTER}[2J")
    with answering(lambda request: say(request, 200, body, Delayline_Application="\x1b[2J")) as address:
        code, said = health("--set", f"monitor.job={address}")
        assert (code, said) == (1, f"another application answers at {address}: \N{REPLACEMENT CHARACTER}[2J")
