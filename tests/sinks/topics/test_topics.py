"""Making and checking the job's topics on a real broker: which are needed, missing, created, and counted."""

from __future__ import annotations

import time
import uuid

import pytest
from kafka.admin import KafkaAdminClient

from conf.errors import BrokerUnreachable, SettingError, TopicMismatch, TopicMissing
from conf.load import load_settings
from conf.settings import Settings
from sinks.topics.partitions import partition_counts
from sinks.topics.roles import needed_topics, required_topics
from sinks.topics.topics import check_topics, ensure_topics, show_topics
from tests.conftest import MakeSettings, MakeTopic


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
