"""The form of internal topics on a real broker: partitions for the shards, and no deletion but by the service."""

from __future__ import annotations

import pytest
from kafka.admin import ConfigResource, KafkaAdminClient

from conf.errors import TopicMismatch, TopicMissing
from conf.settings import Settings
from sinks.topics.topics import check_topics, ensure_shards, ensure_topics, show_topics
from tests.conftest import Configure, MakeSettings
from tests.eventually import assert_eventually


def test_internal_topics_are_created_in_the_form_that_the_job_needs(
    settings: Settings, admin: KafkaAdminClient
) -> None:
    ensure_topics(settings)
    keys = ["cleanup.policy", "retention.ms", "retention.bytes", "max.message.bytes"]
    topics = (settings.ready_topic, settings.claims_topic, settings.progress_topic, settings.position_topic)
    ready, claims, *others = (_configs(admin, topic, keys) for topic in topics)
    # Only Delayline deletes their records, and a chunk or the terms may be as large as a request.
    assert [*ready.values()] == [*claims.values()] == ["delete", "-1", "-1", "100000000"]
    assert [other["cleanup.policy"] for other in others] == ["compact", "compact"]


def _make_internal(admin: KafkaAdminClient, settings: Settings, role: str, partitions: int, **configs: str) -> str:
    name: str = getattr(settings, f"{role}_topic")
    topic = {"num_partitions": partitions, "replication_factor": 1, "configs": configs}
    admin.create_topics({name: topic}, wait_for_metadata=True)
    return name


def _configs(admin: KafkaAdminClient, topic: str, keys: list[str]) -> dict[str, str]:
    described = admin.describe_configs([ConfigResource("TOPIC", topic, keys)], config_filter="all")["topic"][topic]
    return {key: described[key]["value"] for key in keys}


@pytest.mark.parametrize(("role", "policy"), [("progress", "compact"), ("ready", "delete"), ("position", "compact")])
def test_an_internal_topic_for_another_number_of_shards_is_refused(
    make_settings: MakeSettings, admin: KafkaAdminClient, role: str, policy: str
) -> None:
    settings = make_settings("bucket.shards=4")
    topic = _make_internal(admin, settings, role, 2, **{"cleanup.policy": policy, "retention.ms": "-1"})
    with pytest.raises(TopicMismatch, match=rf"{role} topic {topic} has 2 partitions, but bucket.shards is 4"):
        ensure_topics(settings)
    # It was refused before any topic was created.
    assert {report.role for report in show_topics(settings) if report.state == "exists"} == {role}


def test_a_lease_topic_without_the_stamps_of_the_broker_is_refused(settings: Settings, configure: Configure) -> None:
    ensure_topics(settings)
    check_topics(settings)
    configure(settings.lease_topic, **{"message.timestamp.type": "CreateTime"})
    with pytest.raises(TopicMismatch, match=r"has message.timestamp.type=CreateTime, .* Set .*=LogAppendTime"):
        check_topics(settings)


def test_internal_topics_grow_with_the_shards_and_never_shrink(settings: Settings) -> None:
    ensure_topics(settings)
    sharded = (settings.progress_topic, settings.ready_topic, settings.position_topic)
    for shards, partitions in ((5, 5), (3, 5)):
        ensure_shards(settings, shards)
        assert_eventually(lambda: {check_topics(settings)[topic] for topic in sharded} == {partitions}, 10)  # noqa: B023
        # One partition belongs to no lane, and to no shard.
        with_one_more = (settings.claims_topic, settings.recalled_topic)
        assert {check_topics(settings)[topic] for topic in with_one_more} == {partitions + 1}
    assert check_topics(settings)[settings.lease_topic] == 1


def test_more_partitions_than_shards_are_fine(settings: Settings, admin: KafkaAdminClient) -> None:
    topics = [
        _make_internal(admin, settings, "progress", 3, **{"cleanup.policy": "compact"}),
        _make_internal(admin, settings, "ready", 4, **{"retention.ms": "-1", "max.message.bytes": "2000000"}),
        _make_internal(admin, settings, "position", 5, **{"cleanup.policy": "compact"}),
    ]
    ensure_topics(settings)
    counts = check_topics(settings)
    assert [counts[topic] for topic in topics] == [3, 4, 5]


@pytest.mark.parametrize("key", ["retention.ms", "retention.bytes"])
def test_a_ready_topic_that_deletes_what_is_not_due_is_refused(
    settings: Settings, configure: Configure, key: str
) -> None:
    ensure_topics(settings)
    check_topics(settings)
    configure(settings.ready_topic, **{key: "604800000"})
    for refuse in (check_topics, ensure_topics):
        with pytest.raises(TopicMismatch, match=f"{settings.ready_topic} has {key}=604800000\\. .*Set both to -1"):
            refuse(settings)


def test_a_ready_topic_with_a_retention_is_refused(settings: Settings, admin: KafkaAdminClient) -> None:
    _make_internal(admin, settings, "ready", 2)
    with pytest.raises(TopicMismatch, match=r"has retention\.ms=604800000\. Records that the service still needs"):
        ensure_topics(settings)


def test_shards_without_a_progress_topic_are_refused(settings: Settings) -> None:
    with pytest.raises(TopicMissing, match="it restores from the checkpoint which messages are staged"):
        ensure_shards(settings, 3)


def test_a_ready_topic_without_room_for_the_largest_message_is_refused(
    settings: Settings, make_settings: MakeSettings, configure: Configure
) -> None:
    ensure_topics(settings)
    configure(settings.ready_topic, **{"max.message.bytes": "1048588"})
    with pytest.raises(
        TopicMismatch, match=f"{settings.ready_topic} has max.message.bytes=1048588, which is too small"
    ):
        check_topics(settings)


@pytest.mark.parametrize(
    ("role", "policy", "needed"),
    [
        ("progress", "delete", "compact"),
        ("progress", "compact,delete", "compact"),
        ("position", "delete", "compact"),
        ("ready", "compact", "delete"),
        ("ready", "compact,delete", "delete"),
    ],
)
def test_an_internal_topic_that_would_lose_records_is_refused(
    settings: Settings, admin: KafkaAdminClient, role: str, policy: str, needed: str
) -> None:
    _make_internal(admin, settings, role, 2, **{"cleanup.policy": policy, "retention.ms": "-1"})
    with pytest.raises(TopicMismatch, match=rf"cleanup.policy={policy}, and would lose.*\. Set it to {needed}"):
        ensure_topics(settings)
