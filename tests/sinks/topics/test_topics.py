"""Making and checking the job's topics on a real broker."""

from __future__ import annotations

import time
import uuid

import pytest
from confluent_kafka import KafkaError, Message, Producer
from kafka.admin import ConfigResource, KafkaAdminClient
from kafka.structs import TopicPartition

from conf.errors import BrokerUnreachable, SettingError, TopicMismatch, TopicMissing
from conf.load import load_settings
from conf.setting_types import HOUR
from conf.settings import Settings
from sinks.topics.input_ends import input_bounds, input_offsets_at, input_retentions
from sinks.topics.limits import dead_letter_limits
from sinks.topics.partitions import partition_counts
from sinks.topics.record_protection import INPUT_PROTECTION
from sinks.topics.roles import needed_topics, required_topics
from sinks.topics.topics import check_topics, ensure_shards, ensure_topics, show_topics
from sources.publisher import Publisher
from streaming.local.broker import EmbeddedBroker
from tests.conftest import Configure, MakeSettings, MakeTopic
from tests.eventually import assert_eventually

# Kafka's value for no limit.
_FOREVER_MS = str((1 << 63) - 1)


def test_a_job_needs_every_exact_name_but_no_pattern(make_settings: MakeSettings) -> None:
    settings = make_settings("topics.allowed_outputs=orders,mail-*", "topics.input=a,b")
    application_id = settings.application_id
    assert needed_topics(settings) == {
        "a": "input",
        "b": "input",
        f"{application_id}-output": "output",
        "orders": "output",
        f"{application_id}-dead_letter": "dead letter",
        f"{application_id}-results": "results",
        f"{application_id}-progress": "progress",
        f"{application_id}-lease": "lease",
        f"{application_id}-ready": "ready",
        f"{application_id}-position": "position",
        f"{application_id}-near": "near",
        f"{application_id}-claims": "claims",
        f"{application_id}-recalled": "recalled",
    }


def test_missing_topics_are_created_once(make_settings: MakeSettings, admin: KafkaAdminClient) -> None:
    settings = make_settings("bucket.shards=3")
    assert {report.state for report in show_topics(settings)} == {"missing"}
    first = ensure_topics(settings, partitions=2)
    assert [(report.role, report.partitions, report.state) for report in first] == [
        ("input", 2, "created"),
        ("output", 2, "created"),
        ("dead letter", 2, "created"),
        ("results", 2, "created"),
        ("progress", 3, "created"),
        ("lease", 1, "created"),
        ("ready", 3, "created"),
        ("position", 3, "created"),
        ("near", 3, "created"),
        ("claims", 4, "created"),
        ("recalled", 4, "created"),
    ]
    # A later call may pass another number; existing topics stay as they are.
    again = ensure_topics(settings, partitions=7)
    counts = (2, 2, 2, 2, 3, 1, 3, 3, 3, 4, 4)
    assert [(report.partitions, report.state) for report in again] == [(count, "exists") for count in counts]
    assert show_topics(settings) == again
    assert check_topics(settings) == {report.name: report.partitions for report in again}


def test_only_missing_topics_are_created(make_settings: MakeSettings, make_topic: MakeTopic) -> None:
    settings = make_settings(f"topics.input={make_topic(5)}")
    assert [report.state for report in ensure_topics(settings)] == ["exists", *["created"] * 10]


def test_each_missing_topic_is_named_with_the_remedy(make_settings: MakeSettings, make_topic: MakeTopic) -> None:
    settings = make_settings(f"topics.output={make_topic()}")
    with pytest.raises(TopicMissing) as raised:
        check_topics(settings)
    message = str(raised.value)
    application_id = settings.application_id
    for missing in (
        f"{application_id}-input (input)",
        f"{application_id}-dead_letter (dead letter)",
        f"{application_id}-results (results)",
        f"{application_id}-progress (progress)",
        f"{application_id}-ready (ready)",
        f"{application_id}-position (position)",
        f"{application_id}-near (near)",
        f"{application_id}-claims (claims)",
    ):
        assert missing in message
    assert settings.topics.output not in message
    assert "delayline topics create" in message


