"""Following the messages that release processes have recalled, and forgetting them, with a real broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from conf.errors import BrokerUnreachable, FormatMismatch
from conf.sections import CancelSettings
from conf.setting_types import DAY, MINUTE
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
from streaming.job.requests import recalled, recalled_log
from streaming.job.requests.recalled import RecalledMessages
from streaming.job.requests.recalled_rows import Limits
from streaming.job.requests.runs import Runs
from streaming.local.broker import EmbeddedBroker
from tests.conftest import MakeSettings
from tests.eventually import assert_eventually
from tests.quick_java import quick_broker

NOW_MS = time.time_ns() // 1_000_000
# All messages that are recalled here were due before this, unless a test says otherwise.
DUE_MS = NOW_MS - MINUTE
ALL = range(20)
EPOCH = 3


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("pyspark.SparkFiles.getRootDirectory", lambda: str(tmp_path))


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    made = make_settings("bucket.shards=3")
    ensure_topics(made, 1)
    return made


@pytest.fixture
def reader(settings: Settings) -> Iterator[RecalledMessages]:
    with closing(RecalledMessages(settings, EPOCH)) as made:
        yield made


def recall(
    broker: EmbeddedBroker,
    settings: Settings,
    *offsets: int,
    shard: int = 0,
    due_ms: int = DUE_MS,
    epoch: int = EPOCH,
) -> None:
    """Write the records of a release process."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    ids = ids_of((settings.topics.input[0], 0, each) for each in offsets)
    for key, value in recall_records(ids, Recall(due_ms, epoch)):
        producer.produce(settings.recalled_topic, value, key, partition_of_shard(shard))
    assert producer.flush(30) == 0


