from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from conf.errors import UsageError
from conf.logs import LEVEL_VARIABLE, configure_logging, configure_worker_logging, level_now


@pytest.fixture(autouse=True)
def levels_kept() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("conf", "sources", "state", "sinks", "streaming")]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


@pytest.mark.parametrize("level", ["debug", "INFO", "warning", "Error"])
def test_a_worker_logs_from_the_level_of_its_driver_on(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    configure_logging(level)
    monkeypatch.setenv(LEVEL_VARIABLE, level_now())
    configure_logging("error" if level != "Error" else "debug")
    configure_worker_logging()
    assert logging.getLogger("sinks.delivery").getEffectiveLevel() == logging.getLevelNamesMapping()[level.upper()]


def test_libraries_are_not_loud_whatever_the_level() -> None:
    configure_logging("debug")
    assert logging.getLogger("some.library").getEffectiveLevel() >= logging.WARNING


@pytest.mark.parametrize("level", ["", "loud", "10", "critical"])
def test_an_unknown_level_is_named_with_those_that_there_are(level: str) -> None:
    with pytest.raises(UsageError, match="debug, info, warning, error"):
        configure_logging(level)
