"""The page's server: its routes, and who may use which.

- Everybody who reaches the address sees the counts and charts.
- Messages and actions need the token of `web.token`. If it is not set, actions are disabled, and messages are shown
  only to a browser on the same host.

The token comes in a header that a browser never adds by itself, so that no other site's page can act (no cookies).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from conf.durations import parse_duration_ms
from conf.errors import DelaylineError, MissingExtra, UsageError
from conf.settings import Settings
from streaming.monitor.access import AccessRefused, check_may_look, check_token
from streaming.status.instants import named_instant_ms
from streaming.status.look import Look, message_fields
from streaming.web.actions import cancel, deliver_now, postpone
from streaming.web.history import History
from streaming.web.selections import Messages, Selection

log = logging.getLogger(__name__)

_STATIC = Path(__file__).parent / "static"
# No script but our own and the charts', nothing from elsewhere, in nobody's frame. The charts set styles in place.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'; "
        "base-uri 'none'; form-action 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_MOST_BODY_BYTES = 100_000
_MOST_SHOWN = 500
_MOST_DIGITS = 18
# This much is shown of a key, a value, and the headers of a message.
_SHOWN_BYTES = 2_000


def web_app(settings: Settings, history: History, messages: Messages) -> Starlette:
    """Return the application that serves the page. Raises MissingExtra."""
    page = _Page(settings, history, messages)
    return Starlette(
        routes=[
            Route("/", page.index),
            Route("/charts.js", page.charts),
            Route("/api/now", page.now),
            Route("/api/messages", page.shown, methods=["POST"]),
            Route("/api/selections", page.select, methods=["POST"]),
            Route("/api/selections/{token}/cancel", page.cancel, methods=["POST"]),
            Route("/api/selections/{token}/deliver-now", page.deliver_now, methods=["POST"]),
            Route("/api/selections/{token}/postpone", page.postpone, methods=["POST"]),
            Mount("/static", StaticFiles(directory=_STATIC)),
        ],
        middleware=[Middleware(_SafeHeaders)],
        exception_handlers={
            DelaylineError: _refused,
            AccessRefused: _no_access,
            HTTPException: _http_error,
            Exception: _unknown,
        },
    )


class _SafeHeaders:
    """Adds `_HEADERS` to each answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message["headers"], *own]
            await send(message)

        await self._app(scope, receive, send_with_headers)


class _Page:
    def __init__(self, settings: Settings, history: History, messages: Messages) -> None:
        self._settings = settings
        self._history = history
        self._messages = messages
        # The file alone: importing plotly takes a second.
        found = find_spec("plotly")
        if found is None or found.origin is None:
            raise MissingExtra("plotly is not installed: pip install 'delayline[web]'")
        self._charts = Path(found.origin).parent / "package_data" / "plotly.min.js"

    async def index(self, _: Request) -> Response:
        return FileResponse(_STATIC / "index.html")

    async def charts(self, _: Request) -> Response:
        return FileResponse(self._charts, media_type="text/javascript")

    async def now(self, request: Request) -> Response:
        since = request.query_params.get("since", "0")
        if not since.isdecimal() or len(since) > _MOST_DIGITS:
            raise UsageError(f"since {since!r}: allowed is epoch ms")
        known = self._history.now(int(since))
        return JSONResponse(
            known
            | {
                "application_id": self._settings.application_id,
                "now_ms": time.time_ns() // 1_000_000,
                "job": self._settings.monitor.job,
                "actions": bool(self._settings.web.token),
            }
        )

    async def shown(self, request: Request) -> Response:
        self._may_look(request)
        fields = await _fields(request, {"ids", "due_from", "due_until", "key", "topic", "newest", "limit"})
        wanted = self._wanted(fields)
        own_spark_because = list[str]()
        rows = await run_in_threadpool(self._messages.look, wanted, own_spark_because.append)
        found = [message_fields(row) | {"value_bytes": row["value_bytes"]} for row in rows]
        return JSONResponse({"messages": found, "own_spark_because": next(iter(own_spark_because), None)})

    async def select(self, request: Request) -> Response:
        self._may_act(request)
        fields = await _fields(request, {"ids", "due_from", "due_until", "key", "topic", "newest", "limit"})
        selection = await run_in_threadpool(self._messages.select, self._wanted(fields))
        return JSONResponse({"selection": selection.token, "count": len(selection.places)})

    async def cancel(self, request: Request) -> Response:
        return await self._ask_all(request, cancel)

    async def deliver_now(self, request: Request) -> Response:
        return await self._ask_all(request, deliver_now)

    async def _ask_all(
        self, request: Request, action: Callable[[Settings, Selection, str], dict[str, int]]
    ) -> Response:
        self._may_act(request)
        operator = _operator(await _fields(request, {"operator"}))
        selection = self._messages.take(request.path_params["token"])
        return JSONResponse({"results": await run_in_threadpool(action, self._settings, selection, operator)})

    async def postpone(self, request: Request) -> Response:
        self._may_act(request)
        fields = await _fields(request, {"operator", "by"})
        operator, by_ms = _operator(fields), _duration_ms("by", _text(fields, "by") or "")
        if by_ms <= 0:
            raise UsageError("by: allowed is a duration longer than 0")
        selection = self._messages.take(request.path_params["token"])
        results = await run_in_threadpool(postpone, self._settings, self._messages, selection, by_ms, operator)
        return JSONResponse({"results": results})

    def _may_look(self, request: Request) -> None:
        check_may_look(self._settings.web.token, request.headers, request.client.host if request.client else "")

    def _may_act(self, request: Request) -> None:
        token = self._settings.web.token
        if not token:
            raise HTTPException(403, "actions are disabled without web.token. Set web.token")
        check_token(token, request.headers)

    def _wanted(self, fields: dict[str, Any]) -> Look:
        now_ms = time.time_ns() // 1_000_000
        from_ms, until_ms = (_instant_ms(name, _text(fields, name), now_ms) for name in ("due_from", "due_until"))
        if from_ms is not None and until_ms is not None and until_ms <= from_ms:
            raise UsageError("due_until: the range from due_from is empty")
        ids, limit, key = fields.get("ids") or [], fields.get("limit", 50), _text(fields, "key")
        if not isinstance(ids, list) or not all(isinstance(text, str) for text in ids):
            raise UsageError("ids: allowed is a list of message ids")
        if type(limit) is not int or not 1 <= limit <= _MOST_SHOWN:
            raise UsageError(f"limit: allowed is 1 to {_MOST_SHOWN}")
        places = tuple(self._messages.place(text) for text in ids) or None
        newest = fields.get("newest", False) is True
        key_bytes = None if key is None else key.encode()
        return Look(from_ms, until_ms, places, key_bytes, _text(fields, "topic"), newest, limit, _SHOWN_BYTES)


