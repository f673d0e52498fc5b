"""Run `delayline` commands one after the other in this process, and so in one JVM, which is warm from the second on.

Each line of standard input is a command as JSON: its arguments, the file for its output, and its environment. Each line
of standard output is a command's exit code. The process ends with its input.
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
    """Run commands until the input ends."""
    exit_codes = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        command: dict[str, Any] = json.loads(line)
        os.environ.clear()
        os.environ.update(command["environment"])
        code = _run(command["arguments"], command["log"])
        exit_codes.write(f"{code}\n")
        exit_codes.flush()


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
        # As Python does when an exception ends a process.
        traceback.print_exc()
        return 1
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        sys.stdout.flush()
        sys.stderr.flush()
        _clear_caches()
    return 0


def _clear_caches() -> None:
    """Clear Java's caches, whose keys are the paths of tables and checkpoints. A new process would not have them."""
    jvm = SparkContext._jvm
    if jvm is not None:
        jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()


if __name__ == "__main__":
    main()
