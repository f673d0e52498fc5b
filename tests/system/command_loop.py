"""Run `delayline` commands one after the other in this process, and so in one JVM, which is warm from the second on.

Each line of standard input is a command as JSON: its arguments, the file for its output, and its environment. Each line
of standard output is a command's exit code. The process ends with its input.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from typing import Any

from pyspark import SparkContext

from streaming.cli.app import app


class _Output:
    """Copies standard output and standard error to a file that changes from command to command.

    Java and its Python workers keep the standard error that they were started with, in an earlier command.
    """

    _END = b"end of the command's output\n"

    def __init__(self) -> None:
        source, sink = os.pipe()
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        os.close(sink)
        # A file descriptor that stands for another file from command to command.
        self._target = os.open(os.devnull, os.O_WRONLY)
        self._copied = threading.Event()
        threading.Thread(target=self._copy, args=(source,), daemon=True).start()

    def begin(self, path: str) -> None:
        """Copy to the file at `path` from now on."""
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, self._target)
        os.close(file)

    def end(self) -> None:
        """Return when everything that was written so far is in the file."""
        sys.stdout.flush()
        sys.stderr.flush()
        self._copied.clear()
        os.write(2, self._END)
        assert self._copied.wait(10)

    def _copy(self, source: int) -> None:
        with os.fdopen(source, "rb") as lines:
            for line in lines:
                is_end = line.endswith(self._END)
                os.write(self._target, line.removesuffix(self._END) if is_end else line)
                if is_end:
                    self._copied.set()


def main() -> None:
    """Run commands until the input ends."""
    exit_codes = os.fdopen(os.dup(1), "w")
    output = _Output()
    for line in sys.stdin:
        command: dict[str, Any] = json.loads(line)
        os.environ.clear()
        os.environ.update(command["environment"])
        output.begin(command["log"])
        code = _run(command["arguments"])
        output.end()
        exit_codes.write(f"{code}\n")
        exit_codes.flush()


def _run(arguments: list[str]) -> int:
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
        _clear_caches()
    return 0


def _clear_caches() -> None:
    """Clear Java's caches, which are keyed by paths of tables and checkpoints. A new process starts without them."""
    jvm = SparkContext._jvm
    if jvm is not None:
        jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()


if __name__ == "__main__":
    main()
