"""The HTTP server of a process: what it answers is computed when it is asked.

- `/metrics`: the process's metrics, as Prometheus reads them
- `/healthz`, `/readyz`: whether it makes progress, and whether it is on time; 503 if not
- `/status`: what the job knows of itself (`job_status`); 503 as long as it does not know enough
- `/problems`: the newest warnings and errors of its log, oldest first
- `POST /messages`: waiting messages, of the job alone (`look_door`)

Each answer names the application in a header, since another job may have the address.
"""

from __future__ import annotations

import errno
import json
import logging
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from conf.errors import SettingError
from streaming.monitor.client import APPLICATION_HEADER
from streaming.monitor.job_status import JobStatus
from streaming.monitor.look_door import LOOK_PATH, LookDoor
from streaming.monitor.recent_problems import RecentProblems

log = logging.getLogger(__name__)

# A client that sends nothing, or takes nothing, is dropped.
_TIMEOUT_S = 10.0
# How often a process looks whether the address that another one has is free.
_TAKEN_S = 5.0


@dataclass(frozen=True)
class Health:
    """Whether a process makes progress.

    `live` means that a restart would not help, `ready` that messages leave on time. `reasons` say what is wrong.
    """

    live: bool = True
    ready: bool = True
    reasons: list[str] = field(default_factory=list)


class MonitorServer:
    """Answers until it is closed. A context manager; `address` is host:port."""

    def __init__(
        self,
        key: str,
        address: str,
        registry: CollectorRegistry,
        health: Callable[[], Health],
        status: Callable[[], JobStatus | None] = lambda: None,
        application_id: str = "",
        process: str = "",
        looks: LookDoor | None = None,
    ) -> None:
        """Listen at `address`, host:port; port 0 is any free one. `key` is the setting that has it.

        Each answer names `application_id`, and each problem `process`: the name of this one. A process with `looks`
        shows messages.

        Raises SettingError if nobody can listen there.
        """
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        self._problems = RecentProblems(process)
        try:
            handler = _handler(registry, health, status, self._problems, application_id, looks)
            self._server = _Server(host, int(port), handler)
        except OSError as problem:
            raise SettingError(
                f'{key} = {address!r}: {problem.strerror or problem}. Choose another address, or "" to disable it'
            ) from problem
        bound = self._server.server_address[1]
        self.address = f"[{host}]:{bound}" if ":" in host else f"{host}:{bound}"
        logging.getLogger().addHandler(self._problems)
        self._thread = threading.Thread(target=self._server.serve_forever, name="monitor", daemon=True)
        self._thread.start()
        log.info("serving metrics and health at http://%s", self.address)

    def close(self) -> None:
        """Answer no more."""
        logging.getLogger().removeHandler(self._problems)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> MonitorServer:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()


class PatientServer:
    """A server of `open_server` that waits if another process listens at its address. A context manager.

    Whether a process answers matters less than what it does.
    """

    def __init__(self, open_server: Callable[[], MonitorServer], look_every_s: float = _TAKEN_S) -> None:
        """Look every `look_every_s` whether the address is free."""
        self._open_server = open_server
        self._look_every_s = look_every_s
        self._server: MonitorServer | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> PatientServer:
        """Open the server, now or once the address is free. Raises SettingError if nobody could ever listen there."""
        try:
            self._server = self._open_server()
        except SettingError as problem:
            if not isinstance(problem.__cause__, OSError) or problem.__cause__.errno != errno.EADDRINUSE:
                raise
            log.warning("metrics and health are unavailable until the address is free: %s", problem)
            self._thread = threading.Thread(target=self._wait, name="monitor-address", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        if self._server is not None:
            self._server.close()

    def _wait(self) -> None:
        while self._server is None and not self._closed.wait(self._look_every_s):
            with suppress(SettingError):
                self._server = self._open_server()


def registry_of(collector: Collector) -> CollectorRegistry:
    """Return a registry that has the metrics of `collector` alone."""
    registry = CollectorRegistry()
    registry.register(collector)
    return registry


class _Server(ThreadingHTTPServer):
    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Log the error that ended an answer. If the client has gone, only for debugging."""
        problem = sys.exception()
        if isinstance(problem, ConnectionError | TimeoutError):
            log.debug("%s ended its request: %s", client_address, problem)
        else:
            log.error("cannot answer %s", client_address, exc_info=problem)


def _handler(
    registry: CollectorRegistry,
    health: Callable[[], Health],
    status: Callable[[], JobStatus | None],
    problems: RecentProblems,
    application_id: str,
    looks: LookDoor | None,
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _TIMEOUT_S
        server_version = "delayline"
        sys_version = ""

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                encode, content_type = choose_encoder(self.headers.get("Accept", ""))
                self._answer(HTTPStatus.OK, content_type, encode(registry))
            elif path in ("/healthz", "/readyz"):
                state = health()
                good = state.live if path == "/healthz" else state.live and state.ready
                body = {"live": state.live, "ready": state.ready, "reasons": state.reasons}
                code = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
                self._answer(code, "application/json", json.dumps(body).encode() + b"\n")
            elif path == "/status":
                known = status()
                code = HTTPStatus.SERVICE_UNAVAILABLE if known is None else HTTPStatus.OK
                self._answer(code, "application/json", b"null\n" if known is None else known.to_json() + b"\n")
            elif path == "/problems":
                self._answer(HTTPStatus.OK, "application/json", json.dumps(problems.newest()).encode() + b"\n")
            else:
                known_paths = b"/metrics, /healthz, /readyz, /status and /problems are here\n"
                self._answer(HTTPStatus.NOT_FOUND, "text/plain", known_paths)

        do_HEAD = do_GET

        def do_POST(self) -> None:
            if looks is None or self.path != LOOK_PATH:
                self._answer(HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", b"this path takes no POST\n")
                return
            reply = looks.reply(self.headers, self.client_address[0], self.rfile)
            self._answer(reply.status, reply.content_type, reply.body)

        def _answer(self, code: HTTPStatus, content_type: str, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header(APPLICATION_HEADER, application_id)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            log.debug("%s: %s", self.address_string(), format % args)

    return Handler
