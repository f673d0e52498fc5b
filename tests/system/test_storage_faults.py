"""The storage fails under the job in several ways: each is reported, and no message is lost, duplicated or early."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.conftest import MakeDisk
from tests.eventually import assert_eventually
from tests.small_disk import SmallDisk
from tests.system.checkpoint_files import sealed_files
from tests.system.conftest import Application, MakeService
from tests.system.host_clock import HostClock
from tests.system.ledger import Ledger
from tests.system.service import Service

# Not due before the clock is set, however slow the machine is.
_FAR_S = 1_800
_FAR_MS = _FAR_S * 1000


def _publish(ledger: Ledger, application: Application, count: int, delay_ms: int) -> None:
    for number in range(count):
        delay = delay_ms + 20 * number
        after = [("deliver-after", str(delay).encode())]
        key = str(number % 30).encode()
        ledger.publish(application.input, b"x" * 300, after, key=key, output=application.output, delay_ms=delay)
    ledger.flush()


def _last_line(service: Service) -> str:
    assert service.wait(120) == 1, service.log[-3000:]
    assert len(service.log.splitlines()) < 400, "whole traces were printed"
    return service.log.splitlines()[-1]


def _fill(service: Service, ledger: Ledger, application: Application, disk: SmallDisk, data: str) -> None:
    """Fill a disk under the running job, assert its error, and free the space again."""
    disk.fill()
    _publish(ledger, application, 300, _FAR_MS)
    error_line = _last_line(service)
    assert error_line.startswith(
        f"error: storage-failed: no space left: {data} could not be written in {disk.path}, "
    ), error_line
    # A partly written file may be deleted by now.
    assert int(re.search(r", where ([\d,]+) of ", error_line)[1].replace(",", "")) < 65_536, error_line  # type: ignore[index]
    disk.free()


@pytest.mark.thorough
@pytest.mark.takes(110)
def test_full_disks_and_lost_files_are_reported_and_no_message_is_lost_duplicated_or_early(
    application: Application, make_service: MakeService, make_disk: MakeDisk, clock: HostClock
) -> None:
    storage = application.folder / "storage"
    buckets, state = make_disk(storage / "buckets"), make_disk(storage / "checkpoint" / "state")
    service, ledger = make_service("clock.skew_limit=366d")
    service.environment, ledger.shown_ms = clock.environment, clock.highest_ms
    _publish(ledger, application, 300, _FAR_MS)
    service.start()
    assert_eventually(lambda: sealed_files(buckets.path), 60, "a bucket")
    _fill(service, ledger, application, buckets, "a bucket")
    service.start()
    _fill(service, ledger, application, state, "the state of the mutable buckets")

    max(sealed_files(buckets.path), key=lambda file: file.stat().st_size).unlink()
    _cut_short(_newest_state(storage / "checkpoint"))
    service.start(wait=False)
    error_line = _last_line(service)
    assert error_line.startswith(f"error: checkpoint-unreadable: {storage}/checkpoint/state"), error_line
    assert "delayline rebuild --discard-checkpoint" in error_line

    report = application.folder / "report.json"
    assert service.command("repair", "--skip", "--report", str(report)) == 0, service.log[-3000:]
    assert "delayline rebuild --discard-checkpoint" in service.log
    lost = json.loads(report.read_text())["lost"]
    assert sum(each["messages"] for each in lost) > 0
    assert all(each["offsets"] == each["accepted_again_by_rebuild"] for each in lost)
    assert service.command("rebuild", "--discard-checkpoint") == 0, service.log[-3000:]
    service.start()
    # When these are delivered, all earlier messages have been accepted.
    _publish(ledger, application, 50, 1_000)
    assert_eventually(lambda: len(ledger.got) == 50, 60)
    clock.set_off(_FAR_S)
    ledger.wait_for_all(60)
    ledger.verify()
    assert service.stop() == 0, service.log[-3000:]


def _newest_state(checkpoint: Path) -> Path:
    """Return a changelog of the last committed batch. A failed batch may have left newer ones, which are not used."""
    committed = max(int(entry.name) for entry in (checkpoint / "commits").iterdir() if entry.name.isdigit())
    return next((checkpoint / "state").rglob(f"{committed + 1}.changelog"))


def _cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    # Delete Hadoop's checksum file. An object store has no such file.
    file.with_name(f".{file.name}.crc").unlink()
