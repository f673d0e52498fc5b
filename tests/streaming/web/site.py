"""The page's server without a job behind it, and requests to it."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from conf.load import load_settings
from streaming.cli.web import listen
from streaming.web.history import History
from streaming.web.selections import Messages
from streaming.web.server import web_app
from tests.eventually import assert_eventually


class Site:
    """The page's server, and a browser of it."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(
        self, method: str, path: str, body: bytes | dict[str, Any] | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        content = json.dumps(body).encode() if isinstance(body, dict) else body
        headers = {"content_type": "application/json"} | headers
        connection.request(method, path, content, {name.replace("_", "-"): text for name, text in headers.items()})
        answer = connection.getresponse()
        found = answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read()
        connection.close()
        return found

    def refusal(self, path: str, body: bytes | dict[str, Any] | None = None, **headers: str) -> tuple[int, str]:
        """Return the status and the error of a POST."""
        status, _, answer = self.ask("POST", path, {} if body is None else body, **headers)
        return status, json.loads(answer)["error"]


@contextmanager
def site(*overrides: str, messages: Any = None, history: Any = None) -> Iterator[Site]:
    """Serve the page of a job that does not run. `messages` stands in for waiting messages, `history` for samples."""
    settings = load_settings(
        None,
        ["monitor.job=127.0.0.1:1", "kafka.bootstrap_servers=127.0.0.1:1", "topics.input=in", *overrides],
        environ={},
    )
    listening = listen("127.0.0.1", 0)
    with Messages(settings) as waiting:
        app = web_app(settings, history or History(settings), messages or waiting)
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            assert_eventually(lambda: server.started)
            yield Site(listening.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join()
