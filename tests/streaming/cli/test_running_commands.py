"""Commands that run until they are done or a signal ends them, as real processes, and starts that are refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner, Result

from conf.settings import Settings
from streaming.cli.app import app
from tests.eventually import assert_eventually
from tests.streaming.cli.command_runs import ROOT, options, run

COMMAND = [sys.executable, "-m", "streaming.cli"]
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("DELAYLINE_")}


def start(*args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *args],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_subscriber_misses_nothing_after_it_has_printed_subscribed(prepared: Settings) -> None:
    subscriber = start("subscribe", "--count", "1", "--timeout", "30s", "--format", "json", *options(prepared))
    assert subscriber.stderr is not None
    assert subscriber.stderr.readline() == "subscribed\n"
    sent = run(prepared, "publish", "at once", "--topic", prepared.topics.output)
    stdout, _ = subscriber.communicate(timeout=60)
    assert (sent.exit_code, subscriber.returncode) == (0, 0)
    assert json.loads(stdout)["value"] == "at once"


def test_ctrl_c_gives_exit_code_130_without_a_traceback(prepared: Settings) -> None:
    subscriber = start("subscribe", *options(prepared))
    assert subscriber.stderr is not None
    assert subscriber.stderr.readline() == "subscribed\n"
    subscriber.send_signal(signal.SIGINT)
    _, stderr = subscriber.communicate(timeout=60)
    assert (subscriber.returncode, stderr) == (130, "")


def _stops(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> str:
    """End a process that runs, and return its log."""
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0
    return stderr


@pytest.mark.parametrize(
    ("command", "number"), [("release", signal.SIGTERM), ("release", signal.SIGINT), ("forward", signal.SIGTERM)]
)
def test_a_release_process_or_a_forwarder_goes_on_until_a_signal(prepared: Settings, command: str, number: int) -> None:
    process = start(command, "--name", "north", *options(prepared))
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        assert process.poll() is None
        assert "Traceback" not in _stops(process, number)
    finally:
        process.kill()


@pytest.mark.thorough
@pytest.mark.takes(8)
def test_the_first_of_two_release_processes_with_one_name_ends_with_an_error(prepared: Settings) -> None:
    first = start("release", "--name", "north", *options(prepared))
    other = start("release", "--name", "south", *options(prepared))
    try:
        assert first.stderr is not None
        # It has joined the group.
        while " to north" not in first.stderr.readline():
            assert first.poll() is None
        second = start("release", "--name", "north", *options(prepared))
        try:
            _, stderr = first.communicate(timeout=60)
            assert first.returncode == 1
            assert "error: name-taken: another release process has taken the name north" in stderr
            assert "Traceback" not in stderr
            assert second.stdout is not None
            assert second.stdout.readline() == "running\n"
            _stops(second)
        finally:
            second.kill()
        _stops(other)
    finally:
        first.kill()
        other.kill()


def test_a_release_process_without_topics_is_an_error(settings: Settings) -> None:
    process = start("release", *options(settings))
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "error: topic-missing: " in stderr
    refused = CliRunner().invoke(app, ["release", "--name", "\udcff", *options(settings)])
    assert refused.exit_code == 2


@pytest.mark.usefixtures("java")
def test_the_broker_command_serves_until_sigterm(tmp_path: Path) -> None:
    node = start("broker", "--dir", str(tmp_path), "--port", "0")
    try:
        assert node.stdout is not None
        line = node.stdout.readline()
        assert line.startswith("listening on 127.0.0.1:")
        servers = f"kafka.bootstrap_servers={line.split()[-1]}"
        shown = CliRunner().invoke(app, ["topics", "show", "--set", servers])
        assert shown.stderr.startswith("error: topic-missing: ")
        node.send_signal(signal.SIGTERM)
        _, stderr = node.communicate(timeout=60)
        assert (node.returncode, stderr.splitlines()) == (0, [f"starting in {tmp_path}"])
        assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    finally:
        node.kill()


@pytest.mark.thorough
@pytest.mark.usefixtures("java")
def test_a_broker_that_dies_is_an_error_with_its_log(tmp_path: Path) -> None:
    node = start("broker", "--dir", str(tmp_path), "--port", "0")
    try:
        assert node.stdout is not None
        assert node.stdout.readline().startswith("listening on ")
        (java,) = assert_eventually(lambda: _children(node.pid), what="the broker's process")
        os.kill(java, signal.SIGKILL)
        _, stderr = node.communicate(timeout=60)
        assert node.returncode == 1
        assert "error: broker-failed: " in stderr
    finally:
        node.kill()


@pytest.mark.usefixtures("java")
@pytest.mark.parametrize(
    ("option", "value", "quoted"),
    [
        ("--dir", "a-file", "a-file"),
        ("--dir", "a-file/below", "a-file"),
        ("--dir", "long" * 100, "too long"),
        ("--host", "no-such-host.invalid", "no-such-host.invalid"),
        ("--host", "192.0.2.1", "192.0.2.1"),
        ("--host", "two..dots", "two..dots"),
    ],
)
def test_a_broker_that_cannot_use_its_options_is_an_error_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, value: str, quoted: str
) -> None:
    monkeypatch.chdir(tmp_path)
    # Handlers would remain installed in the test's process.
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    (tmp_path / "a-file").touch()
    _assert_error_sentence(CliRunner().invoke(app, ["broker", option, value]), 1, "broker-failed", quoted)


def test_a_host_that_is_not_utf_8_is_bad_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    _assert_error_sentence(CliRunner().invoke(app, ["broker", "--host", "\udcff"]), 2, "bad-usage", "--host")


@pytest.mark.parametrize("keep", ["a-file", "a-file/below", "full"])
def test_a_demo_needs_a_folder_that_is_new_or_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a-file").touch()
    (tmp_path / "full/of").mkdir(parents=True)
    _assert_error_sentence(CliRunner().invoke(app, ["demo", "--keep", keep]), 2, "bad-usage", keep)


def _assert_error_sentence(result: Result, exit_code: int, error: str, quoted: str) -> None:
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == exit_code
    sentence = result.stderr.splitlines()[-1]
    assert sentence.startswith(f"error: {error}: ")
    assert quoted in sentence


def _children(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children()]
