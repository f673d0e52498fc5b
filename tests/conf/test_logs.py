from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from conf.errors import UsageError
from conf.logs import LEVEL_VARIABLE, configure_logging, configure_worker_logging, level_now


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


def test_libraries_log_only_warnings_at_any_level() -> None:
    configure_logging("debug")
    assert logging.getLogger("some.library").getEffectiveLevel() >= logging.WARNING


@pytest.mark.parametrize("level", ["", "loud", "10", "critical"])
def test_an_unknown_level_is_refused_with_the_list_of_levels(level: str) -> None:
    with pytest.raises(UsageError, match="debug, info, warning, error"):
        configure_logging(level)