async def _fields(request: Request, allowed: set[str]) -> dict[str, Any]:
    """Return the JSON object of the request's body. Raises UsageError."""
    # A form of another site cannot send this type unasked.
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "the body must be application/json")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MOST_BODY_BYTES:
            raise HTTPException(413, f"the body must have at most {_MOST_BODY_BYTES:,} bytes")
    try:
        fields = json.loads(body or b"{}")
    except ValueError as problem:
        raise UsageError(f"the body is not JSON: {problem}") from problem
    if not isinstance(fields, dict) or fields.keys() - allowed:
        raise UsageError(f"the body must be an object with some of {', '.join(sorted(allowed))}")
    return fields


def _text(fields: dict[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is None or value == "":
        return None
    try:
        if not isinstance(value, str) or not value.encode():
            raise UsageError(f"{name}: allowed is text")
    except UnicodeEncodeError as problem:
        raise UsageError(f"{name}: allowed is Unicode text") from problem
    return value


def _operator(fields: dict[str, Any]) -> str:
    name = _text(fields, "operator")
    if name is None or len(name) > 200 or not name.isprintable():
        raise UsageError("operator: give your name, in up to 200 characters")
    return name


def _duration_ms(name: str, text: str) -> int:
    try:
        return parse_duration_ms(text)
    except ValueError as problem:
        raise UsageError(f"{name}: {problem}") from problem


def _instant_ms(name: str, text: str | None, now_ms: int) -> int | None:
    if text is None:
        return None
    try:
        return named_instant_ms(text, now_ms)
    except ValueError as problem:
        raise UsageError(f"{name}: {problem}") from problem


async def _refused(_: Request, problem: Exception) -> Response:
    wrong = isinstance(problem, UsageError)
    if not wrong:
        log.warning("%s", problem)
    return JSONResponse({"error": str(problem)}, 400 if wrong else 503)


async def _unknown(_: Request, problem: Exception) -> Response:
    # Starlette raises it again, and uvicorn logs it.
    return JSONResponse({"error": f"internal error: {type(problem).__name__}. See the log"}, 500, _HEADERS)


async def _no_access(_: Request, problem: Exception) -> Response:
    assert isinstance(problem, AccessRefused)
    return JSONResponse({"error": str(problem)}, problem.status)


async def _http_error(_: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    return JSONResponse({"error": problem.detail}, problem.status_code)
