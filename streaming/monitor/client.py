"""Asks the server of a process, for commands that start no Spark."""

from __future__ import annotations

import http.client
from dataclasses import dataclass
from typing import Literal

from conf.settings import Settings

# In each answer: another job may have the address.
APPLICATION_HEADER = "Delayline-Application"
_TIMEOUT_S = 3.0
# Far more than any answer of a process has.
_MOST_BYTES = 16 * 1024 * 1024
# An address that stands for all of a host's is asked on this host.
_ANY = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104, nothing listens here


class NoAnswer(Exception):
    """Nobody answers at the address, or not in HTTP."""


@dataclass(frozen=True)
class Answer:
    """The status code of an answer, its body, and the application that it names; None if it names none."""

    code: int
    body: bytes
    application_id: str | None = None


def started_addresses(settings: Settings, role: Literal["release", "forward"]) -> list[str]:
    """Return where the processes of this role answer that a job starts: none without a port in `[monitor]`."""
    address: str = getattr(settings.monitor, role)
    host, _, port = address.rpartition(":")
    if port in ("", "0"):
        return []
    processes: int = getattr(settings, role).processes
    return [f"{host}:{int(port) + number}" for number in range(processes)]


def other_application(answer: Answer, settings: Settings) -> str | None:
    """Return the application that an answer names, or None if it is the application of `settings`."""
    return None if answer.application_id == settings.application_id else answer.application_id


@dataclass(frozen=True)
class Post:
    """A JSON body to send, the token that allows it ("": none), and how long the answer may take."""

    body: bytes
    token: str
    patience_s: float


def ask(address: str, path: str, post: Post | None = None, most_bytes: int = _MOST_BYTES) -> Answer:
    """Get `path` from the server at `address`, host:port, or send it `post`.

    Raises NoAnswer, also if the answer is longer than any.
    """
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(f"{_ANY.get(host, host)}:{port}", timeout=_TIMEOUT_S)
    try:
        if post is None:
            connection.request("GET", path)
        else:
            connection.connect()
            connection.sock.settimeout(post.patience_s)
            headers = {"Content-Type": "application/json"}
            if post.token:
                headers["Authorization"] = f"Bearer {post.token}"
            connection.request("POST", path, post.body, headers)
        answer = connection.getresponse()
        body = answer.read(most_bytes + 1)
        # `length` is what is left to read; None where the server does not say how much comes.
        if answer.length or len(body) > most_bytes:
            raise NoAnswer(f"no answer from {address}: it is cut off, or has more than {most_bytes:,} bytes")
        return Answer(answer.status, body, answer.headers.get(APPLICATION_HEADER))
    except (OSError, http.client.HTTPException) as problem:
        raise NoAnswer(f"no answer from {address}: {problem or type(problem).__name__}") from problem
    finally:
        connection.close()
