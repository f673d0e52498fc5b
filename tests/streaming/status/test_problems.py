"""Asking processes for the problems of their logs: servers stand for them, or sockets that do not answer."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from conf.load import load_settings
from conf.settings import Settings
from streaming.monitor.server import Health, MonitorServer
from streaming.status import problems as module
from streaming.status.problems import ProcessProblems
from tests.http_answers import answering, say

log = logging.getLogger(__name__)


def server(process: str, host: str = "127.0.0.1") -> MonitorServer:
    registry = CollectorRegistry()
    return MonitorServer("monitor.job", f"{host}:0", registry, Health, application_id="mine", process=process)


def settings_of(*overrides: str) -> Settings:
    return load_settings(None, ["application_id=mine", *overrides], environ={})


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a process that takes connections and does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_processes_elsewhere_say_their_problems_once_and_under_their_names() -> None:
    with server("job") as job, server("pod-7") as release:
        log.warning("something is wrong")
        port = release.address.rpartition(":")[2]
        addresses = f"monitor.process_addresses={release.address},localhost:{port}"
        found = ProcessProblems(settings_of(f"monitor.job={job.address}", addresses)).newest()
    assert sorted(each["process"] for each in found) == ["job", "pod-7"]
    assert {each["message"] for each in found} == {"something is wrong"}


def test_the_problems_of_another_application_at_the_address_are_not_shown() -> None:
    with server("job") as job:
        log.warning("all of the other")
        own = settings_of(f"monitor.job={job.address}")
        assert [each["message"] for each in ProcessProblems(own).newest()] == ["all of the other"]
        assert ProcessProblems(own.model_copy(update={"application_id": "another"})).newest() == []


def test_a_process_that_does_not_answer_holds_up_nobody(silent: str) -> None:
    with server("job") as job:
        log.warning("something is wrong")
        settings = settings_of(f"monitor.job={job.address}", f"monitor.process_addresses={silent}")
        asked = ProcessProblems(settings)
        times_s = []
        for _ in range(2):
            begun_s = time.monotonic()
            assert [each["message"] for each in asked.newest()] == ["something is wrong"]
            times_s.append(time.monotonic() - begun_s)
    # As long as an answer to it is still to come, nobody waits for it again.
    assert times_s[0] < 3 > times_s[1]
    assert times_s[1] < module._WAIT_S


def test_a_name_that_is_not_resolved_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = threading.Event()
    known = socket.getaddrinfo

    def slow(host: str, *arguments: Any, **options: Any) -> Any:
        if host == "unknown.example":
            assert resolved.wait(60)
            raise socket.gaierror("unknown")
        return known(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with server("pod-7") as release:
        log.warning("something is wrong")
        asked = ProcessProblems(settings_of(f"monitor.process_addresses=unknown.example:1,{release.address}"))
        begun_s = time.monotonic()
        assert [each["message"] for each in asked.newest()] == ["something is wrong"]
        assert time.monotonic() - begun_s < 30
        resolved.set()


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"{}", b"[1]", b'[{"at_ms": Infinity, "level": "", "message": ""}]', b"[" * 100_000],
    ids=["nothing", "null", "an object", "numbers", "at no instant", "lists in lists"],
)
# One is raised in a thread.
@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_answer_that_is_not_a_list_of_problems_is_ignored(body: bytes) -> None:
    with server("pod-7") as release, answering(lambda request: say(request, 200, body)) as other:
        log.warning("something is wrong")
        settings = settings_of(f"monitor.job={other}", f"monitor.process_addresses={release.address}")
        assert [each["message"] for each in ProcessProblems(settings).newest()] == ["something is wrong"]


def test_a_text_is_cut_and_has_what_the_page_can_send() -> None:
    problem = {"at_ms": 10**20, "process": "\udcff", "level": "l" * 5_000, "message": "\ud83d\ude00" * 5_000}
    with answering(lambda request: say(request, 200, json.dumps([problem]).encode())) as job:
        (found,) = ProcessProblems(settings_of(f"monitor.job={job}")).newest()
    assert found == {"at_ms": 10**20, "process": "?", "level": "l" * 1_000, "message": "\U0001f600" * 1_000}


@pytest.mark.parametrize("address", ["host", "host:0", "host:70000", "a b:1", "http://host:1"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(Exception, match="host:port with a port from 1 to 65535"):
        settings_of(f"monitor.process_addresses={address}")
