"""A host whose wall clock a test can set, under a job that runs for real; monotonic time goes on undisturbed.

libfaketime is preloaded into every process of the job: driver, JVM, Python workers. It answers what time it is with
the modification time of a file plus the time since the clock began, so that one call sets the clock of them all. (Its
FAKETIME_TIMESTAMP_FILE would be simpler, but ends a JVM: threads that ask for the time at once share the buffer that
the file is read into.)

librdkafka alone keeps the real clock. It waits by glibc's `cnd_timedwait` until an instant of the wall clock, which
libfaketime does not translate: each of its waits would be off by what the clock is off.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import libfaketime

# The wheel brings the library built for this platform alone, whatever its name says.
IS_AVAILABLE = (sys.platform, platform.machine()) == ("linux", "x86_64")

# Begins the clock, holds what its processes share, takes that away in the end, and tells the time when asked.
_KEEPER = """
import os, sys, time
print(os.environ.get("FAKETIME_SHARED", ""), flush=True)
for _ in sys.stdin:
    print(time.time_ns(), flush=True)
"""


_PIDS_TRIED = 3

# Run by each Python of the job when it starts: binds librdkafka to the C library before anything preloaded.
_REAL_CLOCK_FOR_LIBRDKAFKA = """
import os, sys
flags = sys.getdlopenflags()
sys.setdlopenflags(flags | os.RTLD_DEEPBIND)
import confluent_kafka
sys.setdlopenflags(flags)
"""


class HostClock:
    """The clock of one host: at first up to a second ahead of the real one, since files are set to whole seconds.

    Processes that are given `environment` run on it.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "host-clock"
        self._file.touch()
        _, preload = libfaketime.get_reload_information()
        follow = {"FAKETIME": "%", "FAKETIME_FOLLOW_FILE": str(self._file), "FAKETIME_DONT_RESET": "1"}
        site = folder / "host-clock-site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(_REAL_CLOCK_FOR_LIBRDKAFKA)
        path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.environment = {**preload, **follow, "PYTHONPATH": path}
        self._begun_s = int(time.time()) + 1
        self._show(0)
        self._keeper, self.environment["FAKETIME_SHARED"] = self._begin()
        # A reading comes a little late, and so says a little more.
        self._ahead_ms = min(self._read_ms_ahead() for _ in range(5))
        # Each offset that it was set to, and the real times, epoch ms, just before and just after that.
        self._set: list[tuple[int, int, int]] = [(0, 0, 0)]

    def _begin(self) -> tuple[subprocess.Popen[str], str]:
        # What is shared has the name of the keeper's pid. Where a killed one left that, the library shares nothing.
        for _ in range(_PIDS_TRIED):
            keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _KEEPER],
                env={**os.environ, **self.environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert keeper.stdout is not None
            if shared := keeper.stdout.readline().rstrip():
                return keeper, shared
            keeper.communicate()
        raise RuntimeError("libfaketime shares no clock")

    def set_off(self, seconds: int) -> None:
        """Set the clock `seconds` off the time that it would show had it never been set."""
        before_ms = _real_ms()
        self._show(seconds)
        self._set.append((seconds * 1000, before_ms, _real_ms()))
        assert abs(self._read_ms_ahead() - self._ahead_ms - seconds * 1000) < 1000, "the clock does not follow its file"

    def highest_ms(self, real_ms: int) -> int:
        """Return the latest time, epoch ms, that the clock showed up to the real time `real_ms`."""
        ends = [after_ms for _, _, after_ms in self._set[1:]] + [real_ms]
        return self._ahead_ms + max(
            min(real_ms, end_ms) + offset_ms
            for (offset_ms, before_ms, _), end_ms in zip(self._set, ends, strict=True)
            if before_ms <= real_ms
        )

    def close(self) -> None:
        """End the clock, after the processes that run on it."""
        self._keeper.communicate()

    def _show(self, seconds: int) -> None:
        os.utime(self._file, (self._begun_s + seconds, self._begun_s + seconds))

    def _read_ms_ahead(self) -> int:
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        asked_ns = time.time_ns()
        self._keeper.stdin.write("\n")
        self._keeper.stdin.flush()
        return -((asked_ns - int(self._keeper.stdout.readline())) // 1_000_000)


def _real_ms() -> int:
    return time.time_ns() // 1_000_000
