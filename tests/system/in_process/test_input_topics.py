"""Several input topics, and one that is recreated while the job runs."""

from __future__ import annotations

import re
import time
from collections import Counter
from itertools import pairwise

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from conf import failpoints
from tests.eventually import assert_eventually
from tests.job_log import sealed_messages
from tests.system.checkpoint_files import accepted, newest
from tests.system.conftest import Application
from tests.system.in_process.conftest import MakeJob
from tests.system.ledger import Got, Header

pytestmark = pytest.mark.system


@pytest.mark.thorough
def test_messages_of_two_input_topics_are_delivered_in_order_of_due_time_topic_partition_offset(
    application: Application, make_job: MakeJob, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = f"{application.id}-a", f"{application.id}-b"
    job, ledger = make_job(f"topics.input={first},{second}", f"presets.{second}=rocketmq", "window.max_bytes=8192")
    # Ten due times, each shared by messages of both topics and all partitions.
    base_ms = time.time_ns() // 1_000_000 + 10_000
    for number in range(600):
        due_ms = base_ms + 500 * (number * 7 % 10)
        topic, header = ((second, "TIMER_DELIVER_MS"), (first, "deliver-at"))[number // 2 % 2]
        ledger.publish(
            topic, b"%d" % number, [(header, b"%d" % due_ms)], key=b"%d" % (number // 40),
            partition=number % 2, output=application.output, deliver_at_ms=due_ms,
        )  # fmt: skip
    job.run_until(lambda: ledger.wait_for_all(60))
    assert sealed_messages(caplog.text) > 100
    assert Counter(record.id for record in ledger.got) == Counter(ledger.sent.keys())
    for partition in (0, 1):
        delivered = [record for record in ledger.got if record.partition == partition]
        keys = [_order_key(record) for record in sorted(delivered, key=lambda record: record.offset)]
        assert keys == sorted(keys)
        # Otherwise the order across topics was not tested.
        topic_changes = sum(before[0] == after[0] and before[1] != after[1] for before, after in pairwise(keys))
        assert topic_changes == 10


def _order_key(record: Got) -> tuple[int, str, int, int]:
    topic, partition, offset = record.id.rsplit("/", 2)
    return int(record.last("delayline-deliver-at") or -1), topic, int(partition), int(offset)


@pytest.mark.thorough
def test_a_recreated_input_topic_ends_the_job_and_is_read_from_its_beginning_only_with_skip_expired(
    application: Application, make_job: MakeJob
) -> None:
    job, ledger = make_job()
    checkpoint = application.checkpoint
    _publish(application, b"old", 40, [("deliver-after", b"20s")])
    admin = AdminClient({"bootstrap.servers": application.bootstrap})

    def recreate() -> None:
        assert_eventually(lambda: accepted(checkpoint) == 40, 60)
        admin.delete_topics([application.input])[application.input].result()
        assert_eventually(lambda: application.input not in admin.list_topics(timeout=10).topics)
        admin.create_topics([NewTopic(application.input, 2, 1)])[application.input].result()

    error_line = job.failure(meanwhile=recreate)
    # The job may have looked between deletion and creation.
    assert re.match(
        rf"error: checkpoint-mismatch: ({application.input}/0 (is gone|ends at offset 0)|input topic "
        rf"{application.input} was deleted and created again)",
        error_line,
    ), error_line

    _publish(application, b"unread", 6)
    assert f"input topic {application.input} was deleted and created again" in job.failure()

    job.overrides.append("topics.skip_expired=true")

    def read_on() -> None:
        ledger.wait_for(lambda: values()[b"unread"] == 6, 60)
        _publish(application, b"new", 10)
        ledger.wait_for(lambda: values()[b"new"] == 10 and values()[b"old"] == 40, 60)

    def values() -> Counter[bytes | None]:
        return Counter(record.value for record in ledger.got)

    job.run_until(read_on)
    assert values() == {b"old": 40, b"unread": 6, b"new": 10}
    # The ledger does not know these messages.
    ledger.close()


@pytest.mark.thorough
@pytest.mark.takes(60)
def test_every_record_of_an_input_topic_created_again_and_filled_beyond_the_old_offset_is_delivered_once(
    application: Application, make_job: MakeJob
) -> None:
    job, ledger = make_job()
    _publish(application, b"old", 460)
    _publish(application, b"waiting", 40, [("deliver-after", b"45s")])

    def values() -> Counter[bytes | None]:
        return Counter(record.value for record in ledger.got)

    # Forwarders deliver before a batch has read the topic, and one that no batch has read may be created again.
    job.run_until(
        lambda: ledger.wait_for(lambda: values()[b"old"] == 460 and accepted(application.checkpoint) == 500, 60)
    )
    _recreate(application)
    _publish(application, b"new", 2_000)

    refusal = f"error: checkpoint-mismatch: input topic {application.input} was deleted and created again"
    assert job.failure().startswith(refusal)

    job.overrides.append("topics.skip_expired=true")
    job.run_until(lambda: ledger.wait_for(lambda: values()[b"new"] >= 2_000 and values()[b"waiting"] >= 40, 90))
    # The next start finds the topic that it knows.
    job.overrides.remove("topics.skip_expired=true")
    _publish(application, b"last", 10)
    job.run_until(lambda: ledger.wait_for(lambda: values()[b"last"] == 10, 60))
    # Sealed messages of the two topics cannot be told apart.
    refusal = job.command("rebuild", "--discard-checkpoint").stderr
    assert f"checkpoint-mismatch: {application.input} was deleted and created again since the job read the first" in (
        refusal
    )
    assert values() == {b"old": 460, b"waiting": 40, b"new": 2_000, b"last": 10}
    # The ledger does not know these messages.
    ledger.close()


@pytest.mark.thorough
@pytest.mark.takes(60)
def test_an_input_topic_that_was_left_out_does_not_come_back(
    application: Application, make_job: MakeJob, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = f"{application.id}-a", f"{application.id}-b"
    # Batches stage the messages that they read. Their markers say which topics they read, also without the checkpoint.
    job, ledger = make_job(f"topics.input={first},{second}", "forward.processes=0")

    def publish(topic: str, value: bytes, delay_ms: int) -> None:
        headers: list[Header] = [("deliver-after", b"%d" % delay_ms)]
        for number in range(10):
            ledger.publish(topic, value, headers, partition=number % 2, output=application.output, delay_ms=delay_ms)
        ledger.flush()

    def values() -> Counter[bytes | None]:
        return Counter(record.value for record in ledger.got)

    def run_until(count: int, delivered: bytes) -> None:
        """Run the job until its batches have accepted `count` records, and 10 with the value `delivered` came out."""

        def wait() -> None:
            assert_eventually(lambda: accepted(application.checkpoint) == count, 60)
            ledger.wait_for(lambda: values()[delivered] == 10, 60)

        job.run_until(wait)

    publish(first, b"first", 100)
    publish(second, b"second", 100)
    publish(second, b"waiting", 25_000)
    run_until(30, b"second")
    both, without = f"topics.input={first},{second}", f"topics.input={first}"
    job.overrides[job.overrides.index(both)] = without
    assert f"error: checkpoint-mismatch: topics.input no longer names {second}." in job.failure()
    job.overrides.append("topics.skip_expired=true")
    publish(first, b"later", 100)
    # Those of one topic: the offsets no longer have the other.
    run_until(20, b"later")
    job.overrides.pop()

    job.overrides[job.overrides.index(without)] = both
    refusal = f"error: checkpoint-mismatch: topics.input names {second} again"
    assert refusal in job.failure()
    assert refusal in job.command("rebuild", "--discard-checkpoint").stderr
    job.overrides[job.overrides.index(both)] = without
    job.run_until(lambda: ledger.wait_for_all(60))
    rebuilt = job.command("rebuild", "--discard-checkpoint")
    assert rebuilt.exit_code == 0, rebuilt.output
    assert f"topics.input does not name {second} any more" in caplog.text
    job.overrides[job.overrides.index(without)] = both
    assert refusal in job.failure()
    assert values() == {b"first": 10, b"second": 10, b"waiting": 10, b"later": 10}


@pytest.mark.takes(60)
@pytest.mark.thorough
@pytest.mark.parametrize("is_created_again", [False, True])
def test_a_topic_of_an_interrupted_batch_may_be_left_out_and_deleted(
    application: Application, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, is_created_again: bool
) -> None:
    first, second, empty = (f"{application.id}-{each}" for each in "abc")
    every, without = f"topics.input={first},{second},{empty}", f"topics.input={first}"
    job, ledger = make_job(every, "forward.processes=0")

    def publish(topic: str, value: bytes) -> None:
        for number in range(10):
            ledger.publish(topic, value, [], partition=number % 2, output=application.output)
        ledger.flush()

    def values() -> Counter[bytes | None]:
        return Counter(record.value for record in ledger.got)

    publish(first, b"first")
    publish(second, b"second")
    job.run_until(lambda: ledger.wait_for(lambda: len(ledger.got) == 20, 60))
    # The next batch is planned with records of both, and cut off.
    monkeypatch.setattr(failpoints, "_passed", Counter())
    commits = application.checkpoint / "commits"
    committed = newest(commits)
    with monkeypatch.context() as failing:

        def fail_with_records() -> None:
            assert_eventually(lambda: newest(commits) > committed, 60, "the first batch")
            failing.setenv(failpoints.VARIABLE, "batch-begun=raise")
            publish(second, b"lost")
            publish(first, b"later")

        assert "failpoint batch-begun" in job.failure(meanwhile=fail_with_records)
    job.overrides[job.overrides.index(every)] = without
    refusal = f"error: checkpoint-mismatch: topics.input no longer names {second}, {empty}. Put it back"
    assert refusal in job.failure()
    admin = AdminClient({"bootstrap.servers": application.bootstrap})
    partitions = len(admin.list_topics(timeout=10).topics[second].partitions)
    admin.delete_topics([second])[second].result()
    assert_eventually(lambda: second not in admin.list_topics(timeout=10).topics)
    if is_created_again:
        admin.create_topics([NewTopic(second, partitions, 1)])[second].result()
    job.overrides.append("topics.skip_expired=true")

    def run_without_them() -> None:
        ledger.wait_for(lambda: values()[b"later"] == 10, 60)
        # The interrupted batch still names them.
        offsets = application.checkpoint / "offsets"
        assert_eventually(lambda: second not in (offsets / f"{newest(commits)}").read_text(), 60)

    job.run_until(run_without_them)
    job.overrides.pop()
    publish(first, b"last")
    job.run_until(lambda: ledger.wait_for(lambda: values()[b"last"] == 10, 60))
    assert values() == {b"first": 10, b"second": 10, b"later": 10, b"last": 10}
    # The ledger waits for the lost ones.
    ledger.close()


def _recreate(application: Application) -> None:
    """Delete the input topic, and create it with the same number of partitions."""
    admin = AdminClient({"bootstrap.servers": application.bootstrap})
    admin.delete_topics([application.input])[application.input].result()
    assert_eventually(lambda: application.input not in admin.list_topics(timeout=10).topics)
    admin.create_topics([NewTopic(application.input, 2, 1)])[application.input].result()


def _publish(application: Application, value: bytes, count: int, headers: list[Header] | None = None) -> None:
    """Publish to both partitions in turn, without the ledger, which would take two records with one id for one."""
    producer = Producer({"bootstrap.servers": application.bootstrap})
    for number in range(count):
        producer.produce(application.input, value, partition=number % 2, headers=[*(headers or [])])
    assert producer.flush(30) == 0
