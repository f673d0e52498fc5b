"""The recipe of docs/platform/s3.md: storage on a real S3 server, through kills and new checkpoints."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from conf.errors import JarsMissing
from conf.java.jars.installed import s3_jars
from tests.eventually import assert_eventually
from tests.system.checkpoint_files import accepted
from tests.system.conftest import Application, MakeService
from tests.system.cut_off import finish, kill_in_the_middle
from tests.system.load import publish_mixed
from tests.system.s3_server import BUCKET, NoServer, S3Server, server_program
from tests.system.service import Service
from tests.system.stalling_proxy import StallingProxy


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3Server]:
    """An S3 server. The test is skipped if no server is available."""
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


@pytest.mark.thorough
@pytest.mark.takes(150)
def test_an_upload_that_stalls_past_a_takeover_loses_and_doubles_nothing(
    application: Application, make_service: MakeService, s3: S3Server
) -> None:
    application.storage = s3.objects / BUCKET / "jobs" / application.id
    proxy = StallingProxy(int(s3.endpoint.rpartition(":")[2]))
    storage = [f"storage.path=s3a://{BUCKET}/jobs/{application.id}", *s3.overrides]
    # The body comes with the head of the request.
    through_proxy = {"endpoint": f"http://127.0.0.1:{proxy.port}", "connection.expect.continue": "false"}
    first, ledger = make_service(
        *storage, *(f"spark.spark.hadoop.fs.s3a.{key}={to}" for key, to in through_proxy.items())
    )
    (application.folder / "second").mkdir()
    second = Service(application.folder / "second", application.overrides(*storage))
    first.environment = second.environment = s3.environment
    log = application.storage / "buckets" / "_delta_log"
    try:
        first.start()
        publish_mixed(ledger, application, 300, seed=1, longest_ms=120_000)
        assert_eventually(lambda: len(list(log.glob("*.json"))) > 1, 90, "a sealed bucket")
        proxy.hold(re.compile(rb"^PUT \S+/_delta_log/(\d{20}\.json)", re.MULTILINE))
        publish_mixed(ledger, application, 300, seed=2, longest_ms=120_000)
        assert_eventually(lambda: proxy.held, 90, "an upload")
        first.pause()
        second.start()
        assert_eventually(
            lambda: len([each for each in log.glob("*.json") if each.name > proxy.held]) > 1, 90, "a seal"
        )
        written = (log / proxy.held).read_bytes()
        proxy.release()
        assert proxy.passed_on.wait(60)
        assert second.wait(120) == 1
        assert second.log.splitlines()[-1].startswith(f"error: log-entry-replaced: {proxy.held} in ")
        assert (log / proxy.held).read_bytes() == written
        second.start()
        ledger.check = second.check
        publish_mixed(ledger, application, 100, seed=3, longest_ms=5_000)
        ledger.verify_after_outage(150)
        assert second.stop() == 0, second.log[-3000:]
    finally:
        first.kill()
        second.kill()
        proxy.close()
