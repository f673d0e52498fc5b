from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from conf import failpoints
from conf.errors import InjectedFailure, SettingError
from conf.failpoints import (
    ALL_POINTS,
    FORWARD_POINTS,
    LANE_POINTS,
    POINTS,
    RELEASE_POINTS,
    ROOT_VARIABLE,
    SUCCESSION_POINTS,
    VARIABLE,
    failpoint,
    parse_failpoint,
)
from tests.eventually import assert_eventually
from tests.processes import runs

# A driver with two children. One of them passes the failpoint, as a task would.
CHILD = "from conf.failpoints import failpoint; print('up', flush=True); input(); failpoint('staged')"
SLEEPER = "import time; time.sleep(600)"
DRIVER = f"""
import os, subprocess, sys
os.environ[{ROOT_VARIABLE!r}] = str(os.getpid())
sleeper = subprocess.Popen([sys.executable, '-c', {SLEEPER!r}])
child = subprocess.Popen([sys.executable, '-c', {CHILD!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print(sleeper.pid, child.pid, flush=True)
child.wait()
"""


@pytest.fixture(autouse=True)
def _no_point_passed_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failpoints, "_passed", type(failpoints._passed)())
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("sealed=kill", ("sealed", 1, "kill")),
        ("batch-begun@12=raise", ("batch-begun", 12, "raise")),
        ("transaction-filled@3=kill", ("transaction-filled", 3, "kill")),
        ("rest-sealed=raise", ("rest-sealed", 1, "raise")),
        ("sealing=pause", ("sealing", 1, "pause")),
    ],
)
def test_a_failpoint_has_a_point_a_passing_and_an_action(text: str, parsed: tuple[str, int, str]) -> None:
    assert parse_failpoint(text) == parsed


@pytest.mark.parametrize(
    "text",
    ["", "sealed", "sealed=", "=kill", "nowhere=kill", "sealed=stop", "sealed=kill=kill"]
    + [f"sealed@{passing}=kill" for passing in ("x", "0", "-1", "²")],
)
def test_any_other_text_is_refused_with_the_list_of_points(text: str) -> None:
    with pytest.raises(SettingError, match="batch-begun") as raised:
        parse_failpoint(text)
    assert all(point in str(raised.value) for point in ALL_POINTS)


def test_without_the_variable_no_point_does_anything() -> None:
    for point in ALL_POINTS:
        failpoint(point)


def test_no_two_stages_have_a_point_of_one_name() -> None:
    stages = (POINTS, RELEASE_POINTS, FORWARD_POINTS, LANE_POINTS, SUCCESSION_POINTS)
    assert len(ALL_POINTS) == sum(map(len, stages))


def test_the_named_passing_raises_and_no_other_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "sealing@3=raise")
    for _ in range(2):
        failpoint("sealing")
        failpoint("sealed")
    with pytest.raises(InjectedFailure, match="sealing, passing 3"):
        failpoint("sealing")
    failpoint("sealing")


def test_a_retried_task_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "transaction-open=raise")
    failpoint("transaction-open", attempt=1)


def test_an_invalid_variable_is_an_error_and_not_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, "nowhere=kill")
    with pytest.raises(SettingError):
        failpoint("sealed")


def _driver(action: str) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """Start a driver that takes `action` once it gets a line; return it, and the processes that it has started."""
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER],
        env={**os.environ, VARIABLE: f"staged={action}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    return driver, [psutil.Process(int(pid)) for pid in driver.stdout.readline().split()]


def test_pause_stops_the_driver_and_all_processes_it_started_until_they_are_continued() -> None:
    driver, started = _driver("pause")
    assert driver.stdin is not None
    family = [psutil.Process(driver.pid), *started]
    try:
        driver.stdin.write("\n")
        driver.stdin.flush()
        assert_eventually(lambda: {process.status() for process in family} == {psutil.STATUS_STOPPED}, what="the pause")
        for process in family:
            process.resume()
        assert driver.wait(20) == 0
    finally:
        for process in family:
            if runs(process):
                process.kill()


def test_kill_ends_the_driver_and_all_processes_it_started() -> None:
    driver, started = _driver("kill")
    try:
        driver.communicate("\n", timeout=20)
        assert driver.returncode == -9
        assert_eventually(lambda: not any(runs(process) for process in started), what="the end of the children")
    finally:
        for process in started:
            if runs(process):
                process.kill()
