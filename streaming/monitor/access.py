"""Who may see messages, at the page and at the job's server: who has the token of `web.token`.

Without a token in the settings, a client on the same host may. A client that came through a proxy may be anywhere, so
it is refused.
"""

from __future__ import annotations

import hmac
from http import HTTPStatus
from typing import Protocol

_OF_PROXIES = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
_THIS_HOST = ("127.0.0.1", "localhost", "[::1]")
_LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")


class AccessRefused(Exception):
    """A client may not see messages: an HTTP status, and the sentence that says why."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class RequestHeaders(Protocol):
    """The headers of an HTTP request. Their names are case-insensitive."""

    def __contains__(self, name: str, /) -> bool: ...

    def get(self, name: str, default: str, /) -> str: ...


def check_may_look(token: str, headers: RequestHeaders, client: str) -> None:
    """Check that a client may see messages; `token` is `web.token`, `client` its IP address. Raises AccessRefused."""
    if token:
        check_token(token, headers)
        return
    if any(name in headers for name in _OF_PROXIES):
        raise AccessRefused(
            HTTPStatus.FORBIDDEN, "without web.token, messages are not shown through a proxy. Set web.token"
        )
    # A page of another site can make its own name stand for this host, but the browser then sends that name.
    named = headers.get("host", "")
    if (named.rpartition(":")[0] or named) not in _THIS_HOST or client not in _LOOPBACK:
        raise AccessRefused(
            HTTPStatus.FORBIDDEN, "without web.token, messages are shown on this host only. Set web.token"
        )


def check_token(token: str, headers: RequestHeaders) -> None:
    """Check that the client has sent `token`. Raises AccessRefused."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), token.encode()):
        raise AccessRefused(HTTPStatus.UNAUTHORIZED, "enter the token of web.token")