def test_an_output_topic_that_only_the_allow_list_names_is_missed_and_not_demanded(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    ensure_topics(settings)
    topics = settings.topics.model_copy(update={"allowed_outputs": ("mail-*", "nowhere")})
    wider = settings.model_copy(update={"topics": topics})
    assert "nowhere" not in check_topics(wider)
    assert "topics.allowed_outputs names nowhere, which does not exist" in caplog.text
    with pytest.raises(TopicMissing, match=r"nowhere \(output\) at "):
        check_topics(wider, all_outputs=True)
    assert required_topics(wider) == needed_topics(settings)


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
    with pytest.raises(TopicMissing, match="Nothing else records which messages are staged"):
        ensure_shards(settings, 3)


def test_the_input_bounds_are_given_for_each_partition(settings: Settings) -> None:
    ensure_topics(settings, partitions=2)
    (name,) = settings.topics.input
    with Publisher(settings, name, partition=1) as publisher:
        assert len(list(publisher.publish([b"x"] * 3))) == 3
    assert input_bounds(settings) == {(name, 0): (0, 0), (name, 1): (0, 3)}


def test_below_the_offset_at_an_instant_all_records_are_older_whatever_their_timestamps_are(
    settings: Settings, broker: EmbeddedBroker
) -> None:
    ensure_topics(settings, partitions=4)
    (name,) = settings.topics.input
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    now_ms = time.time_ns() // 1_000_000
    ages_h = {0: (50, 3, 40, 1, 2), 1: (50, 60), 3: (50, 40, 30)}
    for partition, own in ages_h.items():
        for age_h in own:
            producer.produce(name, b"x", partition=partition, timestamp=now_ms - age_h * HOUR)
            assert producer.flush(30) == 0

    def offsets(instant_ms: int) -> list[int]:
        at = input_offsets_at(settings, instant_ms)
        return [at[name, number] for number in range(4)]

    before = {hours: offsets(now_ms - hours * HOUR) for hours in (70, 45, 35, 2, 0)}
    # All records of a partition without a younger record are old. An empty partition has no old ones.
    assert before == {70: [0, 0, 0, 0], 45: [1, 2, 0, 1], 35: [1, 2, 0, 2], 2: [3, 2, 0, 3], 0: [5, 2, 0, 3]}
    assert offsets(-1) == [0, 0, 0, 0], "Kafka takes it for the next offset"
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        admin.delete_records({TopicPartition(name, 0): 2, TopicPartition(name, 3): 3})
    producer.produce(name, b"x", partition=3, timestamp=now_ms - 50 * HOUR)
    assert producer.flush(30) == 0
    # Deleted records are old, and later records do not make any of them young again.
    assert offsets(now_ms - 45 * HOUR) == [2, 2, 0, 4]


def test_the_dead_letter_topic_is_created_with_the_size_limit_of_the_input_and_a_smaller_limit_is_logged(
    make_settings: MakeSettings, make_topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    large = make_topic(**{"max.message.bytes": "3000000", **INPUT_PROTECTION})
    settings = make_settings(f"topics.input={large},{make_topic(**INPUT_PROTECTION)}")
    ensure_topics(settings)
    limits, needed = dead_letter_limits(settings)
    assert (limits.max_bytes, needed) == (3_004_096, 3_004_096)
    check_topics(settings)
    assert settings.topics.dead_letter not in caplog.text
    small = make_settings(f"topics.input={large}", f"topics.dead_letter={make_topic()}")
    ensure_topics(small)
    check_topics(small)
    assert f"{small.topics.dead_letter} has max.message.bytes=1048588" in caplog.text
    assert "Set it to at least 3004096" in caplog.text


def test_a_warning_names_a_dead_letter_topic_that_requires_keys(
    make_settings: MakeSettings, make_topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    settings = make_settings(f"topics.dead_letter={make_topic(**{'cleanup.policy': 'compact'})}")
    ensure_topics(settings)
    check_topics(settings)
    assert f"{settings.topics.dead_letter} is compacted. It loses dead letters" in caplog.text


def test_a_dead_letter_topic_without_room_for_a_stub_is_refused(
    make_settings: MakeSettings, make_topic: MakeTopic
) -> None:
    topic = make_topic(**{"max.message.bytes": "8191"})
    settings = make_settings(f"topics.dead_letter={topic}")
    ensure_topics(settings)
    with pytest.raises(TopicMismatch, match=rf"{topic} has max.message.bytes=8191, .* takes up to 8192\. Set it to"):
        check_topics(settings)


def test_a_ready_topic_without_room_for_the_largest_message_is_refused(
    settings: Settings, make_settings: MakeSettings, configure: Configure
) -> None:
    ensure_topics(settings)
    configure(settings.ready_topic, **{"max.message.bytes": "1048588"})
    with pytest.raises(
        TopicMismatch, match=f"{settings.ready_topic} has max.message.bytes=1048588, which is too small"
    ):
        check_topics(settings)


def test_a_new_input_topic_refuses_what_the_job_could_not_read(settings: Settings, broker: EmbeddedBroker) -> None:
    ensure_topics(settings)
    options = {"bootstrap.servers": broker.bootstrap, "compression.type": "zstd", "message.max.bytes": 10_000_000}
    producer = Producer(options)
    errors: list[str | None] = []

    def report(error: KafkaError | None, _: Message) -> None:
        errors.append(None if error is None else error.name())

    for value, timestamp_ms in ((bytes(3_000_000), 1), (b"v", time.time_ns()), (b"v", -time.time_ns()), (b"v", 1)):
        producer.produce(settings.topics.input[0], value, timestamp=timestamp_ms, on_delivery=report)
        assert producer.flush(30) == 0
    assert errors == ["MSG_SIZE_TOO_LARGE", "INVALID_TIMESTAMP", "INVALID_TIMESTAMP", None]


@pytest.mark.parametrize(
    ("configs", "warned"),
    [
        (INPUT_PROTECTION, []),
        (INPUT_PROTECTION | {"compression.type": "producer"}, ["compression.type=producer"]),
        (INPUT_PROTECTION | {"message.timestamp.after.max.ms": _FOREVER_MS}, ["message.timestamp.after.max.ms"]),
        (INPUT_PROTECTION | {"message.timestamp.before.max.ms": _FOREVER_MS}, ["message.timestamp.before.max.ms"]),
        ({"message.timestamp.type": "LogAppendTime"}, ["compression.type=producer"]),
    ],
)
def test_an_input_topic_that_takes_what_the_job_cannot_read_is_named(
    make_settings: MakeSettings,
    make_topic: MakeTopic,
    caplog: pytest.LogCaptureFixture,
    configs: dict[str, str],
    warned: list[str],
) -> None:
    topic = make_topic(**configs)
    settings = make_settings(f"topics.input={topic}")
    ensure_topics(settings)
    check_topics(settings)
    assert caplog.text.count("input topic") == len(warned)
    assert all(f"input topic {topic} has {key}" in caplog.text for key in warned)


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


def test_an_error_has_the_brokers_reason_for_refusing_to_create_a_topic(settings: Settings) -> None:
    with pytest.raises(TopicMismatch, match=r"refused to create.*replication factor of 3"):
        ensure_topics(settings, 1, replication=3)


def test_partition_counts_omit_missing_topics(
    settings: Settings, make_topic: MakeTopic, admin: KafkaAdminClient
) -> None:
    three = make_topic(3)
    assert partition_counts(settings, [three, "nowhere"]) == {three: 3}
    assert partition_counts(settings, []) == {}


def test_a_job_may_write_to_topics_that_its_allow_list_matches_but_never_to_its_input(
    make_settings: MakeSettings, make_topic: MakeTopic
) -> None:
    source, other = make_topic(2), make_topic(4)
    settings = make_settings(f"topics.input={source}", "topics.allowed_outputs=*")
    ensure_topics(settings, 1)
    neighbour = make_settings()
    ensure_topics(neighbour, 1)
    counts = partition_counts(settings)
    assert counts[other] == 4
    assert not set(neighbour.own_topics) & set(counts)
    assert {settings.topics.output, settings.topics.dead_letter} <= set(counts)
    assert not {source, *settings.own_topics} & set(counts)


def test_retention_is_listed_for_topics_that_delete_records_by_the_publishers_timestamp(
    make_settings: MakeSettings, make_topic: MakeTopic
) -> None:
    default, short = make_topic(), make_topic(**{"retention.ms": "5000"})
    others = [
        {"retention.ms": "-1"},
        {"cleanup.policy": "compact"},
        {"message.timestamp.type": "LogAppendTime"},
    ]
    topics = [default, short, *(make_topic(**configs) for configs in others)]
    settings = make_settings(f"topics.input={','.join(topics)}")
    assert input_retentions(settings) == {default: 7 * 86_400_000, short: 5_000}


def test_an_option_that_a_later_client_would_refuse_is_reported_before_contacting_a_broker() -> None:
    settings = load_settings(None, ["kafka.bootstrap_servers=127.0.0.1:1", "kafka.linger.ms=abc"], environ={})
    with pytest.raises(SettingError, match=r'"linger\.ms"'):
        show_topics(settings)


def test_an_unreachable_broker_is_named_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinks.topics.admin_client.CONNECT_TIMEOUT_MS", 1_000)
    settings = load_settings(None, ["kafka.bootstrap_servers=127.0.0.1:1"], environ={})
    begun_s = time.monotonic()
    with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:1"):
        partition_counts(settings)
    assert time.monotonic() - begun_s < 10


def test_a_named_topic_is_counted_even_if_its_name_begins_like_kafkas_internal_topics(
    make_settings: MakeSettings,
) -> None:
    letters = f"__{uuid.uuid4().hex}"
    settings = make_settings(f"topics.dead_letter={letters}", f"topics.allowed_outputs={letters}-audit")
    ensure_topics(settings, partitions=2)
    named = (settings.topics.output, letters, f"{letters}-audit", settings.results_topic)
    assert partition_counts(settings) == dict.fromkeys(named, 2)
