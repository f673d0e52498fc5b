"""Reading waiting messages for the page, and remembering a choice of them between its count and its action."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from types import TracebackType

from py4j.protocol import Py4JError
from pyspark.sql import Row, SparkSession

from conf.errors import StorageFailed, UsageError
from conf.settings import Settings
from sources.canceller import place_of
from streaming.status.look import Look, look
from streaming.status.storage_reader import reader_session

# An action is for people: what is more than this is for a program, with `delayline cancel`.
MOST_SELECTED = 10_000
_PLACE = ("topic", "partition", "offset", "deliver_at_ms")
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
    """Reads waiting messages with a small Spark of its own, which starts with the first look. A context manager.

    One look at a time: others wait.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._spark: SparkSession | None = None
        # Of Spark: one look at a time.
        self._lock = threading.Lock()
        self._stack = ExitStack()
        # Of the selections alone, so that nobody waits for a look.
        self._kept_lock = threading.Lock()
        self._selections: OrderedDict[str, Selection] = OrderedDict()

    def look(self, wanted: Look, columns: Sequence[str] = ("*",)) -> list[Row]:
        """Return what `streaming.status.look.look` returns. Raises what that and `reader_session` do."""
        with self._lock:
            if self._spark is None:
                self._spark = self._stack.enter_context(reader_session(self._settings))
            try:
                return look(self._spark, self._settings, wanted, columns)
            except (Py4JError, OSError) as problem:
                # Java has ended, perhaps for want of memory. The next look starts another one.
                self._spark = None
                with suppress(Py4JError, OSError):
                    self._stack.close()
                raise StorageFailed(
                    f"the page's Spark has failed ({type(problem).__name__}). Select fewer messages, or try again"
                ) from problem

    def select(self, wanted: Look) -> Selection:
        """Read all that `wanted` describes, whatever its limit, and remember it for a quarter of an hour.

        Raises UsageError if these are more than `MOST_SELECTED`.
        """
        rows = self.look(replace(wanted, limit=MOST_SELECTED + 1), _PLACE)
        if len(rows) > MOST_SELECTED:
            raise UsageError(f"more than {MOST_SELECTED:,} messages are selected. Select fewer")
        places = [(row["topic"], row["partition"], row["offset"]) for row in rows]
        last_due_ms = max((row["deliver_at_ms"] for row in rows), default=0)
        selection = Selection(secrets.token_urlsafe(16), places, last_due_ms, time.monotonic())
        with self._kept_lock:
            self._selections[selection.token] = selection
            while len(self._selections) > _MOST_KEPT:
                self._selections.popitem(last=False)
        return selection

    def take(self, token: str) -> Selection:
        """Return a selection, which nobody else gets then. Raises UsageError if there is none, or no longer."""
        with self._kept_lock:
            selection = self._selections.pop(token, None)
        if selection is None or time.monotonic() - selection.taken_s > _KEPT_S:
            raise UsageError("the selection no longer exists. Count again")
        return selection

    def place(self, text: str) -> tuple[str, int, int]:
        """Return topic, partition and offset of a message id. Raises UsageError."""
        return place_of(text, self._settings)

    def __enter__(self) -> Messages:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._stack.close()
