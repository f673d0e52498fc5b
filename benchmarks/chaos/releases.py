"""The release processes of a campaign: `delayline release` by name, each started again after its fault."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.chaos.faults import pause, resume
from benchmarks.release_processes import ReleaseCommand

_SHOWN = 1500


class Releases:
    """Release processes by name. A context manager, which kills them."""

    def __init__(self, names: tuple[str, ...], overrides: list[str], folder: Path) -> None:
        self.names = names
        self._overrides, self._folder = overrides, folder
        self._running: dict[str, ReleaseCommand] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self._kill_all)
            for name in self.names:
                self.start(name)
            for release in self._running.values():
                release.wait_until_it_runs()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _kill_all(self) -> None:
        for release in self._running.values():
            release.kill()

    def start(self, name: str) -> None:
        """Start the release process `name`."""
        self._running[name] = ReleaseCommand(name, self._overrides, self._folder)

    def shards(self, name: str) -> set[int]:
        """Return the shards that it has."""
        return self._running[name].shards

    def check(self) -> None:
        """Raise RuntimeError if one has ended by itself."""
        for release in self._running.values():
            release.check()

    def kill(self, name: str, away_s: float) -> None:
        """Kill it, and start it again `away_s` later."""
        self._running[name].kill()
        time.sleep(away_s)
        self.start(name)

    def stop(self, name: str, away_s: float) -> None:
        """End it by SIGTERM, and start it again `away_s` later. Raises RuntimeError if it ends with an error."""
        if code := self._running[name].stop():
            raise RuntimeError(f"release process {name} ended with {code}: {self._running[name].log[-_SHOWN:]}")
        time.sleep(away_s)
        self.start(name)

    def pause(self, name: str, seconds: float) -> None:
        """Stop it for `seconds`: others take its shards, and it wakes."""
        process = self._running[name].process
        pause(process)
        time.sleep(seconds)
        resume(process)
