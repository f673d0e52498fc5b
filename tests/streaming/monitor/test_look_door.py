"""Who gets messages from the job's server, and which requests reach the job."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from http import HTTPStatus

import pytest
from prometheus_client import CollectorRegistry

from streaming.monitor.client import Post, ask
from streaming.monitor.look_door import LookDoor, Reply
from streaming.monitor.server import Health, MonitorServer

_TOKEN = "a-token-of-24-characters"
_NO_HEADERS: Mapping[str, str | None] = {}


class Job:
    """A job that answers a request with the same bytes."""

    def __init__(self, token: str) -> None:
        self.asked = list[bytes]()
        self.server = MonitorServer(
            "monitor.job",
            "127.0.0.1:0",
            CollectorRegistry(),
            Health,
            application_id="mine",
            looks=LookDoor(token, self._answer),
        )

    def _answer(self, body: bytes) -> Reply:
        self.asked.append(body)
        return Reply(HTTPStatus.OK, body, "application/x")

    def post(self, headers: Mapping[str, str | None] = _NO_HEADERS, path: str = "/messages") -> tuple[int, bytes]:
        """Send `{}` with further headers. One that is None is left out."""
        every = {"Content-Type": "application/json", "Content-Length": "2"} | dict(headers)
        connection = http.client.HTTPConnection(self.server.address, timeout=10)
        connection.putrequest("POST", path, skip_host="Host" in every)
        for name, value in every.items():
            if value is not None:
                connection.putheader(name, value)
        connection.endheaders(b"{}")
        answer = connection.getresponse()
        said = answer.status, answer.read()
        connection.close()
        return said

    def refusal(self, headers: Mapping[str, str | None]) -> tuple[int, str]:
        """Return the status and the error of a request that does not reach the job."""
        status, said = self.post(headers)
        assert self.asked == []
        return status, json.loads(said)["error"]


@pytest.fixture
def job() -> Iterator[Job]:
    """A job without a token."""
    job = Job("")
    yield job
    job.server.close()


@pytest.fixture
def guarded() -> Iterator[Job]:
    """A job with a token."""
    job = Job(_TOKEN)
    yield job
    job.server.close()


def test_without_a_token_a_client_on_this_host_gets_messages(job: Job) -> None:
    answer = ask(job.server.address, "/messages", Post(b'{"limit":1}', "", 10))
    assert (answer.code, answer.body, answer.application_id) == (200, b'{"limit":1}', "mine")
    assert job.post({"Host": "localhost:9464"}) == (200, b"{}")


@pytest.mark.parametrize("host", ["delayline.example:9464", "127.0.0.1.example", "192.168.1.7:9464", ""])
def test_the_page_of_another_site_gets_none(job: Job, host: str) -> None:
    status, error = job.refusal({"Host": host})
    assert (status, "on this host only" in error) == (403, True)


@pytest.mark.parametrize("name", ["Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP"])
def test_without_a_token_a_proxy_gets_none(job: Job, name: str) -> None:
    status, error = job.refusal({name: "10.0.0.1"})
    assert (status, "through a proxy" in error) == (403, True)


@pytest.mark.parametrize("given", [None, "", "Bearer", "Bearer wrong", f"Basic {_TOKEN}", f"Bearer {_TOKEN}x"])
def test_with_a_token_in_the_settings_messages_need_it(guarded: Job, given: str | None) -> None:
    assert guarded.refusal({"Authorization": given}) == (401, "enter the token of web.token")


def test_a_client_with_the_token_may_be_anywhere(guarded: Job) -> None:
    elsewhere = {"Authorization": f"Bearer {_TOKEN}", "Host": "delayline.example", "Via": "1.1 proxy"}
    assert guarded.post(elsewhere) == (200, b"{}")
    assert ask(guarded.server.address, "/messages", Post(b"{}", _TOKEN, 10)).code == 200


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_a_form_of_another_site_asks_nothing(job: Job, kind: str | None) -> None:
    assert job.refusal({"Content-Type": kind}) == (415, "the body must be application/json")


@pytest.mark.parametrize("length", [None, "", "-1", "two", "²"])
def test_a_request_without_a_length_is_refused(job: Job, length: str | None) -> None:
    given = None if length is None else length.encode().decode("latin-1")
    assert job.refusal({"Content-Length": given}) == (411, "the request must have a Content-Length")


@pytest.mark.parametrize("length", ["1000001", "9" * 5_000])
def test_a_request_that_would_be_huge_is_refused_unread(job: Job, length: str) -> None:
    assert job.refusal({"Content-Length": length}) == (413, "the body must have at most 1,000,000 bytes")


def test_other_paths_take_no_request(job: Job) -> None:
    assert job.post(path="/status")[0] == 405
    assert job.asked == []