def publish(broker: EmbeddedBroker, settings: Settings, *minutes_ago: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for each in minutes_ago:
        producer.produce(settings.topics.input[0], b"x", partition=0, timestamp=NOW_MS - each * MINUTE)
    assert producer.flush(30) == 0


def known(reader: RecalledMessages, settings: Settings) -> list[int]:
    found = reader.among(ids_of((settings.topics.input[0], 0, each) for each in ALL))
    return [offset for own in found.values() for offset in own.tolist()]


def read(reader: RecalledMessages, settings: Settings) -> list[int]:
    reader.read(NOW_MS)
    return known(reader, settings)


def known_from(reader: RecalledMessages, settings: Settings) -> int:
    assert reader.known_from.keys() == {(settings.topics.input[0], 0)}
    return reader.known_from[settings.topics.input[0], 0]


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


def test_old_records_are_deleted_in_pieces(broker: EmbeddedBroker, make_settings: MakeSettings) -> None:
    settings = make_settings("cancels.known_for=2d")
    ensure_topics(settings, 1)
    publish(broker, settings, *[60 * 60] * 5, 0)
    recall(broker, settings, *range(6))
    with closing(RecalledMessages(settings, EPOCH, limits=Limits(written=2))) as reader:
        # The bounds are already known when it is opened, and nothing else moves them.
        assert read(reader, settings) == [0, 1, 2, 3, 4, 5]
        assert known_from(reader, settings) == 5
        reader.forget(NOW_MS, NOW_MS)
        assert known(reader, settings) == [5]
    with closing(RecalledMessages(settings, EPOCH)) as other:
        assert read(other, settings) == [5]


def test_what_is_old_is_forgotten_and_no_later_process_takes_it_for_known(
    broker: EmbeddedBroker, make_settings: MakeSettings
) -> None:
    settings = make_settings("cancels.known_for=2d")
    ensure_topics(settings, 1)
    publish(broker, settings, 60 * 60, 50 * 60, 40 * 60, 0)
    recall(broker, settings, 0, 2)
    recall(broker, settings, 1, due_ms=NOW_MS + MINUTE)
    with closing(RecalledMessages(settings, EPOCH)) as reader:
        assert read(reader, settings) == [0, 1, 2]
        assert known_from(reader, settings) == 2
        # One of the two old messages still has its name.
        reader.forget(NOW_MS + MINUTE, NOW_MS)
        assert known(reader, settings) == [1, 2]
        publish(broker, settings, 0)
        reader.forget(NOW_MS + 12 * 60 * MINUTE, NOW_MS)
        assert known(reader, settings) == [1]
        assert known_from(reader, settings) == 3
    # A later process may know messages for longer than the process before, or for less long.
    for days in (3, 1):
        own = settings.model_copy(update={"cancels": CancelSettings(known_for=days * DAY)})
        with closing(RecalledMessages(own, EPOCH)) as other:
            assert read(other, own) == [1]
            assert known_from(other, own) == 3


def test_the_bounds_grow_with_the_cutoff_and_never_go_back(
    broker: EmbeddedBroker, settings: Settings, reader: RecalledMessages, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    source = (settings.topics.input[0], 0)
    # The first time also when it is opened.
    ends = iter([4, 4, 3, 5])

    def offsets_at(_: Settings, instant_ms: int) -> dict[tuple[str, int], int]:
        asked.append(instant_ms)
        return {source: next(ends)}

    monkeypatch.setattr(recalled, "input_offsets_at", offsets_at)
    found = []
    for cutoff_ms in (1_500, 1_700, 1_900):
        reader.forget(cutoff_ms, 0)
        found.append(reader.known_from[source])
    assert [instant_ms + settings.cancels.known_for for instant_ms in asked] == [1_500, 1_500, 1_700, 1_900]
    assert found == [4, 4, 5]


def test_a_process_that_was_paused_does_not_take_back_the_bounds_of_its_successor(
    broker: EmbeddedBroker, make_settings: MakeSettings
) -> None:
    settings = make_settings("cancels.known_for=2d")
    ensure_topics(settings, 1)
    publish(broker, settings, 40 * 60, 30 * 60, 0)
    with closing(RecalledMessages(settings, EPOCH)) as paused, closing(RecalledMessages(settings, EPOCH)) as successor:
        assert read(paused, settings) == []
        successor.read(NOW_MS + DAY)
        assert known_from(successor, settings) == 2
        paused.forget(NOW_MS + DAY // 2, 0)
        assert known_from(paused, settings) == 2
    with closing(RecalledMessages(settings, EPOCH)) as last:
        read(last, settings)
        assert known_from(last, settings) == 2


def unreachable(*_: object) -> Any:
    raise BrokerUnreachable("nobody answers")


def make_anew(broker: EmbeddedBroker, settings: Settings, topic: str | None = None) -> None:
    """Delete a topic, the recalled topic by default, and create it again."""
    admin, topic = AdminClient({"bootstrap.servers": broker.bootstrap}), topic or settings.recalled_topic
    admin.delete_topics([topic])[topic].result()
    assert_eventually(lambda: topic not in admin.list_topics(timeout=10).topics)
    ensure_topics(settings, 1)


@pytest.mark.parametrize("cut_off_at", [None, "delete", "move"])
def test_what_was_recalled_of_an_input_topic_says_nothing_of_one_that_was_created_again(
    broker: EmbeddedBroker, settings: Settings, monkeypatch: pytest.MonkeyPatch, cut_off_at: str | None
) -> None:
    recall(broker, settings, 1, 2)
    with closing(RecalledMessages(settings, EPOCH)) as before:
        assert read(before, settings) == [1, 2]
    make_anew(broker, settings, settings.topics.input[0])
    # Meanwhile another topic is the input.
    others = settings.topics.model_copy(update={"input": (settings.topics.output,)})
    with closing(RecalledMessages(settings.model_copy(update={"topics": others}), EPOCH, has_run=True)) as meanwhile:
        meanwhile.read(NOW_MS)
    if cut_off_at:
        with monkeypatch.context() as patch, closing(RecalledMessages(settings, EPOCH, has_run=True)) as first:
            patch.setattr(recalled.RecalledWriter, cut_off_at, unreachable)
            first.forget(NOW_MS, NOW_MS)
    with closing(RecalledMessages(settings, EPOCH, has_run=True)) as after:
        assert_eventually(lambda: read(after, settings) == [])
        recall(broker, settings, 2)
        assert read(after, settings) == [2]
    with closing(RecalledMessages(settings, EPOCH, has_run=True)) as later:
        assert read(later, settings) == [2]


@pytest.mark.parametrize("is_running", [True, False], ids=["while a process runs", "between two"])
def test_if_the_topic_is_lost_nothing_that_was_published_before_is_taken_for_known(
    broker: EmbeddedBroker, settings: Settings, caplog: pytest.LogCaptureFixture, is_running: bool
) -> None:
    publish(broker, settings, 0, 0)
    first = RecalledMessages(settings, EPOCH)
    recall(broker, settings, 1)
    assert read(first, settings) == [1]
    assert known_from(first, settings) == 0
    make_anew(broker, settings)
    recall(broker, settings, 4)
    reader = first if is_running else RecalledMessages(settings, EPOCH, has_run=True)
    # A client may not know the new topic at once.
    assert_eventually(lambda: 4 in read(reader, settings))
    assert known_from(reader, settings) == 2
    assert "is new, or has lost records" in caplog.text
    publish(broker, settings, 0)
    with closing(RecalledMessages(settings, EPOCH, has_run=True)) as other:
        assert read(other, settings) == [4]
        assert known_from(other, settings) == 2, "it is lost once"
    for each in {first, reader}:
        each.close()


def test_the_first_process_of_an_application_knows_all_that_is_young_enough(
    broker: EmbeddedBroker, settings: Settings, reader: RecalledMessages
) -> None:
    publish(broker, settings, 32 * 24 * 60, 0, 0)
    assert read(reader, settings) == []
    assert known_from(reader, settings) == 1


def test_in_an_outage_nothing_is_forgotten_and_the_next_call_goes_on(
    broker: EmbeddedBroker,
    settings: Settings,
    reader: RecalledMessages,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    recall(broker, settings, 1)
    with monkeypatch.context() as patch:
        patch.setattr(recalled, "input_offsets_at", unreachable)
        reader.forget(NOW_MS, NOW_MS)
    assert "could not be read ahead: broker-unreachable: nobody answers" in caplog.text
    assert reader.known_from == {}
    assert read(reader, settings) == [1]


def test_an_outage_that_lasts_too_long_ends_the_batch_that_must_know(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings("kafka.outage_limit=1s")
    ensure_topics(settings, 1)
    monkeypatch.setattr(recalled, "input_offsets_at", unreachable)
    with (
        closing(RecalledMessages(settings, EPOCH)) as reader,
        pytest.raises(BrokerUnreachable, match=r"the recalled topic: .*outage_limit.*nobody answers"),
    ):
        reader.read(NOW_MS)


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
