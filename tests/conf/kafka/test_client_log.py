"""The messages of librdkafka go through the log, in its format, and are not repeated with each try."""

from __future__ import annotations

import ast
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from conf.kafka.client_log import NotAgain, client_log
from conf.kafka.clients import admin_client, make_client
from sinks.topics import limits

ROOT = Path(__file__).parents[3]
PACKAGES = ("conf", "sources", "sinks", "state", "streaming")
CLIENTS = {"Producer", "Consumer", "AdminClient"}
NOBODY = {"bootstrap.servers": "127.0.0.1:1"}
_REFUSED = "FAIL [%s] 127.0.0.1:1/bootstrap: Connection refused (after %dms in state CONNECT)"


def _opened(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", None)
            if name in CLIENTS:
                yield node


def _has_log(call: ast.Call, is_judge: bool) -> bool:
    """Return whether a client has a client log. In the judge, which shares nothing with the service, any will do."""
    loggers = [each.value for each in call.keywords if each.arg == "logger"]
    for node in (node for given in call.args for node in ast.walk(given) if isinstance(node, ast.Dict)):
        pairs = zip(node.keys, node.values, strict=True)
        loggers += [value for key, value in pairs if isinstance(key, ast.Constant) and key.value == "logger"]
    return any(
        is_judge or (isinstance(each, ast.Call) and getattr(each.func, "id", None) == "client_log") for each in loggers
    )


def test_each_client_of_librdkafka_has_a_client_log() -> None:
    found = [
        (f"{path.relative_to(ROOT)}:{call.lineno}", _has_log(call, "judge" in path.parts))
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for call in _opened(ast.parse(path.read_text()))
    ]
    assert len(found) > 15, "it looks at the clients that there are"
    assert [place for place, has_log in found if not has_log] == []


def test_the_lines_of_an_admin_client_are_records_of_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(limits, "_TIMEOUT_S", 1.0)
    with pytest.raises(KafkaException):
        limits.topic_access(NOBODY, ["t"])
    lines = [(each.name, each.levelno) for each in caplog.records if "Connection refused" in each.getMessage()]
    assert set(lines) == {("sinks.topics.limits.librdkafka", logging.ERROR)}
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


def test_a_line_comes_again_only_after_a_while(caplog: pytest.LogCaptureFixture) -> None:
    log = client_log(logging.getLogger("some.client"), NotAgain(silent_s=0.2))
    for took_ms in range(3):
        log.error(_REFUSED, "consumer-1", took_ms)
    log.error(_REFUSED, "consumer-2", 1)
    time.sleep(0.3)
    log.error(_REFUSED, "consumer-1", 7)
    said = [record.getMessage() for record in caplog.records]
    assert [line.split("]")[0] for line in said] == ["FAIL [consumer-1", "FAIL [consumer-2", "FAIL [consumer-1"]
    assert {record.name for record in caplog.records} == {"some.client.librdkafka"}


def test_the_modules_own_lines_all_come(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("sources.subscriber")
    client_log(log)
    for _ in range(3):
        log.warning("again")
    assert len(caplog.records) == 3


def test_lines_that_differ_take_no_memory_that_grows(caplog: pytest.LogCaptureFixture) -> None:
    not_again = NotAgain()
    log = client_log(logging.getLogger("another.client"), not_again)
    for number in range(2_500):
        log.error("line %d of a client", number)
    assert len(caplog.records) == 2_500
    assert len(not_again._said_s) <= 1_000


def test_a_client_without_a_broker_says_once_that_it_cannot_connect(caplog: pytest.LogCaptureFixture) -> None:
    client = AdminClient({**NOBODY}, logger=client_log(logging.getLogger("sources.one")))
    until_s = time.monotonic() + 2
    while time.monotonic() < until_s:
        client.poll(0.1)
    refused = [record for record in caplog.records if "Connection refused" in record.getMessage()]
    assert len(refused) == 1
