"""Following the messages that release processes have recalled, with a real broker."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from conf.errors import FormatMismatch
from conf.settings import Settings
from sinks.internal_topics.recalled_writer import RecalledWriter
from sinks.topics.topics import ensure_topics
from state.message_ids import ids_of
from state.recalled import (
    KNOWN_FROM_KEY,
    KNOWN_FROM_PARTITION,
    KnownFrom,
    Recall,
    known_from_record,
    partition_of_shard,
    recall_records,
)
from streaming.job.requests import recalled_log
from streaming.job.requests.recalled import RecalledMessages
from streaming.job.requests.recalled_rows import Limits
from streaming.job.requests.runs import Runs
from streaming.local.broker import EmbeddedBroker
from tests.conftest import MakeSettings
from tests.quick_java import quick_broker
from tests.streaming.job.requests.recalled_topic import DUE_MS, EPOCH, NOW_MS, known, known_from, publish, read, recall

pytestmark = pytest.mark.usefixtures("own_folder")


def test_what_any_shard_has_recalled_is_known_to_this_process_and_to_later_ones(
    broker: EmbeddedBroker, settings: Settings, reader: RecalledMessages
) -> None:
    assert read(reader, settings) == []
    recall(broker, settings, 3, 1)
    recall(broker, settings, 2, shard=2)
    assert known(reader, settings) == []
    assert read(reader, settings) == [1, 2, 3]
    assert read(reader, settings) == [1, 2, 3]
    recall(broker, settings, 4)
    with closing(RecalledMessages(settings, EPOCH)) as other:
        assert read(other, settings) == [1, 2, 3, 4]


def test_what_is_read_is_kept_in_pieces(broker: EmbeddedBroker, settings: Settings) -> None:
    recall(broker, settings, *range(10))
    with closing(RecalledMessages(settings, EPOCH, limits=Limits(found=2))) as reader:
        assert read(reader, settings) == list(range(10))


@pytest.mark.parametrize(("most_found", "most_deleted"), [(0, 0), (0, 100), (100, 0), (100, 100)])
def test_a_record_that_was_deleted_after_it_was_read_is_not_known(
    broker: EmbeddedBroker, settings: Settings, most_found: int, most_deleted: int
) -> None:
    limits, source = Limits(found=most_found, deleted=most_deleted), (settings.topics.input[0], 0)
    recall(broker, settings, 1, 2, 3)
    recall(broker, settings, 4, shard=1)
    reader = RecalledMessages(settings, EPOCH, limits=limits)
    assert read(reader, settings) == [1, 2, 3, 4]
    with closing(RecalledWriter(settings)) as writer:
        # A deletion for another epoch or another shard does not count.
        others = [(partition_of_shard(0), EPOCH - 1, (*source, 1)), (partition_of_shard(0), EPOCH, (*source, 4))]
        writer.delete([*others, *((partition_of_shard(0), EPOCH, (*source, each)) for each in (2, 3))])
    recall(broker, settings, 3)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(settings.recalled_topic, None, b"of somebody else", partition_of_shard(0))
    assert producer.flush(30) == 0
    with closing(reader), closing(RecalledMessages(settings, EPOCH, limits=limits)) as other:
        for each in (reader, other):
            assert read(each, settings) == [1, 3, 4]
            assert {offset for _, offsets in each.every() for offset in offsets} == {1, 3, 4}


def test_the_runs_are_written_once_however_many_records_with_deletions_are_read(
    broker: EmbeddedBroker, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = settings.topics.input[0], 0
    recall(broker, settings, 19)
    with closing(RecalledWriter(settings)) as writer:
        for first in (0, 6, 12):
            recall(broker, settings, *range(first, first + 6))
            writer.delete((partition_of_shard(0), EPOCH, (*source, offset)) for offset in range(first, first + 5))
    written: list[Runs[Any]] = []
    forget = Runs.forget

    def counted(runs: Runs[Any], *arguments: Any) -> None:
        written.append(runs)
        forget(runs, *arguments)

    monkeypatch.setattr(Runs, "forget", counted)
    with closing(RecalledMessages(settings, EPOCH, limits=Limits(found=2))) as reader:
        assert read(reader, settings) == [5, 11, 17, 19]
    assert len(written) == 1


def write(broker: EmbeddedBroker, settings: Settings, key: bytes, value: bytes, partition: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(settings.recalled_topic, value, key, partition)
    assert producer.flush(30) == 0


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"k", None), (b"3:in/0/2", b"[]"), (b"\xff", None), (b"3:in/0/2", b"\xff"), (b"3:in/0/2", b"[" * 200_000)],
    ids=["no id", "no record", "no text", "no JSON", "lists in lists"],
)
def test_a_record_of_another_writer_is_ignored(
    broker: EmbeddedBroker,
    settings: Settings,
    reader: RecalledMessages,
    caplog: pytest.LogCaptureFixture,
    key: bytes,
    value: bytes | None,
) -> None:
    ((_, own_value),) = recall_records(ids_of([("in", 0, 1)]), Recall(DUE_MS, EPOCH))
    recall(broker, settings, 1)
    for _ in range(2):
        write(broker, settings, key, value or own_value, partition_of_shard(0))
    recall(broker, settings, 3)
    assert read(reader, settings) == [1, 3]
    place = f"{settings.recalled_topic}/{partition_of_shard(0)} at offset 1"
    assert f"ignoring 2 records that Delayline did not write, beginning with {place}." in caplog.text


def test_a_record_of_another_writer_hides_no_bounds(
    broker: EmbeddedBroker, settings: Settings, reader: RecalledMessages, caplog: pytest.LogCaptureFixture
) -> None:
    publish(broker, settings, 32 * 24 * 60, 0)
    assert read(reader, settings) == []
    write(broker, settings, b"k", b"of another writer", KNOWN_FROM_PARTITION)
    with closing(RecalledMessages(settings, EPOCH, has_run=True)) as other:
        assert read(other, settings) == []
        assert known_from(other, settings) == 1
    assert "is new, or has lost records" not in caplog.text
    assert f"ignoring a record that Delayline did not write, {settings.recalled_topic}/0 at offset" in caplog.text


@pytest.mark.parametrize("partition", [KNOWN_FROM_PARTITION, partition_of_shard(0)])
def test_a_record_of_a_newer_version_ends_the_job(
    broker: EmbeddedBroker, settings: Settings, reader: RecalledMessages, partition: int
) -> None:
    write(broker, settings, b"3:in/0/2", b'{"format": 2}', partition)
    with pytest.raises(FormatMismatch, match="recalled topic"):
        reader.read(NOW_MS)


def test_bounds_of_another_version_before_the_newest_ones_do_not_matter(
    broker: EmbeddedBroker, settings: Settings, reader: RecalledMessages
) -> None:
    newest = KnownFrom({}, {}, EPOCH)
    # They have one key, but compaction has not removed the first record yet.
    for value in (b'{"format": 2}', known_from_record(newest)):
        write(broker, settings, KNOWN_FROM_KEY, value, KNOWN_FROM_PARTITION)
    with closing(RecalledWriter(settings)) as writer:
        assert writer.known_from == newest
    assert read(reader, settings) == []


def test_what_was_recalled_in_another_epoch_is_not_known_and_its_deletion_deletes_no_other(
    broker: EmbeddedBroker, settings: Settings, reader: RecalledMessages
) -> None:
    publish(broker, settings, *[60 * 24 * 60] * 3, 0)
    for epoch, offsets in ((EPOCH - 1, (1, 2)), (EPOCH, (1, 3)), (EPOCH + 1, (1, 4))):
        recall(broker, settings, *offsets, epoch=epoch)
    assert read(reader, settings) == [1, 3]
    reader.forget(NOW_MS, NOW_MS)
    assert known(reader, settings) == [3]
    # No request of an earlier epoch comes any more.
    for epoch, left in ((EPOCH - 1, []), (EPOCH, [3]), (EPOCH + 1, [1, 4])):
        with closing(RecalledMessages(settings, epoch)) as other:
            assert read(other, settings) == left


@pytest.mark.thorough
def test_it_reads_on_as_soon_as_a_broker_is_back(make_settings: MakeSettings, tmp_path: Path) -> None:
    # Clients keep the epoch of a partition's leader, which changes with each start of the broker.
    with quick_broker(tmp_path / "broker") as broker:
        settings = make_settings(f"kafka.bootstrap_servers={broker.bootstrap}", "kafka.outage_limit=20s")
        ensure_topics(settings, 3)
        reader = RecalledMessages(settings, EPOCH)
        for number in range(2):
            recall(broker, settings, number)
            assert read(reader, settings) == list(range(number + 1))
            broker.kill()
            broker.start()
        reader.close()


@pytest.mark.parametrize(
    "code",
    [
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._DESTROY_BROKER,
        KafkaError._TRANSPORT,
        KafkaError.FENCED_LEADER_EPOCH,
    ],
)
def test_a_broker_that_starts_is_waited_for(
    broker: EmbeddedBroker,
    settings: Settings,
    reader: RecalledMessages,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
) -> None:
    # The client's errors about a broker that ends or starts depend on the moment.
    recall(broker, settings, 3)
    problems = [KafkaException(KafkaError(code))]

    class Restarting(Consumer):
        def offsets_for_times(self, *arguments: Any) -> Any:
            if problems:
                raise problems.pop()
            return super().offsets_for_times(*arguments)

    monkeypatch.setattr(recalled_log, "Consumer", Restarting)
    assert read(reader, settings) == [3]
    assert problems == []


def test_what_lies_behind_an_open_transaction_may_be_missing(
    broker: EmbeddedBroker, settings: Settings, reader: RecalledMessages
) -> None:
    assert (read(reader, settings), reader.knows_all) == ([], True)
    stuck = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "stuck"})
    stuck.init_transactions(30)
    stuck.begin_transaction()
    stuck.produce(settings.recalled_topic, b"{}", b"k", partition=partition_of_shard(1))
    assert stuck.flush(30) == 0
    recall(broker, settings, 3, shard=1)
    assert (read(reader, settings), reader.knows_all) == ([], False)
    stuck.abort_transaction(30)
    assert (read(reader, settings), reader.knows_all) == ([3], True)
