"""Starts that are refused, and the errors that they print."""

from __future__ import annotations

import shutil

import psutil
import pytest

from tests.system.conftest import Application, MakeService
from tests.system.load import publish_mixed
from tests.system.service import Service


def test_a_start_without_its_topics_names_them_and_how_to_create_them(application: Application) -> None:
    service = Service(application.folder, application.overrides())
    service.start(wait=False)
    assert service.wait() == 1
    assert "topic-missing" in service.log
    assert application.input in service.log
    assert "delayline topics create" in service.log


def test_a_wrong_setting_is_named_with_its_value(application: Application) -> None:
    service = Service(application.folder, application.overrides("bucket.shards=none"))
    service.start(wait=False)
    assert service.wait() == 2
    assert "bucket.shards" in service.log
    assert "none" in service.log


@pytest.mark.thorough
def test_a_lost_checkpoint_or_another_shard_count_is_refused_and_nothing_is_delivered_twice(
    application: Application, make_service: MakeService
) -> None:
    service, ledger = make_service()
    service.start()
    publish_mixed(ledger, application, 800, seed=1, longest_ms=6_000)
    ledger.wait_for_all(60)
    assert service.stop() == 0, service.log[-3000:]

    service.overrides.append("bucket.shards=3")
    service.start(wait=False)
    assert service.wait() == 1
    # The progress topic, which was created for two shards, is checked before Spark is started.
    assert "topic-mismatch" in service.log or "checkpoint-mismatch" in service.log
    service.overrides.pop()

    kept = application.checkpoint.rename(application.folder / "elsewhere")
    for arguments in ((), ("--fresh",)):
        # Messages were sealed: not even `--fresh` starts with another checkpoint's buckets in the storage.
        service.start(None, False, *arguments)
        assert service.wait() == 1
        assert "checkpoint-mismatch" in service.log
        assert "sealed messages of an earlier one" in service.log
    # These starts did no harm.
    kept.rename(application.checkpoint)
    service.start()
    assert service.stop() == 0, service.log[-3000:]
    shutil.rmtree(application.folder / "storage")
    service.start(wait=False)
    assert service.wait() == 1
    assert "checkpoint-mismatch" in service.log
    assert "--fresh" in service.log
    ledger.verify()
    # The next start delivers the messages again.
    ledger.close()
    service.start(None, True, "--fresh")
    assert service.stop() == 0, service.log[-3000:]


@pytest.mark.thorough
def test_a_job_whose_java_ends_says_so_in_one_sentence(application: Application, make_service: MakeService) -> None:
    service, _ = make_service()
    # Its own process: a warm one is of no use without Java.
    service.in_own_group = True
    service.start()
    children = psutil.Process(service.pid).children()
    (java,) = (child for child in children if child.name() == "java")
    java.kill()
    assert service.wait() == 1
    last = [line for line in service.log.splitlines() if line.startswith("error: ")]
    assert len(last) == 1, service.log[-3000:]
    assert last[0].startswith("error: query-failed: Spark's Java process ended with -9")
    assert "spark.driver.memory" in last[0]
    assert "Traceback" not in service.log
