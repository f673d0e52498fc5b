"""Asks the server of a process, for commands that start no Spark."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conf.settings import Settings

_TIMEOUT_S = 3.0
# An address that stands for all of a host's is asked on this host.
_ANY = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104, nothing listens here


class NoAnswer(Exception):
    """Nobody answers at the address, or not in HTTP."""


@dataclass(frozen=True)
class Answer:
    """The status code of an answer, and its body."""

    code: int
    body: bytes


def release_addresses(settings: Settings) -> list[str]:
    """Return where the release processes that a job starts answer: none without a port in `monitor.release`."""
    host, _, port = settings.monitor.release.rpartition(":")
    if port in ("", "0"):
        return []
    return [f"{host}:{int(port) + number}" for number in range(settings.release.processes)]


def other_application(health: Mapping[str, Any], settings: Settings) -> str | None:
    """Return the application id in an answer of `/healthz` or `/readyz`, if it is another one than that of `settings`.

    Processes of earlier versions do not say theirs.
    """
    named: str = health.get("application_id", settings.application_id)
    return None if named == settings.application_id else named


def ask(address: str, path: str) -> Answer:
    """Get `path` from the server at `address`, host:port. Raises NoAnswer."""
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(f"{_ANY.get(host, host)}:{port}", timeout=_TIMEOUT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return Answer(answer.status, answer.read())
    except (OSError, http.client.HTTPException) as problem:
        raise NoAnswer(f"no answer from {address}: {problem or type(problem).__name__}") from problem
    finally:
        connection.close()
