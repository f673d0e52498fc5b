"""A checkpoint that takes over: order after a rescale and a rebuild, a repair, and a start with `--fresh`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.eventually import assert_eventually
from tests.system.checkpoint_files import accepted, sealed_files
from tests.system.conftest import Application
from tests.system.in_process.conftest import MakeJob
from tests.system.in_process.job import JobInProcess
from tests.system.ledger import Ledger

pytestmark = pytest.mark.system


def _publish(ledger: Ledger, application: Application, count: int, first_ms: int, last_ms: int) -> None:
    """Publish messages that are due between `first_ms` and `last_ms` from now, in no order, on both output topics."""
    for number in range(count):
        delay_ms = first_ms + 7919 * number % (last_ms - first_ms)
        output = application.other if number % 4 == 0 else application.output
        headers = [("deliver-after", b"%d" % delay_ms), ("deliver-to", output.encode())]
        ledger.publish(
            application.input, b"%d" % number, headers, key=b"%d" % (number % 30), output=output, delay_ms=delay_ms
        )
    ledger.flush()


def _accept_all(job: JobInProcess, ledger: Ledger, application: Application) -> None:
    """Let the job take in all that is published, and deliver of it what falls due by then."""
    checkpoint = application.folder / "storage" / "checkpoint"
    job.run_until(lambda: assert_eventually(lambda: accepted(checkpoint) == len(ledger.sent), 60))


def test_order_holds_across_a_rescale_to_fewer_shards_and_a_rebuild(
    application: Application, make_job: MakeJob
) -> None:
    job, ledger = make_job("bucket.shards=3", partitions=3)
    _publish(ledger, application, 400, 12_000, 36_000)
    _accept_all(job, ledger, application)

    rescaled = job.command("rescale", "--shards", "2")
    assert rescaled.exit_code == 0, rescaled.output
    assert "moved from 3 to 2 shards" in rescaled.stdout
    job.overrides.append("bucket.shards=2")
    _publish(ledger, application, 200, 12_000, 24_000)
    _accept_all(job, ledger, application)

    assert len(ledger.got) < len(ledger.sent)
    rebuilt = job.command("rebuild", "--discard-checkpoint")
    assert rebuilt.exit_code == 0, rebuilt.output
    job.run_until(lambda: ledger.wait_for_all(60))
    # Nothing is excused: all was accepted before it was due, and before a checkpoint took over.
    ledger.verify()


def test_a_lost_file_of_sealed_messages_is_named_taken_out_and_its_messages_are_accepted_again(
    application: Application, make_job: MakeJob
) -> None:
    job, ledger = make_job("window.ahead=1m")
    _publish(ledger, application, 400, 20_000, 30_000)
    _accept_all(job, ledger, application)
    table = application.folder / "storage" / "buckets"
    lost = max(sealed_files(table), key=lambda file: file.stat().st_size)
    lost.unlink()
    told = job.failure()
    assert told.startswith(f"error: bucket-unreadable: {lost} is missing or damaged "), told
    assert "`delayline repair`" in told

    looked = job.command("repair")
    assert looked.exit_code == 1, looked.output
    waiting = _lost_by(looked.stdout)
    report = application.folder / "report.json"
    mended = job.command("repair", "--skip", "--report", str(report))
    assert mended.exit_code == 0, mended.output
    assert "delayline rebuild --discard-checkpoint" in mended.stdout
    found = json.loads(report.read_text())["lost"]
    assert sum(one["messages"] for one in found) == waiting > 0
    assert all(one["offsets"] == one["accepted_again_by_rebuild"] for one in found)

    whole = job.command("repair")
    assert (whole.exit_code, whole.stdout) == (0, f"all of {table} can be read\n")
    rebuilt = job.command("rebuild", "--discard-checkpoint")
    assert rebuilt.exit_code == 0, rebuilt.output
    job.run_until(lambda: ledger.verify_after_outage(60))


def _lost_by(said: str) -> int:
    """How many messages `delayline repair` says are lost; all of them can be accepted again."""
    last = said.splitlines()[-1]
    lost = int(last.split(" ", 1)[0])
    assert last == (
        f"{lost} waiting messages are lost; `delayline rebuild` can accept {lost} of them again from the input topics"
    )
    return lost


def test_run_fresh_delivers_again_what_is_in_the_input_and_run_alone_does_not(
    application: Application, make_job: MakeJob, tmp_path: Path
) -> None:
    job, ledger = make_job()
    for number in range(60):
        ledger.publish(application.input, b"%d" % number, key=b"%d" % number, output=application.output)
    job.run_until(lambda: ledger.wait_for_all(60))

    # As if the folder were not mounted.
    job.overrides.append(f"storage.path={tmp_path / 'empty'}")
    told = job.failure()
    assert told.startswith("error: checkpoint-mismatch: there is no checkpoint at "), told
    assert "`delayline run --fresh` starts anew" in told

    def times() -> set[int]:
        return set(Counter(record.id for record in ledger.got).values())

    assert times() == {1}
    job.run_until(lambda: assert_eventually(lambda: times() == {2}, 60), "--fresh")
    # What comes twice is no ledger's contract.
    ledger.close()
