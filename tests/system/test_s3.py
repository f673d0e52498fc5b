"""The recipe of docs/deploy.md, "S3": storage on a real S3 server, through kills and new checkpoints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from conf.errors import JarsMissing
from conf.java.jars import s3_jars
from tests.eventually import assert_eventually
from tests.system.checkpoint_files import accepted
from tests.system.conftest import Application, MakeService
from tests.system.load import publish_mixed
from tests.system.s3_server import BUCKET, NoServer, S3Server, server_program
from tests.system.test_succession import finish, kill_in_the_middle


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3Server]:
    """An S3 server. It skips the test where none can be had."""
    try:
        program = server_program()
        s3_jars()
    except (NoServer, JarsMissing) as missing:
        pytest.skip(f"an S3 server and its client are needed: {missing}")
    server = S3Server(program, tmp_path / "s3")
    yield server
    server.close()


@pytest.mark.thorough
@pytest.mark.takes(200)
def test_a_job_on_s3_loses_and_duplicates_nothing_through_kills_a_rescale_and_a_rebuild(
    application: Application, make_service: MakeService, s3: S3Server
) -> None:
    # The judge reads the checkpoint's files where the server keeps them.
    application.storage = s3.objects / BUCKET / "jobs" / application.id
    storage = f"s3a://{BUCKET}/jobs/{application.id}"
    service, ledger = make_service("release.slice=20ms", f"storage.path={storage}", *s3.overrides)
    service.environment = s3.environment
    kill_in_the_middle(service, ledger, application, seed=1)
    service.start()
    publish_mixed(ledger, application, 400, seed=2, longest_ms=60_000)
    assert_eventually(lambda: accepted(application.checkpoint) == len(ledger.sent), 60, "acceptance")
    assert_eventually(lambda: len(list((application.storage / "buckets").glob("part=*"))) > 1, 60, "a sealed bucket")
    service.kill()

    assert service.command("rescale", "--shards", "3") == 0, service.log[-3000:]
    assert f"the old checkpoint is still at {storage}/checkpoint:" in service.log
    assert application.checkpoint.name == "checkpoint-2"
    service.overrides.append("bucket.shards=3")
    service.start()
    publish_mixed(ledger, application, 200, seed=3, longest_ms=60_000)
    assert_eventually(lambda: accepted(application.checkpoint) == len(ledger.sent), 60, "acceptance")
    service.kill()

    assert service.command("status", "--format", "json") == 0, service.log[-3000:]
    status = json.loads(service.log[service.log.index("{") :])
    assert status["checkpoint"] == f"{storage}/checkpoint-2"
    assert status["waiting"]["total"] > 0
    assert service.command("repair") == 0, service.log[-3000:]
    assert service.command("rebuild", "--discard-checkpoint") == 0, service.log[-3000:]
    assert application.checkpoint.name == "checkpoint-3"
    finish(service, ledger, application, seed=4)
    # To rename an object is to copy it.
    assert s3.requests()["s3_PutObject"] > 0
    assert s3.requests()["s3_CopyObject"] == 0
