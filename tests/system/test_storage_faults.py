"""The storage fails under the job, in one way after the other: each is told, and nothing is lost, doubled or early."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.conftest import MakeDisk
from tests.eventually import assert_eventually
from tests.small_disk import SmallDisk
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
    assert len(service.log.splitlines()) < 400, "traces have been printed whole"
    return service.log.splitlines()[-1]


def _fill(service: Service, ledger: Ledger, application: Application, disk: SmallDisk, what: str) -> None:
    """Fill a disk under the running job, and let it be told; then make room again."""
    disk.fill()
    _publish(ledger, application, 300, _FAR_MS)
    told = _last_line(service)
    assert told.startswith(f"error: storage-failed: no space left: {what} could not be written in {disk.path}, "), told
    # A file that could not be written whole may be gone again.
    assert int(re.search(r" bytes ([\d,]+) are free", told)[1].replace(",", "")) < 65_536, told  # type: ignore[index]
    disk.free()


@pytest.mark.takes(110)
def test_a_disk_that_runs_full_and_files_that_are_lost(
    application: Application, make_service: MakeService, make_disk: MakeDisk, clock: HostClock
) -> None:
    storage = application.folder / "storage"
    buckets, state = make_disk(storage / "buckets"), make_disk(storage / "checkpoint" / "state")
    service, ledger = make_service()
    service.environment, ledger.shown_ms = clock.environment, clock.highest_ms
    _publish(ledger, application, 300, _FAR_MS)
    service.start()
    assert_eventually(lambda: _sealed_files(buckets.path), 60, "a bucket")
    _fill(service, ledger, application, buckets, "a bucket")
    service.start()
    _fill(service, ledger, application, state, "the state of the mutable buckets")

    # A checkpoint that is to be put aside moves as one folder.
    state.become_folder()

    max(_sealed_files(buckets.path), key=lambda file: file.stat().st_size).unlink()
    _cut_short(_newest_state(storage / "checkpoint"))
    service.start(wait=False)
    told = _last_line(service)
    assert told.startswith(f"error: checkpoint-unreadable: {storage}/checkpoint/state"), told
    assert "delayline rebuild --discard-checkpoint" in told

    report = application.folder / "report.json"
    assert service.command("repair", "--skip", "--report", str(report)) == 0, service.log[-3000:]
    assert "delayline rebuild --discard-checkpoint" in service.log
    lost = json.loads(report.read_text())["lost"]
    assert sum(one["messages"] for one in lost) > 0
    assert all(one["offsets"] == one["accepted_again_by_rebuild"] for one in lost)
    assert service.command("rebuild", "--discard-checkpoint") == 0, service.log[-3000:]
    service.start()
    # When these have come out, all before them are accepted.
    _publish(ledger, application, 50, 1_000)
    assert_eventually(lambda: len(ledger.got) == 50, 60)
    clock.set_off(_FAR_S)
    ledger.wait_for_all(60)
    ledger.verify()
    assert service.stop() == 0, service.log[-3000:]


def _sealed_files(table: Path) -> list[Path]:
    """The files of messages that the table's log names."""
    added = [
        json.loads(line)["add"]
        for entry in (table / "_delta_log").glob("*.json")
        for line in entry.read_text().splitlines()
        if line.startswith('{"add"')
    ]
    return [table / file["path"] for file in added if file["partitionValues"]["part"] != "metadata"]


def _newest_state(checkpoint: Path) -> Path:
    """A changelog that the last committed batch left; a batch that failed may have left newer ones, which are void."""
    committed = max(int(entry.name) for entry in (checkpoint / "commits").iterdir() if entry.name.isdigit())
    return next((checkpoint / "state").rglob(f"{committed + 1}.changelog"))


def _cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    # Hadoop's checksum: a file system in the cloud has none.
    file.with_name(f".{file.name}.crc").unlink()
