"""Keeping Java's start-up lines off standard error. What they say no user of Delayline can act on."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# The first is printed by the JVM itself, for a module that Spark's launcher asks for; no option silences it.
_NOISE = (b"WARNING: Using incubator modules:", b"Picked up JAVA_TOOL_OPTIONS:", b"Picked up JDK_JAVA_OPTIONS:")


@contextmanager
def startup_noise_dropped() -> Iterator[None]:
    """Let processes that are started inside write to a standard error that leaves out `_NOISE`.

    They keep it for as long as they live; a thread passes all their other lines on.
    """
    source, sink = os.pipe()
    target = os.dup(2)
    sys.stderr.flush()
    os.dup2(sink, 2)
    os.close(sink)
    threading.Thread(target=_pass_on, args=(source, target), name="java-stderr", daemon=True).start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(target, 2)


def _pass_on(source: int, target: int) -> None:
    with os.fdopen(source, "rb") as lines, os.fdopen(target, "wb", buffering=0) as out:
        for line in lines:
            if not line.startswith(_NOISE):
                out.write(line)
