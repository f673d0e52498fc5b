"""A ready log that lost records, is damaged, or has records of other writers, against a real broker."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import cast

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from conf.errors import CheckpointMismatch, DelaylineError, ReadyLogLost
from sinks.internal_topics.position import Log, position_key, topics_of
from sinks.ready_log.chunk import RecordHeaders, chunk_record
from sinks.release.log_end import unreleased
from tests.eventually import assert_eventually
from tests.sinks.release.bench import ReleaseBench, allow_pending, due_at, released_ids
from tests.sinks.release.conftest import HostClock
from tests.sinks.release.topic_records import create_topics

_HOUR_MS = 3_600_000


def _again(bench: ReleaseBench, topic: str) -> None:
    """Delete `topic`, and create another one of the same name."""
    client = AdminClient(dict(bench.options))
    client.delete_topics([topic])[topic].result()
    assert_eventually(lambda: topic not in client.list_topics(timeout=10).topics)
    create_topics(bench.broker, NewTopic(topic, 1, 1))


def _delete(bench: ReleaseBench, end: int, log: Log = Log.READY) -> None:
    """Delete the records of `log` before offset `end`."""
    client = AdminClient(dict(bench.options))
    for answer in client.delete_records([TopicPartition(topics_of(bench.settings)[log], 0, end)]).values():
        answer.result()


def _produce(bench: ReleaseBench, topic: str, value: bytes, headers: RecordHeaders | None = None) -> None:
    producer = Producer(dict(bench.options))
    producer.produce(topic, value, position_key(0), 0, headers=headers)
    assert producer.flush(60) == 0


def _another_topic(bench: ReleaseBench) -> None:
    _again(bench, bench.settings.ready_topic)


def _gone_records(bench: ReleaseBench) -> None:
    bench.stage(due_at(bench, [1], first=10), due_at(bench, [1], first=11))
    _delete(bench, bench.ends[Log.READY] - 1)


def _gone_near_records(bench: ReleaseBench) -> None:
    bench.stage(due_at(bench, [1], first=10), log=Log.NEAR)
    _delete(bench, 1, Log.NEAR)


def _both_lost(bench: ReleaseBench) -> None:
    _gone_near_records(bench)
    _gone_records(bench)


def _gone_end(bench: ReleaseBench) -> None:
    position = bench.position
    assert position is not None
    beyond = position.taken_in_to(Log.READY, 100)
    _produce(bench, bench.settings.position_topic, beyond.to_bytes())


def _damaged_summary(bench: ReleaseBench) -> None:
    _produce(bench, bench.settings.ready_topic, b"{}", [("delayline-chunk", b"{}")])


def _damaged_chunk(bench: ReleaseBench) -> None:
    _, headers = chunk_record(due_at(bench, [1], first=1))
    _produce(bench, bench.settings.ready_topic, b"{}", headers)


def _foreign_position(bench: ReleaseBench) -> None:
    _produce(bench, bench.settings.position_topic, b"{}")


@pytest.mark.parametrize(
    ("harm", "error", "text"),
    [
        (_another_topic, ReadyLogLost, r"/0 is not the topic \(\S+\) that was released before\."),
        (_gone_records, ReadyLogLost, r"/0 begins at offset 2, but is released only up to 1\."),
        (_gone_near_records, ReadyLogLost, r"-near/0 begins at offset 1, but is released only up to 0\."),
        (_both_lost, ReadyLogLost, r"-ready/0 begins at offset 2, .* 1; \S+-near/0 begins at offset 1, .* 0\."),
        (_gone_end, ReadyLogLost, r"/0 ends at offset 1, but was already read up to 100\."),
        (_damaged_summary, ReadyLogLost, r"/0 at offset 1 is not a chunk .* no format number.* repair --ready-log"),
        (_damaged_chunk, ReadyLogLost, r"the ready log at offset 1 is not a chunk .* repair --ready-log"),
        (_foreign_position, CheckpointMismatch, r"which is not a position of this Delayline version"),
    ],
)
def test_a_ready_log_that_does_not_fit_its_position_is_not_released(
    bench: ReleaseBench, harm: Callable[[ReleaseBench], None], error: type[DelaylineError], text: str
) -> None:
    assert bench.release(due_at(bench, [1])) == 1
    harm(bench)
    bench.ends[Log.READY] = 100
    release = bench.start()
    assert release.ended.wait(60)
    assert isinstance(release.error, error)
    release_error = str(release.error)
    assert re.search(text, release_error)
    assert released_ids(bench) == [0]


def test_records_of_other_writers_are_ignored_by_name_and_all_chunks_around_them_are_released(
    bench: ReleaseBench, caplog: pytest.LogCaptureFixture
) -> None:
    settings = bench.settings
    for number, log in enumerate(Log):
        bench.stage(due_at(bench, [1], first=2 * number), log=log)
        foreign: list[RecordHeaders | None] = [None, [("trace", b"1")]]
        for headers in foreign:
            _produce(bench, topics_of(settings)[log], b"{}", headers)
        bench.stage(due_at(bench, [1], first=2 * number + 1), log=log)
        _produce(bench, topics_of(settings)[log], b"{}")
        # The position goes on to the end of the log, behind the last one.
        bench.ends[log] += 1
    assert bench.release() == 4
    assert sorted(released_ids(bench)) == [0, 1, 2, 3]
    assert unreleased(settings, bench.options, [0]) == []
    warnings = [record for record in caplog.records if "did not write" in record.getMessage()]
    assert re.search(r"beginning with \S+-(ready|near)/0 at offset 1\. ", warnings[0].getMessage())
    assert sum(cast(tuple[int, str], record.args)[0] for record in warnings) == 6


def test_a_ready_log_whose_records_are_deleted_before_they_are_read_again_is_lost(
    bench: ReleaseBench, clock: HostClock
) -> None:
    later = clock.now_ms() + _HOUR_MS
    bench.stage(due_at(bench, [later]), due_at(bench, [later + 1], first=1), due_at(bench, [1], first=2))
    release = allow_pending(bench.prepare(), 0)
    release.start()
    assert_eventually(lambda: bench.released == 1, 60)
    _delete(bench, 3)
    clock.ahead_ms = 2 * _HOUR_MS
    assert release.ended.wait(60)
    assert isinstance(release.error, ReadyLogLost)
    assert released_ids(bench) == [2]
