"""The job's commands inside the test's own process, so that a start of the job takes no start of Java."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from typer.testing import CliRunner, Result

from streaming.cli.app import app
from tests.eventually import assert_eventually

# A job that is to end by itself, and does not, is ended after this.
_END_TIMEOUT_S = 60.0


class JobInProcess:
    """`delayline run` and the other commands, with `overrides` as their `--set`, one after the other.

    For what needs no SIGKILL. A running job has the main thread, as signals need it: what a test does meanwhile runs in
    another thread.
    """

    def __init__(self, overrides: list[str]) -> None:
        self.overrides = overrides
        self._ended = threading.Event()

    def command(self, *arguments: str) -> Result:
        """Run a command to its end."""
        given = [part for override in self.overrides for part in ("--set", override)]
        return CliRunner().invoke(app, [*arguments, *given], env={"DELAYLINE_CONFIG": None})

    def run_until(self, meanwhile: Callable[[], object], *arguments: str) -> None:
        """`delayline run`, ended by SIGTERM when `meanwhile` has returned. Fails if the job ended in any other way."""
        ran = self._run(meanwhile, *arguments)
        assert ran.exit_code == 0, ran.output

    def failure(self, *arguments: str, meanwhile: Callable[[], object] = lambda: None) -> str:
        """`delayline run`, which is to end by itself with exit code 1; returns its error line from standard error."""

        def until_the_end() -> None:
            meanwhile()
            assert self._ended.wait(_END_TIMEOUT_S), "the job did not end by itself"

        ran = self._run(until_the_end, *arguments)
        assert ran.exit_code == 1, ran.output
        lines = ran.stderr.splitlines()
        assert lines, "".join(traceback.format_exception(ran.exception))
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
                # Before that, SIGTERM would end the tests.
                assert_eventually(lambda: self._ended.is_set() or signal.getsignal(signal.SIGTERM) != handler, 60)
                if not self._ended.is_set():
                    os.kill(os.getpid(), signal.SIGTERM)

        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="meanwhile") as beside:
            doing = beside.submit(then_end)
            try:
                ran = self.command("run", *arguments)
            finally:
                self._ended.set()
        doing.result()
        return ran
