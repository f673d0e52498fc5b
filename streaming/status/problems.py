"""The newest warnings and errors of all processes of an application with a known address."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any, Generic, TypeVar

from conf.settings import Settings
from streaming.monitor.client import NoAnswer, ask, other_application, started_addresses

log = logging.getLogger(__name__)

# For how long all processes together are waited for.
_WAIT_S = 1.0
_MOST_SHOWN = 100
# The limit of each text, as in `streaming.monitor.recent_problems`.
_MOST_CHARACTERS = 1_000
# Raised if nobody answers, or if the answer is not JSON or other JSON, such as infinite numbers or deep lists.
_UNKNOWN = NoAnswer, OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError

Known = TypeVar("Known")


class ProcessProblems:
    """Asks the job, the processes that it starts, and those at `monitor.process_addresses`.

    Each is asked in a thread of its own, so a process that does not answer, or a name that is not resolved, does not
    delay the others. A late answer is used the next time.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._local = [*started_addresses(settings, "release"), *started_addresses(settings, "forward")]
        if settings.monitor.job:
            self._local.append(settings.monitor.job)
        self._names = [_Asking(partial(_resolved, address)) for address in settings.monitor.process_addresses]
        self._processes: dict[str, _Asking[dict[str, Any]]] = {}

    def newest(self) -> list[dict[str, Any]]:
        """Return the newest warnings and errors, newest first: `at_ms` (epoch ms), `process`, `level`, `message`.

        Takes a second at the longest.
        """
        begun_s = time.monotonic()
        here = {address: self._asking(address) for address in self._local}
        _start(here.values())
        _start(self._names)
        # The other half is for the processes that the names stand for.
        resolved = _answers(self._names, begun_s + _WAIT_S / 2)
        there = {each: self._asking(each) for each in resolved if each not in here}
        _start(there.values())
        self._processes = here | there
        answers = _answers(self._processes.values(), begun_s + _WAIT_S)
        # A process may have several addresses.
        found = {tuple(problem.items()): problem for problem in answers}
        return sorted(found.values(), key=lambda problem: -int(problem["at_ms"]))[:_MOST_SHOWN]

    def _asking(self, address: str) -> _Asking[dict[str, Any]]:
        question = partial(_problems_at, address, self._settings)
        return self._processes.setdefault(address, _Asking(question))


class _Asking(Generic[Known]):
    """Asks the same again and again, in a thread. `known` is what the last answer had; of none, nothing."""

    def __init__(self, question: Callable[[], list[Known]]) -> None:
        self._question = question
        self._thread: threading.Thread | None = None
        self._is_late = False
        self.known: list[Known] = []

    def start(self) -> None:
        """Ask, unless the last answer is still to come."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._ask, name="problems", daemon=True)
            self._thread.start()
            self._is_late = False

    def wait(self, until_s: float) -> None:
        """Wait for the answer until `until_s`, by the monotonic clock; for the same one only once."""
        if self._thread is not None and not self._is_late:
            self._thread.join(max(0.0, until_s - time.monotonic()))
            self._is_late = self._thread.is_alive()

    def _ask(self) -> None:
        try:
            self.known = self._question()
        except _UNKNOWN as problem:
            log.debug("cannot read problems: %s", problem)
            self.known = []


def _start(asked: Iterable[_Asking[Known]]) -> None:
    for each in asked:
        each.start()


def _answers(asked: Collection[_Asking[Known]], until_s: float) -> list[Known]:
    for each in asked:
        each.wait(until_s)
    return [known for each in asked for known in each.known]


def _resolved(address: str) -> list[str]:
    """Return the numeric addresses that host:port stands for. Raises OSError."""
    host, _, port = address.rpartition(":")
    found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    numeric = dict.fromkeys(str(place[0]) for *_, place in found)
    return [f"[{each}]:{port}" if ":" in each else f"{each}:{port}" for each in numeric]


def _problems_at(address: str, settings: Settings) -> list[dict[str, Any]]:
    answer = ask(address, "/problems")
    # Another job may have the address.
    if other_application(answer, settings) is not None:
        return []
    return [
        {
            "at_ms": int(each["at_ms"]),
            "process": _text(each["process"]),
            "level": _text(each["level"]),
            "message": _text(each["message"]),
        }
        for each in json.loads(answer.body)
    ]


def _text(value: object) -> str:
    # JSON may have half of a surrogate pair, such as a log has of a file's name. UTF-8 has none.
    return str(value)[:_MOST_CHARACTERS].encode(errors="replace").decode()
