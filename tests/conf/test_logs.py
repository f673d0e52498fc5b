from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from conf.errors import UsageError
from conf.logs import FORMAT_VARIABLE, LEVEL_VARIABLE, configure_logging, configure_worker_logging, level_now

_LOGS = """
import logging, sys
from conf.logs import configure_logging, format_now
configure_logging("info", sys.argv[1])
logging.getLogger("sinks.release").info("shard %d: ü", 3)
logging.getLogger("some.library").info("not shown")
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("some.library").exception("failed\\nhere")
print(format_now())
"""


def logged(*arguments: str, **environment: str) -> tuple[str, list[str]]:
    """Return the output and the log lines of a process in which a library logs an information, and then an error.

    Libraries log only warnings and errors.
    """
    command = [sys.executable, "-c", _LOGS, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **environment})
    return result.stdout.strip(), result.stderr.splitlines()


@pytest.fixture(autouse=True)
def restored_levels() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("conf", "sources", "state", "sinks", "streaming")]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


@pytest.mark.parametrize("level", ["debug", "INFO", "warning", "Error"])
def test_a_worker_logs_at_the_level_of_its_driver(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    configure_logging(level)
    monkeypatch.setenv(LEVEL_VARIABLE, level_now())
    configure_logging("error" if level != "Error" else "debug")
    configure_worker_logging()
    assert logging.getLogger("sinks.ready_log").getEffectiveLevel() == logging.getLevelNamesMapping()[level.upper()]


@pytest.mark.parametrize("level", ["", "loud", "10", "critical"])
def test_an_unknown_level_is_refused_with_the_list_of_levels(level: str) -> None:
    with pytest.raises(UsageError, match="debug, info, warning, error"):
        configure_logging(level)


def test_a_line_of_text_begins_with_an_instant_in_utc() -> None:
    log_format, lines = logged("text", TZ="Asia/Tokyo")
    assert log_format == "text"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO sinks\.release: shard 3: ü", lines[0])
    assert "not shown" not in " ".join(lines)
    assert lines[-1] == "ZeroDivisionError: division by zero"
    at = datetime.fromisoformat(lines[0].split()[0])
    assert abs(at.timestamp() - time.time()) < 60


def test_json_has_one_object_a_line_whatever_the_message() -> None:
    log_format, lines = logged("json")
    assert log_format == "json"
    first, second = map(json.loads, lines)
    assert {name: first[name] for name in ("level", "logger", "message")} == {
        "level": "INFO", "logger": "sinks.release", "message": "shard 3: ü",
    }  # fmt: skip
    assert datetime.fromisoformat(first["time"]).timestamp() * 1000 == pytest.approx(first["time_ms"], abs=0.5)
    assert (second["message"], second["exception"].splitlines()[-1]) == (
        "failed\nhere",
        "ZeroDivisionError: division by zero",
    )


def test_a_worker_logs_in_the_format_of_its_driver() -> None:
    code = "from conf.logs import configure_worker_logging, format_now; configure_worker_logging(); print(format_now())"
    environment = {**os.environ, FORMAT_VARIABLE: "json"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert result.stdout == "json\n"
