"""The job's commands inside the test's own process, so that a start of the job does not start Java."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from typer.testing import CliRunner, Result

from streaming.cli.app import app
from tests.eventually import PATIENCE, assert_eventually

# A job that should end by itself, and does not, is ended after this time.
_END_TIMEOUT_S = 60.0


class JobInProcess:
    """Runs `delayline run` and the other commands, one after the other, with `overrides` as their `--set`.

    It cannot test a SIGKILL. A running job has the main thread, which receives the signals. Meanwhile, the test's own
    steps run in another thread.
    """

    def __init__(self, overrides: list[str]) -> None:
        self.overrides = overrides
        self._ended = threading.Event()

    def command(self, *arguments: str) -> Result:
        """Run a command until it ends."""
        options = [part for override in self.overrides for part in ("--set", override)]
        return CliRunner().invoke(app, [*arguments, *options], env={"DELAYLINE_CONFIG": None})

    def run_until(self, meanwhile: Callable[[], object], *arguments: str) -> None:
        """Run the job until `meanwhile` has returned, and end it with SIGTERM. Fails if it ends in any other way."""
        result = self._run(meanwhile, *arguments)
        assert result.exit_code == 0, result.output

    def failure(self, *arguments: str, meanwhile: Callable[[], object] = lambda: None) -> str:
        """Run the job, which must end by itself with exit code 1, and return the error line of its standard error."""

        def until_the_end() -> None:
            meanwhile()
            assert self._ended.wait(PATIENCE * _END_TIMEOUT_S), "the job did not end by itself"

        result = self._run(until_the_end, *arguments)
        assert result.exit_code == 1, result.output
        lines = result.stderr.splitlines()
        assert lines, "".join(traceback.format_exception(result.exception))
        return lines[-1]

    def check(self) -> None:
        """Fail if no job is running."""
        assert not self._ended.is_set(), "the job has ended"

    def _run(self, meanwhile: Callable[[], object], *arguments: str) -> Result:
        self._ended.clear()
        handler = signal.getsignal(signal.SIGTERM)

        def then_end() -> None:
            try:
                meanwhile()
            finally:
                # Before the job has set its handler, SIGTERM would end the tests.
                assert_eventually(lambda: self._ended.is_set() or signal.getsignal(signal.SIGTERM) != handler, 60)
                if not self._ended.is_set():
                    os.kill(os.getpid(), signal.SIGTERM)

        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="meanwhile") as executor:
            future = executor.submit(then_end)
            try:
                result = self.command("run", *arguments)
            finally:
                self._ended.set()
        future.result()
        return result
