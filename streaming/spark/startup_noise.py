"""Keeps Java's start-up lines off standard error: no user of Delayline can act on them."""

from __future__ import annotations

import os
import sys
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
def startup_noise_dropped() -> Iterator[Callable[[], list[str]]]:
    """Drop the lines of `_NOISE` from the standard error of processes that are started in this context.

    Those processes keep the filtered standard error until they end; a thread passes their other lines on. Yields a
    function that returns the first of the passed lines. Call it after the context, when the processes have ended.
    """
    source, sink = os.pipe()
    target = os.dup(2)
    sys.stderr.flush()
    os.dup2(sink, 2)
    os.close(sink)
    kept_lines: list[str] = []
    reader = threading.Thread(target=_pass_on, args=(source, target, kept_lines), name="java-stderr", daemon=True)
    reader.start()

    def first_lines() -> list[str]:
        reader.join(_READ_TIMEOUT_S)
        return kept_lines

    try:
        yield first_lines
    finally:
        sys.stderr.flush()
        os.dup2(target, 2)


def _pass_on(source: int, target: int, kept_lines: list[str]) -> None:
    with os.fdopen(source, "rb") as lines, os.fdopen(target, "wb", buffering=0) as out:
        for line in lines:
            if not line.startswith(_NOISE):
                out.write(line)
                if len(kept_lines) < _KEPT_LINES:
                    kept_lines.append(line.decode(errors="replace").rstrip())
