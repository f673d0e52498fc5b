from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from kafka.errors import KafkaConnectionError

from conf.kafka import tokens
from conf.kafka.oauthbearer import ClientCredentials
from conf.kafka.tokens import FetchedTokens


class Endpoint:
    """A token endpoint that gives `answer`, and keeps the requests: login and form."""

    def __init__(self) -> None:
        self.answer: object = {}
        self.requests: list[tuple[str, bytes]] = []
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = self.rfile.read(int(self.headers["Content-Length"]))
                endpoint.requests.append((self.headers["Authorization"], form))
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(endpoint.answer).encode())

            def log_message(self, format: str, *args: object) -> None:
                """Print nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    thread = threading.Thread(target=endpoint.server.serve_forever)
    thread.start()
    yield endpoint
    endpoint.server.shutdown()
    endpoint.server.server_close()
    thread.join()


@pytest.fixture
def provider(endpoint: Endpoint) -> FetchedTokens:
    url = f"http://127.0.0.1:{endpoint.server.server_port}/"
    return FetchedTokens(ClientCredentials(url, "me", "s&cret", "a b", (("pool", "1"),)))


def test_a_token_is_fetched_once_and_again_when_most_of_its_life_is_over(
    endpoint: Endpoint, provider: FetchedTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(tokens.time, "monotonic", lambda: now_s)
    endpoint.answer = {"access_token": "one", "expires_in": 100}
    assert (provider.token(), provider.extensions()) == ("one", {"pool": "1"})
    endpoint.answer = {"access_token": "two", "expires_in": 100}
    now_s += 79
    assert provider.token() == "one"
    now_s += 1
    assert provider.token() == "two"
    # Base64 of `me:s&cret`, as RFC 7617 has it.
    assert endpoint.requests == [("Basic bWU6cyZjcmV0", b"grant_type=client_credentials&scope=a+b")] * 2


def test_a_token_without_a_lifetime_is_fetched_for_each_connection(endpoint: Endpoint, provider: FetchedTokens) -> None:
    for token in ("one", "two"):
        endpoint.answer = {"access_token": token}
        assert provider.token() == token


@pytest.mark.parametrize("answer", [{"error": "invalid_scope"}, {"access_token": 7}, [], "text"])
def test_an_answer_without_a_token_is_an_error(endpoint: Endpoint, provider: FetchedTokens, answer: object) -> None:
    endpoint.answer = answer
    with pytest.raises(KafkaConnectionError, match="answered without an access_token"):
        provider.token()
