"""The wall clock of a host, which a test can set while a real job runs on it. Monotonic time is not changed.

libfaketime is preloaded into every process of the job: driver, JVM, Python workers. The time that it returns is the
modification time of a file plus the time since the clock began, so that one call sets the clock of all processes. (Its
FAKETIME_TIMESTAMP_FILE would be simpler, but ends a JVM: threads that ask for the time at once share the buffer that
the file is read into.)

Only librdkafka keeps the real clock. It waits with glibc's `cnd_timedwait` until an instant of the wall clock, which
libfaketime does not translate: each wait would be wrong by the offset of the clock.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import libfaketime

# The wheel contains the library for this platform only, whatever its name says.
IS_AVAILABLE = (sys.platform, platform.machine()) == ("linux", "x86_64")

# Begins the clock, owns the memory that its processes share, removes it in the end, and prints the time when asked.
_KEEPER = """
import os, sys, time
print(os.environ.get("FAKETIME_SHARED", ""), flush=True)
for _ in sys.stdin:
    print(time.time_ns(), flush=True)
"""


_MAX_TRIES = 3

# Each Python process of the job runs this when it starts. It binds librdkafka to the C library, before preloaded ones.
_REAL_CLOCK_FOR_LIBRDKAFKA = """
import os, sys
flags = sys.getdlopenflags()
sys.setdlopenflags(flags | os.RTLD_DEEPBIND)
import confluent_kafka
sys.setdlopenflags(flags)
"""


class HostClock:
    """The clock of one host. It begins up to a second ahead of the real one, since files are set to whole seconds.

    Processes that start with `environment` use this clock.
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
        self._set_file_time(0)
        self._keeper, self.environment["FAKETIME_SHARED"] = self._begin()
        # A reading arrives a little late, and so is a little too high.
        self._ahead_ms = min(self._read_ms_ahead() for _ in range(5))
        # Each offset in ms that was set, and the real times, epoch ms, just before and just after.
        self._set: list[tuple[int, int, int]] = [(0, 0, 0)]

    def _begin(self) -> tuple[subprocess.Popen[str], str]:
        # The shared memory is named after the keeper's pid. If a killed keeper left that name, nothing is shared.
        for _ in range(_MAX_TRIES):
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
        """Set the clock `seconds` off the time that it would show if it had never been set."""
        before_ms = _real_ms()
        self._set_file_time(seconds)
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
        """End the clock. The processes that use it must have ended."""
        self._keeper.communicate()

    def _set_file_time(self, seconds: int) -> None:
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
