"""Keeps Java's start-up lines off standard error: no user of Delayline can act on them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_NOISE = (
    # The JVM prints this for a module that Spark's launcher requests; no option silences it.
    b"WARNING: Using incubator modules:",
    b"Picked up JAVA_TOOL_OPTIONS:",
    b"Picked up JDK_JAVA_OPTIONS:",
    # Stack frames inside Spark's launcher, after the message about a wrong option.
    b"\tat org.apache.spark.deploy.SparkSubmit",
    b"\tat org.apache.spark.launcher.",
)
_KEPT_LINES = 20
_READ_TIMEOUT_S = 2.0


@contextmanager
def without_startup_noise() -> Iterator[tuple[int, Callable[[], list[str]]]]:
    """Yield a standard error for Java that drops the lines of `_NOISE`: a file descriptor, open in this context.

    A thread passes the other lines on to the standard error of this process, until Java ends. Also yields a function
    that returns the first of them. Call it after the context, when Java has ended.
    """
    source, sink = os.pipe()
    kept_lines: list[str] = []
    reader = threading.Thread(target=_pass_on, args=(source, os.dup(2), kept_lines), name="java-stderr", daemon=True)
    reader.start()

    def first_lines() -> list[str]:
        reader.join(_READ_TIMEOUT_S)
        return kept_lines

    try:
        yield sink, first_lines
    finally:
        os.close(sink)


def _pass_on(source: int, target: int, kept_lines: list[str]) -> None:
    with os.fdopen(source, "rb") as lines, os.fdopen(target, "wb", buffering=0) as out:
        for line in lines:
            if not line.startswith(_NOISE):
                out.write(line)
                if len(kept_lines) < _KEPT_LINES:
                    kept_lines.append(line.decode(errors="replace").rstrip())
