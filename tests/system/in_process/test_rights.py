"""Each process with a login of its own, which has the rights of docs/platform/rights.md and no others."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AclOperation

from conf.load import load_settings
from conf.settings import Settings
from sinks.release.process import ReleaseProcess
from sources.publisher import Publisher
from sources.subscriber import Subscriber
from streaming.forward.process import ForwardProcess
from streaming.local.broker import EmbeddedBroker
from tests.documented_rights import documented_rights
from tests.strict_broker import USERS, Allow, LogInAs
from tests.system.in_process.job import JobInProcess


@contextmanager
def running(make: Callable[[Settings, str], Any], settings: Settings) -> Iterator[None]:
    """Run a release process or a forwarder, which must not fail."""
    ended = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            make(settings, "north").run(lambda _: ended.is_set())
        except BaseException as failure:  # noqa: BLE001 - the test raises it
            failures.append(failure)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert failures == []


@pytest.mark.thorough
@pytest.mark.takes(20)
def test_the_documented_rights_are_enough_for_the_whole_service_and_the_job_needs_read_on_its_input(
    strict: EmbeddedBroker,
    names: list[str],
    log_in_as: LogInAs,
    allow: Allow,
    revoke: Allow,
    shared_session: None,
    restored_signal_handlers: None,
    tmp_path: Path,
) -> None:
    more = [
        *names,
        "release.processes=0",
        "forward.processes=0",
        "forward.elsewhere=true",
        "clock.horizon=2s",
        f"storage.path={tmp_path}",
    ]
    overrides = {user: [*more, *log_in_as(user)] for user in USERS}
    settings = {user: load_settings(None, overrides[user], environ={}) for user in USERS}
    for right in documented_rights(settings["job"]):
        allow([right.name], right.acl_operation, kind=right.kind, pattern=right.pattern, user=right.login)
    created = JobInProcess(overrides["topics"]).command("topics", "create")
    assert created.exit_code == 0, created.output
    topics = settings["job"].topics

    with Publisher(settings["publisher"], topics.input[0]) as publisher:
        assert len(list(publisher.publish([b"good"], headers=[("deliver-after", b"1s")]))) == 1

    # Java's client reads the input, and has its own error texts for missing rights.
    revoke([topics.input[0]], AclOperation.READ, user="job")
    allow([topics.input[0]], AclOperation.DESCRIBE, user="job")
    refused = JobInProcess(overrides["job"]).failure()
    assert refused.startswith("error: right-missing: ")
    assert f"the right Read on the topic {topics.input[0]}" in refused
    allow([topics.input[0]], AclOperation.READ, user="job")

    def receive() -> None:
        with (
            running(ReleaseProcess, settings["release"]),
            running(ForwardProcess, settings["forward"]),
            Subscriber(settings["subscriber"], topics.output, from_beginning=True) as subscriber,
        ):
            (record,) = subscriber.records(count=1, timeout_ms=60_000)
        assert record.value == b"good"

    JobInProcess(overrides["job"]).run_until(receive)
    shown = JobInProcess(overrides["status"]).command("status", "--format", "json")
    status = json.loads(shown.stdout)
    assert (status["waiting"]["total"], status["input_lag"]["total"]) == (0, 0)
    assert status["release"] is not None, shown.output
