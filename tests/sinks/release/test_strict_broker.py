"""A strict broker: it grants few permissions, and allows only transactions shorter than the default."""

from __future__ import annotations

import time
from functools import partial
from typing import cast

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AclOperation, NewTopic, ResourceType

from conf.errors import RightMissing
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.internal_topics.newest_record import _last_value, newest_value
from sinks.internal_topics.progress import announce_origin, read_progress
from sinks.ready_log.writer import fence_writers
from sinks.release.ring import PRODUCERS, ring_id
from sinks.release.waits import Waits
from sinks.topics.input_ends import input_retentions
from sinks.topics.partitions import offered_topics, partition_counts
from sinks.topics.roles import needed_topics
from sinks.topics.topics import check_topics, ensure_topics, show_topics
from state.checkpoint.origin import CheckpointOrigin
from streaming.local.broker import EmbeddedBroker
from tests.eventually import assert_eventually
from tests.messages import messages
from tests.sinks.release.bench import ReleaseBench
from tests.sinks.release.topic_records import create_topics
from tests.sinks.release.topic_records import ids as offsets
from tests.strict_broker import Allow
from tests.thorough import some_thorough

_SEE = (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.READ)
# All permissions on a topic except to see its configuration.
_USE = (AclOperation.DESCRIBE, AclOperation.READ, AclOperation.WRITE)


