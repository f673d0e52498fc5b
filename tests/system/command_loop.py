"""Runs one `delayline` command after the other in this process, and so in one JVM, whose code is warm by the second.

A line of standard input is a command: its arguments, the file that it prints to, and its environment, as JSON. A line
of standard output is its exit code. The process ends with its input.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from typing import Any

from pyspark import SparkContext

from streaming.cli.app import app


def main() -> None:
    """Run what comes in, until nothing does."""
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        command: dict[str, Any] = json.loads(line)
        os.environ.clear()
        os.environ.update(command["environment"])
        code = _run(command["arguments"], command["log"])
        answers.write(f"{code}\n")
        answers.flush()


def _run(arguments: list[str], log: str) -> int:
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)
    try:
        app(arguments, prog_name="delayline")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001, the caller reads how the command ended
        # As Python ends a process of its own.
        traceback.print_exc()
        return 1
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        sys.stdout.flush()
        sys.stderr.flush()
        _forget()
    return 0


def _forget() -> None:
    """Let Java forget what it keeps by the path of a table or a checkpoint, as a new process does not know it."""
    jvm = SparkContext._jvm
    if jvm is not None:
        jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()


if __name__ == "__main__":
    main()
