"""What librdkafka has to say goes through the log, in its format."""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

from conf.kafka.clients import admin_client, make_client
from sinks.topics import limits

ROOT = Path(__file__).parents[3]
PACKAGES = ("conf", "sources", "sinks", "state", "streaming")
CLIENTS = {"Producer", "Consumer", "AdminClient"}
NOBODY = {"bootstrap.servers": "127.0.0.1:1"}


def _opened(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", None)
            if name in CLIENTS:
                yield node


def _has_logger(call: ast.Call) -> bool:
    keys = [key for given in call.args for node in ast.walk(given) if isinstance(node, ast.Dict) for key in node.keys]
    return any(each.arg == "logger" for each in call.keywords) or any(
        isinstance(key, ast.Constant) and key.value == "logger" for key in keys
    )


def test_each_client_of_librdkafka_has_a_logger() -> None:
    found = [
        (f"{path.relative_to(ROOT)}:{call.lineno}", _has_logger(call))
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for call in _opened(ast.parse(path.read_text()))
    ]
    assert len(found) > 15, "it looks at the clients that there are"
    assert [place for place, has_logger in found if not has_logger] == []


def test_the_lines_of_an_admin_client_are_records_of_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(limits, "_TIMEOUT_S", 1.0)
    with pytest.raises(KafkaException):
        limits.topic_access(NOBODY, ["t"])
    lines = [(each.name, each.levelno) for each in caplog.records if "Connection refused" in each.getMessage()]
    assert set(lines) == {("sinks.topics.limits", logging.ERROR)}
    assert "%3|" not in capfd.readouterr().err


def test_levels_that_are_silenced_stay_so(caplog: pytest.LogCaptureFixture) -> None:
    with admin_client({**NOBODY, "log_level": "2"}, logging.getLogger("any")) as client:
        client.poll(0.5)
    assert caplog.records == []


def test_a_client_of_make_client_has_the_log_too(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    producer = make_client(Producer, NOBODY)
    producer.poll(1)
    assert "Connection refused" in caplog.text
    del producer
    assert "%3|" not in capfd.readouterr().err
