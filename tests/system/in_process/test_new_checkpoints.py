"""New checkpoints: order after a rescale and a rebuild, a repair, and a start with `--fresh`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.eventually import assert_eventually
from tests.system.checkpoint_files import accepted, sealed_files
from tests.system.conftest import Application
from tests.system.in_process.conftest import MakeJob
from tests.system.in_process.job import JobInProcess
from tests.system.ledger import Ledger

pytestmark = pytest.mark.system


def _publish(ledger: Ledger, application: Application, count: int, first_ms: int, last_ms: int) -> None:
    """Publish messages for both output topics, unordered, due between `first_ms` and `last_ms` from now."""
    for number in range(count):
        delay_ms = first_ms + 7919 * number % (last_ms - first_ms)
        output = application.other if number % 4 == 0 else application.output
        headers = [("deliver-after", b"%d" % delay_ms), ("deliver-to", output.encode())]
        ledger.publish(
            application.input, b"%d" % number, headers, key=b"%d" % (number % 30), output=output, delay_ms=delay_ms
        )
    ledger.flush()


def _accept_all(job: JobInProcess, ledger: Ledger, application: Application) -> None:
    """Run the job until it has accepted all published messages. It delivers those that fall due meanwhile."""
    job.run_until(lambda: assert_eventually(lambda: accepted(application.checkpoint) == len(ledger.sent), 60))


def test_order_holds_across_a_rescale_to_fewer_shards_and_a_rebuild(
    application: Application, make_job: MakeJob
) -> None:
    job, ledger = make_job("bucket.shards=3", partitions=3)
    _publish(ledger, application, 400, 12_000, 36_000)
    _accept_all(job, ledger, application)

    rescaled = job.command("rescale", "--shards", "2")
    assert rescaled.exit_code == 0, rescaled.output
    assert "moved from 3 to 2 shards" in rescaled.stdout
    assert application.checkpoint.name == "checkpoint-2"
    _expect_the_rest_to_wait(job, ledger)
    job.overrides.append("bucket.shards=2")
    _publish(ledger, application, 200, 12_000, 24_000)
    _accept_all(job, ledger, application)

    assert len(ledger.got) < len(ledger.sent)
    rebuilt = job.command("rebuild", "--discard-checkpoint")
    assert rebuilt.exit_code == 0, rebuilt.output
    assert application.checkpoint.name == "checkpoint-3"
    _expect_the_rest_to_wait(job, ledger)
    job.run_until(lambda: ledger.wait_for_all(60))
    # Order holds without exception: all messages were accepted before they were due, and before the switches.
    ledger.verify()


def _expect_the_rest_to_wait(job: JobInProcess, ledger: Ledger) -> None:
    """Assert that before the first batch of a new checkpoint, undelivered messages are shown to wait or are unread.

    Messages that fall due meanwhile wait as long as no job runs. `rebuild` continues where the last staging had read
    to.
    """
    lines = job.command("peek", "--format", "json", "--limit", "10000").stdout.splitlines()
    shown = {json.loads(line)["id"] for line in lines}
    status = json.loads(job.command("status", "--format", "json").stdout)
    left = ledger.sent.keys() - {record.id for record in list(ledger.got)}
    assert shown <= left
    # Forwarders have delivered some of the messages that are read again. These are at most the last wave.
    assert len(left - shown) <= status["input_lag"]["total"] <= 200
    assert status["waiting"]["total"] == sum(status["due"].values()) == len(shown)


@pytest.mark.thorough
def test_a_lost_file_of_sealed_messages_is_named_and_removed_and_its_messages_are_accepted_again(
    application: Application, make_job: MakeJob
) -> None:
    job, ledger = make_job()
    _publish(ledger, application, 400, 20_000, 30_000)
    _accept_all(job, ledger, application)
    table = application.folder / "storage" / "buckets"
    lost = max(sealed_files(table), key=lambda file: file.stat().st_size)
    lost.unlink()
    error_line = job.failure()
    assert error_line.startswith(f"error: bucket-unreadable: {lost} is missing or damaged "), error_line
    assert "`delayline repair`" in error_line

    check = job.command("repair")
    assert check.exit_code == 1, check.output
    waiting = _lost_by(check.stdout)
    report = application.folder / "report.json"
    repair = job.command("repair", "--skip", "--report", str(report))
    assert repair.exit_code == 0, repair.output
    assert "delayline rebuild --discard-checkpoint" in repair.stdout
    lost_messages = json.loads(report.read_text())["lost"]
    assert sum(each["messages"] for each in lost_messages) == waiting > 0
    assert all(each["offsets"] == each["accepted_again_by_rebuild"] for each in lost_messages)

    recheck = job.command("repair")
    assert (recheck.exit_code, recheck.stdout) == (0, f"all of {table} is readable\n")
    rebuilt = job.command("rebuild", "--discard-checkpoint")
    assert rebuilt.exit_code == 0, rebuilt.output
    job.run_until(lambda: ledger.verify_after_outage(60))


def _lost_by(output: str) -> int:
    """Return how many messages `delayline repair` prints as lost. It must print that all can be accepted again."""
    last = output.splitlines()[-1]
    lost = int(last.split(" ", 1)[0])
    assert last == (
        f"{lost} waiting messages are lost; `delayline rebuild` can accept {lost} of them again from the input topics"
    )
    return lost


@pytest.mark.thorough
def test_records_that_were_deleted_unread_end_the_start_after_a_rebuild_and_delivered_ones_do_not(
    application: Application, make_job: MakeJob
) -> None:
    job, ledger = make_job()
    # In a variable: a client that is collected leaves its futures undone for ever.
    admin = AdminClient({"bootstrap.servers": application.bootstrap})

    def publish(count: int) -> None:
        for number in range(count):
            ledger.publish(application.input, b"%d" % number, partition=number % 2, output=application.output)
        ledger.flush()

    def delete_below(offset: int) -> None:
        partition = TopicPartition(application.input, 1, offset)
        admin.delete_records([partition])[partition].result()

    publish(40)
    job.run_until(lambda: ledger.wait_for_all(60))
    delete_below(20)
    assert job.command("rebuild", "--discard-checkpoint").exit_code == 0
    publish(20)
    job.run_until(lambda: ledger.wait_for_all(60))

    # The ledger does not know of these.
    producer = Producer({"bootstrap.servers": application.bootstrap})
    for _ in range(15):
        producer.produce(application.input, b"unread", partition=1)
    assert producer.flush(30) == 0
    delete_below(42)
    rebuilt = job.command("rebuild", "--discard-checkpoint")
    assert rebuilt.exit_code == 0, rebuilt.output
    error_line = job.failure()
    assert error_line.startswith(
        f"error: records-expired: {application.input}/1: offsets 30 to 41 (12 in all) were deleted before"
    ), error_line
    job.overrides.append("topics.skip_expired=true")
    publish(10)

    def values() -> Counter[bytes | None]:
        return Counter(record.value for record in ledger.got)

    job.run_until(lambda: ledger.wait_for(lambda: values().total() >= 73, 60))
    assert values()[b"unread"] == 3
    assert values().total() == 73
    ledger.close()


@pytest.mark.thorough
def test_run_fresh_delivers_the_input_again_and_run_alone_does_not(
    application: Application, make_job: MakeJob, tmp_path: Path
) -> None:
    job, ledger = make_job()
    for number in range(60):
        ledger.publish(application.input, b"%d" % number, key=b"%d" % number, output=application.output)
    job.run_until(lambda: ledger.wait_for_all(60))

    # As if the folder were not mounted.
    job.overrides.append(f"storage.path={tmp_path / 'empty'}")
    error_line = job.failure()
    assert error_line.startswith("error: checkpoint-mismatch: no checkpoint at "), error_line
    assert "`delayline run --fresh` starts over" in error_line

    def delivery_counts() -> set[int]:
        return set(Counter(record.id for record in ledger.got).values())

    assert delivery_counts() == {1}
    job.run_until(lambda: assert_eventually(lambda: delivery_counts() == {2}, 60), "--fresh")
    # The ledger would report the duplicates.
    ledger.close()


@pytest.mark.thorough
def test_no_command_of_another_application_changes_the_storage(application: Application, make_job: MakeJob) -> None:
    job, ledger = make_job()
    _publish(ledger, application, 40, 12_000, 20_000)
    _accept_all(job, ledger, application)
    storage = application.checkpoint.parent
    before = {path: path.read_bytes() for path in storage.rglob("*") if path.is_file()}
    job.overrides.append(f"application_id={application.id}-renamed")
    assert job.command("topics", "create").exit_code == 0
    refusal = f"belongs to application {application.id}, but application_id is {application.id}-renamed"
    assert refusal in job.failure()
    for command in (("rescale", "--shards", "3"), ("rebuild", "--discard-checkpoint"), ("repair",)):
        refused = job.command(*command)
        assert (refused.exit_code, refusal in refused.stderr) == (1, True), refused.output
    assert {path: path.read_bytes() for path in storage.rglob("*") if path.is_file()} == before

    job.overrides.pop()
    job.run_until(lambda: ledger.wait_for_all(60))
    ledger.verify()
