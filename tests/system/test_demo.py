"""`delayline demo`, as `make demo` calls it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.eventually import assert_eventually
from tests.quick_java import QUICK_JAVA

# The demo promises two minutes; a machine that runs other tests at the same time may take longer.
_TIMEOUT_S = 420


@pytest.fixture
def demo(java: str) -> list[str]:
    """The command line."""
    return [sys.executable, "-m", "streaming.cli", "demo"]


def _remaining_processes(scratch: Path) -> list[str]:
    """Return the command lines of the processes with a TMPDIR in `scratch`. Processes inherit this variable."""
    command_lines = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TMPDIR", "").startswith(str(scratch)):
                command_lines.append(" ".join(process.cmdline())[:200])
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return command_lines


def _assert_nothing_left(scratch: Path) -> None:
    # Java takes a moment to end.
    assert_eventually(lambda: not _remaining_processes(scratch), 30, "the end of all its processes")


@pytest.mark.takes(70)
def test_the_demo_keeps_the_contract_across_a_crash_and_leaves_nothing_behind(demo: list[str], tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    keep = tmp_path / "kept"
    result = subprocess.run(
        [*demo, "--keep", str(keep)],
        # Without Java's second compiler, as in the other tests of the service.
        env=os.environ | {"TMPDIR": str(scratch), "JDK_JAVA_OPTIONS": QUICK_JAVA},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    assert "950 of 950" in result.stdout
    assert "50 of 50" in result.stdout
    _assert_nothing_left(scratch)
    _assert_nothing_left(keep)


@pytest.mark.thorough
def test_a_demo_that_is_interrupted_leaves_nothing_behind(demo: list[str], tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(demo, env=environment, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            assert any("starting the job" in line for line in running.stdout), "it ended before it started the job"
            running.send_signal(signal.SIGTERM)
            assert running.wait(_TIMEOUT_S) == 128 + signal.SIGTERM
        finally:
            running.kill()
    _assert_nothing_left(tmp_path)
    assert list(tmp_path.iterdir()) == []
