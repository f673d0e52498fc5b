"""Reading waiting messages for the page, and remembering a choice of them between its count and its action."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from conf.errors import UsageError
from conf.settings import Settings
from sources.canceller import place_of
from streaming.status.look import Look
from streaming.status.look_reader import LookReader

# An action is for people: what is more than this is for a program, with `delayline cancel`.
MOST_SELECTED = 10_000
_KEPT_S = 900.0
_MOST_KEPT = 20


@dataclass(frozen=True)
class Selection:
    """The messages that a person has chosen and counted: an action is for these, and for no other.

    `places` are topic, partition and offset of each, `last_due_ms` is when the last of them is due (epoch ms).
    """

    token: str
    places: list[tuple[str, int, int]]
    last_due_ms: int
    taken_s: float


class Messages:
    """Reads waiting messages for the page, through the running job if that answers. A context manager."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._reader = LookReader(settings)
        # Guards only the selections, so that nobody waits for a look.
        self._kept_lock = threading.Lock()
        self._selections: OrderedDict[str, Selection] = OrderedDict()

    def look(self, wanted: Look, on_own_spark: Callable[[str], None] = lambda _: None) -> list[dict[str, Any]]:
        """Return what `LookReader.look` returns, row by row. Raises what that does."""
        rows: list[dict[str, Any]] = self._reader.look(wanted, on_own_spark).to_pylist()
        return rows

    def select(self, wanted: Look) -> Selection:
        """Read all that `wanted` describes, whatever its limit, and remember it for a quarter of an hour.

        Raises UsageError if these are more than `MOST_SELECTED`.
        """
        rows = self.look(replace(wanted, limit=MOST_SELECTED + 1, shown_bytes=0))
        if len(rows) > MOST_SELECTED:
            raise UsageError(f"more than {MOST_SELECTED:,} messages are selected. Select fewer")
        # A message that repeats has a row for each staged occurrence too.
        places = list(dict.fromkeys((row["topic"], row["partition"], row["offset"]) for row in rows))
        last_due_ms = max((row["deliver_at_ms"] for row in rows), default=0)
        selection = Selection(secrets.token_urlsafe(16), places, last_due_ms, time.monotonic())
        with self._kept_lock:
            self._selections[selection.token] = selection
            while len(self._selections) > _MOST_KEPT:
                self._selections.popitem(last=False)
        return selection

    def take(self, token: str) -> Selection:
        """Remove a selection and return it. Raises UsageError if it is unknown or has expired."""
        with self._kept_lock:
            selection = self._selections.pop(token, None)
        if selection is None or time.monotonic() - selection.taken_s > _KEPT_S:
            raise UsageError("the selection no longer exists. Count again")
        return selection

    def place(self, text: str) -> tuple[str, int, int]:
        """Return topic, partition and offset of a message id. Raises UsageError."""
        return place_of(text, self._settings)

    def __enter__(self) -> Messages:
        self._reader.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.__exit__(kind, error, trace)
