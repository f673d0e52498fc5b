"""Each login goes through the whole service: the clients of Spark, staging and release, and of the commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conf.load import load_settings
from sources.subscriber import Subscriber
from tests.system.conftest import Application
from tests.system.in_process.job import JobInProcess
from tests.system.secured import LOGINS, Secured
from tests.thorough import some_thorough


@pytest.mark.thorough
@pytest.mark.takes(8)
@pytest.mark.parametrize("login", some_thorough(LOGINS, always=("OAUTHBEARER",)))
def test_a_message_goes_through_the_whole_service_with_each_login(
    secured: Secured, shared_session: None, restored_signal_handlers: None, tmp_path: Path, login: str
) -> None:
    application = Application(secured.broker, tmp_path)
    options = {**secured.sections[login], "log_level": "0"}
    overrides = application.overrides(*(f"kafka.{name}={value}" for name, value in options.items()))
    settings = load_settings(None, overrides, environ={})
    job, issued = JobInProcess(overrides), secured.tokens.issued

    def receive() -> None:
        with Subscriber(settings, application.output, from_beginning=True) as subscriber:
            (record,) = subscriber.records(count=1, timeout_ms=60_000)
        assert record.value == b"good"

    for command in (["topics", "create"], ["topics", "show"], ["publish", "good", "--after", "1s"]):
        done = job.command(*command)
        assert done.exit_code == 0, done.output
    job.run_until(receive)
    status = json.loads(job.command("status", "--format", "json").stdout)
    # A forwarder took it, perhaps before a batch has read it.
    assert status["waiting"]["total"] == 0
    assert status["input_lag"]["total"] <= 1
    assert (secured.tokens.issued > issued) == (login == "OAUTHBEARER")
