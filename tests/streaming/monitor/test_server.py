"""The HTTP server of a process: its answers, and who gets them."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import time
from collections.abc import Iterator
from functools import partial

import pytest
from prometheus_client import CollectorRegistry, Counter

from conf.errors import SettingError
from conf.load import load_settings
from streaming.monitor.client import ask
from streaming.monitor.monitored import monitored
from streaming.monitor.server import Health, MonitorServer, PatientServer
from tests.eventually import assert_eventually


class Process:
    """A process with one metric, and a health that a test sets."""

    health = Health()

    def __init__(self) -> None:
        registry = CollectorRegistry()
        Counter("delayline_things", "Things.", registry=registry).inc(3)
        self.server = MonitorServer("monitor.job", "127.0.0.1:0", registry, lambda: self.health, application_id="mine")

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str, bytes]:
        connection = http.client.HTTPConnection(self.server.address, timeout=10)
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, answer.headers["Content-Type"], body


@pytest.fixture
def process() -> Iterator[Process]:
    process = Process()
    yield process
    process.server.close()


def test_metrics_are_in_the_format_that_the_client_asks_for(process: Process) -> None:
    status, kind, body = process.ask("/metrics")
    assert (status, kind.partition(";")[0]) == (200, "text/plain")
    assert b"\ndelayline_things_total 3.0\n" in body
    status, kind, body = process.ask("/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert (status, kind.partition(";")[0]) == (200, "application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


@pytest.mark.parametrize(
    ("health", "live", "ready"),
    [(Health(), 200, 200), (Health(True, False, ["late"]), 200, 503), (Health(False, True, ["stuck"]), 503, 503)],
)
def test_probes_tell_by_status_and_reason(process: Process, health: Health, live: int, ready: int) -> None:
    process.health = health
    assert process.ask("/healthz")[0] == live
    status, kind, body = process.ask("/readyz")
    assert (status, kind) == (ready, "application/json")
    assert json.loads(body) == {"live": health.live, "ready": health.ready, "reasons": health.reasons}


def test_what_ends_an_answer_is_a_line_of_the_log_and_a_client_that_has_gone_is_none(
    process: Process,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def health(_: Process) -> Health:
        raise next(errors)

    errors = iter([BrokenPipeError(), ValueError("a broken table")])
    monkeypatch.setattr(Process, "health", property(health))
    for _ in range(2):
        with pytest.raises(http.client.RemoteDisconnected):
            process.ask("/healthz")
    assert_eventually(lambda: bool(caplog.records))
    (line,) = caplog.records
    assert line.exc_info is not None
    assert str(line.exc_info[1]) == "a broken table"
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz", "/status", "/problems", "/nothing"])
def test_each_answer_names_the_application(process: Process, path: str) -> None:
    assert ask(process.server.address, path).application_id == "mine"


def test_a_process_that_does_not_know_its_status_says_so(process: Process) -> None:
    assert process.ask("/status") == (503, "application/json", b"null\n")


def test_other_paths_and_methods_are_refused(process: Process) -> None:
    assert process.ask("/")[0] == 404
    assert process.ask("/metrics", "POST")[0] == 405
    assert process.ask("/metrics", "PUT")[0] == 501
    assert process.ask("/metrics", "HEAD")[2] == b""


def test_a_client_that_sends_nothing_holds_up_no_other(process: Process) -> None:
    host, _, port = process.server.address.rpartition(":")
    with socket.create_connection((host, int(port))):
        assert process.ask("/healthz")[0] == 200


def test_an_address_that_is_taken_is_named(process: Process) -> None:
    address = process.server.address
    with pytest.raises(SettingError, match=f"monitor.release = '{address}': .*in use"):
        MonitorServer("monitor.release", address, CollectorRegistry(), Health)


def test_a_process_that_waits_for_its_address_goes_on_and_answers_once_it_is_free(
    process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    address = process.server.address
    settings = load_settings(None, [f"monitor.release={address}"], environ={})
    with pytest.raises(SettingError, match="in use"), monitored("release", settings, CollectorRegistry(), Health):
        pass
    mine = Health(True, False, ["mine"])
    own = partial(MonitorServer, "monitor.release", address, CollectorRegistry(), lambda: mine)
    with PatientServer(own, look_every_s=0.05):
        assert f"until the address is free: bad-setting: monitor.release = '{address}'" in caplog.text
        assert json.loads(process.ask("/readyz")[2])["reasons"] == []
        process.server.close()
        assert_eventually(lambda: _answers(address))
        assert json.loads(process.ask("/readyz")[2])["reasons"] == ["mine"]
    assert not _answers(address)
    # It is free again for the one of the fixture, and one that waits in vain ends at once.
    process.server = MonitorServer("monitor.job", address, CollectorRegistry(), Health)
    with monitored("release", settings, CollectorRegistry(), Health, waits_for_address=True):
        pass


def test_an_address_that_this_host_does_not_have_is_refused_in_any_case() -> None:
    # One of the addresses for documentation, which no host has.
    settings = load_settings(None, ["monitor.release=192.0.2.1:9465"], environ={})
    with (
        pytest.raises(SettingError, match=r"monitor\.release = '192\.0\.2\.1:9465'"),
        monitored("release", settings, CollectorRegistry(), Health, waits_for_address=True),
    ):
        pass


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port))).close()
    except OSError:
        return False
    return True


def test_the_newest_problems_of_the_log_are_told(process: Process) -> None:
    log = logging.getLogger("sinks.release.shard")
    log.info("nothing special")
    log.warning("shard %d is late", 3)
    log.error("x" * 5_000)
    status, kind, body = process.ask("/problems")
    assert (status, kind) == (200, "application/json")
    first, second = json.loads(body)[-2:]
    assert (first["level"], first["logger"], first["message"]) == ("WARNING", "sinks.release.shard", "shard 3 is late")
    assert abs(first["at_ms"] - time.time() * 1000) < 60_000
    assert (second["level"], len(second["message"])) == ("ERROR", 1_000)
    for number in range(100):
        log.warning("%d", number)
    assert [problem["message"] for problem in json.loads(process.ask("/problems")[2])] == [
        str(number) for number in range(50, 100)
    ]