@pytest.mark.thorough
def test_a_topic_that_may_not_be_described_is_named_with_the_permission_and_not_reported_as_missing(
    guest: Settings, allow: Allow
) -> None:
    lease = guest.lease_topic
    others = [topic for topic in needed_topics(guest) if topic != lease]
    allow(others, *_USE, AclOperation.DESCRIBE_CONFIGS)
    for command in (show_topics, check_topics, ensure_topics):
        with pytest.raises(RightMissing, match=rf"hides whether {lease} exists\. .* Describe there"):
            command(guest)
    allow([lease], AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
    assert {report.state for report in show_topics(guest)} == {"exists"}
    check_topics(guest)


def test_a_configuration_that_may_not_be_described_is_named_with_the_permission(guest: Settings, allow: Allow) -> None:
    allow(list(needed_topics(guest)), *_USE)
    for command in (check_topics, ensure_topics):
        with pytest.raises(RightMissing, match=rf"policy of {guest.progress_topic}\. .* DescribeConfigs there"):
            command(guest)
    # The topics with a partition for each shard are checked first.
    sharded = {*guest.own_topics} - {guest.lease_topic}
    allow([*sharded], AclOperation.DESCRIBE_CONFIGS)
    with pytest.raises(RightMissing, match=rf"of {guest.lease_topic}\. .* DescribeConfigs there"):
        check_topics(guest)
    with pytest.raises(RightMissing, match=rf"retention\.ms, .* of {guest.topics.input[0]}\. .* DescribeConfigs there"):
        input_retentions(guest)


def test_a_topic_that_the_job_may_not_write_to_is_not_offered_to_publishers(
    strict: EmbeddedBroker, guest: Settings, allow: Allow, caplog: pytest.LogCaptureFixture
) -> None:
    allow(list(needed_topics(guest)), AclOperation.DESCRIBE)
    barred, hidden, open_to_all = sides = [f"{guest.application_id}-side-{n}" for n in range(3)]
    create_topics(strict, *(NewTopic(side, 1, 1) for side in sides))
    allow([barred], AclOperation.DESCRIBE)
    allow([open_to_all], AclOperation.WRITE)
    for allowed in (sides, [f"{guest.application_id}-*"]):
        settings = guest.model_copy(
            update={"topics": guest.topics.model_copy(update={"allowed_outputs": tuple(allowed)})}
        )
        # The output topic is an operator's: without the right to write to it the job ends.
        offered = {guest.topics.output, guest.topics.dead_letter, guest.results_topic, open_to_all}
        assert offered_topics(settings).keys() == offered
        assert f"may not write to {barred}. Messages" in caplog.text
        assert hidden not in partition_counts(settings, sides)
        # Another login writes then.
        apart = settings.model_copy(update={"release": settings.release.model_copy(update={"processes": 0})})
        assert offered_topics(apart).keys() == offered | {barred}
        assert partition_counts(settings).keys() == offered | {barred}


def test_the_newest_record_is_read_without_permission_on_a_group(
    owner: Settings, guest: Settings, allow: Allow
) -> None:
    topic = owner.progress_topic
    allow([topic], AclOperation.READ)
    producer = Producer(librdkafka_options(owner.kafka))
    for n in range(1_000):
        producer.produce(topic, b"%d" % n, b"k", 0)
    assert producer.flush(10) == 0
    assert newest_value(librdkafka_options(guest.kafka), topic, 0) == b"999"


class _Polled:
    """The result of a consumer's `poll`: a record's value, or an error. The partition ends at offset 9."""

    def __init__(self, value: bytes | None, code: int | None) -> None:
        self._value, self._error = value, None if code is None else KafkaError(code)

    def value(self) -> bytes | None:
        return self._value

    def offset(self) -> int:
        return 9

    def error(self) -> KafkaError | None:
        return self._error


def test_a_refused_group_between_two_records_is_ignored() -> None:
    # The broker may send this error at any time; mostly it follows the records.
    polled = iter([_Polled(b"1", None), _Polled(None, KafkaError.GROUP_AUTHORIZATION_FAILED), _Polled(b"2", None),
                 _Polled(None, KafkaError._PARTITION_EOF)])  # fmt: skip

    class Reader:
        def assign(self, partitions: list[TopicPartition]) -> None:
            assert partitions == [TopicPartition("t", 0, 7)]

        def poll(self, timeout_s: float) -> _Polled:
            return next(polled)

    assert _last_value(cast(Consumer, Reader()), TopicPartition("t", 0, 7), 9, time.monotonic() + 10) == b"2"


@pytest.mark.parametrize("barred", some_thorough(["output", "dead_letter", "position"], always=["output"]))
def test_a_topic_without_write_permission_is_named_and_messages_are_released_once_it_is_granted(
    strict: EmbeddedBroker, owner: Settings, guest: Settings, allow: Allow, barred: str
) -> None:
    topics = {role: getattr(owner.topics, role) for role in ("output", "dead_letter")}
    topics["position"] = owner.position_topic
    allow([*topics.values(), owner.ready_topic, owner.near_topic], *_SEE)
    allow([topic for role, topic in topics.items() if role != barred], AclOperation.WRITE)
    ids = [ring_id(owner.application_id, 0, number) for number in range(PRODUCERS)]
    allow(ids, AclOperation.WRITE, kind=ResourceType.TRANSACTIONAL_ID)
    bench = ReleaseBench(strict, guest)
    rows = [
        {"output_topic": topics["output"]},
        {"output_topic": topics["dead_letter"], "error_code": "bad", "offset": 1},
    ]
    bench.stage(messages({"error_text": "bad", **row} for row in rows))
    for _ in range(2):
        with pytest.raises(RightMissing, match=rf"lacks the right Write on {topics[barred]}\b"):
            bench.release()
    allow([topics[barred]], AclOperation.WRITE)
    assert bench.release() == 2


# Without Describe the broker does not even say that the topic exists.
@pytest.mark.parametrize("granted", [[AclOperation.WRITE], [AclOperation.WRITE, AclOperation.DESCRIBE]])
def test_a_topic_that_a_publisher_named_without_write_permission_stops_nothing_and_gets_messages_once_it_is_granted(
    strict: EmbeddedBroker,
    owner: Settings,
    guest: Settings,
    allow: Allow,
    revoke: Allow,
    caplog: pytest.LogCaptureFixture,
    granted: list[AclOperation],
) -> None:
    side, output = f"{owner.application_id}-side", owner.topics.output
    create_topics(strict, NewTopic(side, 1, 1))
    topics = [output, owner.topics.dead_letter, owner.position_topic]
    allow([*topics, owner.ready_topic, owner.near_topic], *_SEE)
    allow(topics, AclOperation.WRITE)
    allow([side], *granted)
    ids = [ring_id(owner.application_id, 0, number) for number in range(PRODUCERS)]
    allow(ids, AclOperation.WRITE, kind=ResourceType.TRANSACTIONAL_ID)
    bench = ReleaseBench(strict, guest, waits=Waits(confirm=0.5, look_again=0.0))

    def due(first: int) -> pa.Table:
        return messages({"offset": first + n, "output_topic": [output, side][n % 2]} for n in range(6))

    release = bench.start()
    bench.stage(due(0))
    bench.wait(release)
    revoke([side], AclOperation.WRITE)
    for first in (10, 20):
        bench.stage(due(first))
        bench.wait(release)
    assert offsets(bench.read(output)) == [0, 2, 4, 10, 12, 14, 20, 22, 24]
    letters = bench.read(bench.dead_letter)
    assert sorted(offsets(letters)) == [11, 13, 15, 21, 23, 25]
    assert {dict(letter.headers() or [])["delayline-error"] for letter in letters} == {b"topic-closed"}
    assert caplog.text.count(f"messages for {side} become dead letters: topic-closed") == 1
    allow([side], AclOperation.WRITE)
    bench.stage(due(30))
    bench.wait(release)
    assert offsets(bench.read(side)) == [1, 3, 5, 31, 33, 35]
    bench.stop(release)


def test_a_dead_letter_topic_without_write_permission_is_named_when_a_message_is_redirected_to_it(
    strict: EmbeddedBroker, owner: Settings, guest: Settings, allow: Allow
) -> None:
    topics = [owner.topics.output, owner.position_topic]
    allow([*topics, owner.ready_topic, owner.near_topic, owner.topics.dead_letter], *_SEE)
    allow(topics, AclOperation.WRITE)
    ids = [ring_id(owner.application_id, 0, number) for number in range(PRODUCERS)]
    allow(ids, AclOperation.WRITE, kind=ResourceType.TRANSACTIONAL_ID)
    large = messages([{"output_topic": owner.topics.output, "value": b"x" * 1_049_000}])
    with pytest.raises(RightMissing, match=rf"lacks the right Write on {owner.topics.dead_letter}\b"):
        ReleaseBench(strict, guest).release(large)


def test_writers_are_fenced_and_an_origin_is_announced_where_only_short_transactions_are_allowed(
    owner: Settings,
) -> None:
    origin = CheckpointOrigin("c", 1, owner.bucket.shards)
    fence_writers(owner, origin.shards)
    announce_origin(owner, origin)
    options = librdkafka_options(owner.kafka)
    for shard in range(origin.shards):
        # A committed record can be read a moment later.
        marker = assert_eventually(partial(read_progress, options, owner.progress_topic, shard))
        assert marker is not None
        assert marker.batch.origin == origin
