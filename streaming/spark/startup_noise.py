"""Keeping Java's start-up lines off standard error. What they say no user of Delayline can act on."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_NOISE = (
    # Printed by the JVM itself, for a module that Spark's launcher asks for; no option silences it.
    b"WARNING: Using incubator modules:",
    b"Picked up JAVA_TOOL_OPTIONS:",
    b"Picked up JDK_JAVA_OPTIONS:",
    # Where in its own start Spark met a wrong option.
    b"\tat org.apache.spark.deploy.SparkSubmit",
    b"\tat org.apache.spark.launcher.",
)
_KEPT_LINES = 20
_LAST_WORDS_S = 2.0


@contextmanager
def startup_noise_dropped() -> Iterator[Callable[[], list[str]]]:
    """Let processes that are started inside write to a standard error that leaves out `_NOISE`.

    They keep it for as long as they live; a thread passes all their other lines on. Gives a function that returns the
    first of those lines; to be called outside, when the processes have ended.
    """
    source, sink = os.pipe()
    target = os.dup(2)
    sys.stderr.flush()
    os.dup2(sink, 2)
    os.close(sink)
    said: list[str] = []
    reader = threading.Thread(target=_pass_on, args=(source, target, said), name="java-stderr", daemon=True)
    reader.start()

    def first_lines() -> list[str]:
        reader.join(_LAST_WORDS_S)
        return said

    try:
        yield first_lines
    finally:
        sys.stderr.flush()
        os.dup2(target, 2)


def _pass_on(source: int, target: int, said: list[str]) -> None:
    with os.fdopen(source, "rb") as lines, os.fdopen(target, "wb", buffering=0) as out:
        for line in lines:
            if not line.startswith(_NOISE):
                out.write(line)
                if len(said) < _KEPT_LINES:
                    said.append(line.decode(errors="replace").rstrip())
