"""The backup and the restore of docs/operate/backup.md. The job continues in between."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.system.conftest import Application, MakeService
from tests.system.ledger import Ledger
from tests.system.load import publish_mixed

_DELIVERED = 100


def run_on(ledger: Ledger, application: Application, seed: int) -> None:
    """Let the running job seal and deliver more messages."""
    before = len(ledger.got)
    publish_mixed(ledger, application, 400, seed, longest_ms=60_000)
    ledger.wait_for(lambda: len(ledger.got) >= before + _DELIVERED, 60)
    assert len(ledger.got) >= before + _DELIVERED


def commits(storage: Path) -> int:
    """Return how many commits the table of sealed buckets has had."""
    return len(list((storage / "buckets/_delta_log").glob("*.json")))


@pytest.mark.thorough
@pytest.mark.takes(60)
def test_restoring_a_table_that_was_copied_while_the_job_ran_loses_and_duplicates_nothing(
    application: Application, make_service: MakeService
) -> None:
    service, ledger = make_service()
    storage, backup = application.folder / "storage", application.folder / "backup"
    service.start()
    run_on(ledger, application, seed=1)
    (backup / "buckets").mkdir(parents=True)
    # The log first: the files that it names stay for an hour after they are replaced.
    subprocess.run(["cp", "-a", storage / "buckets/_delta_log", backup / "buckets/"], check=True)
    subprocess.run(["cp", "-a", *sorted((storage / "buckets").glob("part=*")), backup / "buckets/"], check=True)
    assert service.stop() == 0, service.log[-3000:]
    # As in a backup of the whole storage: the checkpoint will be too old.
    shutil.copytree(storage / "checkpoint", backup / "checkpoint")
    service.start()
    run_on(ledger, application, seed=2)
    assert commits(storage) > commits(backup) > 1, "the backup should contain a part of the sealed buckets"
    service.kill()
    shutil.rmtree(storage)
    shutil.copytree(backup, storage)
    assert service.command("run") == 1
    assert "checkpoint-mismatch" in service.log
    assert service.command("rebuild", "--discard-checkpoint") == 0, service.log[-3000:]
    service.start()
    ledger.verify_after_outage(120)
    assert service.stop() == 0, service.log[-3000:]
