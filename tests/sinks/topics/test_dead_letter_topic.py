"""The dead-letter topic on a real broker: its size limit, and warnings of what it would lose."""

from __future__ import annotations

import pytest

from conf.errors import TopicMismatch
from sinks.topics.limits import dead_letter_limits
from sinks.topics.record_protection import INPUT_PROTECTION
from sinks.topics.topics import check_topics, ensure_topics
from tests.conftest import MakeSettings, MakeTopic


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
