from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.errors import CheckpointMismatch
from conf.load import load_settings
from conf.sections import HeaderSettings
from state.checkpoint.batch_settings import DelayPolicy, SettingsHistory, batch_settings_from
from state.checkpoint.origin import CheckpointOrigin
from tests.messages import some_batch_settings
from tests.thorough import examples

OLD, NEW, NEWEST = (some_batch_settings(group_bytes=ms) for ms in (1, 2, 3))


@pytest.mark.parametrize("topic", ["in-a", "in-b", "dead", "app-progress"])
def test_no_pattern_allows_one_of_the_jobs_own_topics(topic: str) -> None:
    overrides = ["application_id=app", "topics.input=in-a,in-b", "topics.dead_letter=dead"]
    settings = load_settings(None, [*overrides, "topics.allowed_outputs=*"], environ={})
    batch_settings = batch_settings_from(settings, {}, [0], CheckpointOrigin("c", 1, 1))
    assert not batch_settings.allows(topic)
    assert batch_settings.allows("anything-else")


@pytest.mark.parametrize("end", ["progress", "lease", "ready", "position"])
def test_a_topic_that_is_named_like_an_internal_one_is_allowed_by_its_name_alone(end: str) -> None:
    topic = f"other-{end}"
    settings = load_settings(None, ["topics.allowed_outputs=*,other-*"], environ={})
    batch_settings = batch_settings_from(settings, {}, [0], CheckpointOrigin("c", 1, 1))
    assert not batch_settings.allows(topic)
    assert batch_settings.allows(f"{topic}-x")
    assert replace(batch_settings, allowed_outputs=("*", topic)).allows(topic)


def test_deliver_to_may_name_the_default_output_and_topics_that_match_the_list_in_case_too() -> None:
    batch_settings = some_batch_settings(allowed_outputs=("orders", "mail-?", "log-[ab]*", "eu.[!x]"))
    allowed = ("delayline-out", "orders", "mail-1", "log-a", "log-b.7", "eu.y")
    refused = ("Orders", "orders-x", "my-orders", "mail-12", "mail-", "Mail-1", "log-c", "log-", "eu.x", "euxy", "")
    assert [topic for topic in (*allowed, *refused) if batch_settings.allows(topic)] == list(allowed)


def test_a_history_is_read_as_it_was_written() -> None:
    odd = some_batch_settings(headers=HeaderSettings(deliver_at="später"), allowed_outputs=("a", "b-*"), levels_ms=(5,))
    by_topic = replace(
        odd,
        presets={"a": ("nats", "rabbitmq")},
        policy=DelayPolicy(most_ms=9),
        policies={"a": DelayPolicy(1, 2, 3, clamps=True, names="key", name_mode="keep-time")},
    )
    history = SettingsHistory(((0, OLD), (7, odd), (9, by_topic)))
    assert SettingsHistory.from_json(history.to_json()) == history


def test_a_setting_that_no_version_has_recorded_is_refused() -> None:
    written = json.loads(SettingsHistory(((0, OLD),)).to_json())
    written["settings"][0]["far_ms"] = 1
    with pytest.raises(ValueError, match="far_ms"):
        SettingsHistory.from_json(json.dumps(written))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"settings": [{}]}', '{"settings": ["x"]}', '{"settings": [{"from_batch": 0, "headers": {}}]}'],
)
def test_any_other_text_is_not_a_history(text: str) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        SettingsHistory.from_json(text)


def test_a_batch_has_the_newest_settings_that_began_with_it_or_before() -> None:
    history = SettingsHistory(((2, OLD), (5, NEW)))
    assert [history.at(batch) for batch in (2, 4, 5, 9)] == [OLD, OLD, NEW, NEW]


def test_a_topic_was_an_output_if_messages_could_be_accepted_for_it_before_the_newest_settings() -> None:
    earlier = some_batch_settings(
        allowed_outputs=("orders", "mail-*"),
        partitions={"delayline-out": 4, "orders": 3, "mail-1": 1, "delayline-dead-letter": 2, "delayline-results": 2},
    )
    asked = ["delayline-out", "orders", "mail-1", "mail-2", "delayline-results", "delayline-dead-letter", "else"]
    history = SettingsHistory(((0, earlier), (5, NEW)))
    assert [topic for topic in asked if history.had_output(topic)] == ["delayline-out", "orders", "mail-1"]
    assert not any(map(SettingsHistory(((0, earlier),)).had_output, asked))


@pytest.mark.parametrize("history", [SettingsHistory(()), SettingsHistory(((2, OLD),))])
def test_a_batch_from_before_the_first_settings_is_an_error(history: SettingsHistory) -> None:
    with pytest.raises(CheckpointMismatch, match="settings of batch 1"):
        history.at(1)


def test_a_planned_batch_is_replayed_with_the_settings_it_was_planned_with() -> None:
    history = SettingsHistory(((0, OLD),)).amended(from_batch=6, batch_settings=NEW, keep_from=5)
    assert (history.at(5), history.at(6)) == (OLD, NEW)


def test_a_second_start_before_any_new_batch_replaces_the_settings_of_the_first() -> None:
    history = SettingsHistory(((0, OLD),)).amended(6, NEW, keep_from=5)
    assert history.amended(6, NEWEST, keep_from=5).entries == ((0, OLD), (6, NEWEST))
    assert history.amended(6, OLD, keep_from=5).entries == ((0, OLD),)


def test_a_start_with_the_same_settings_adds_nothing() -> None:
    history = SettingsHistory(((0, OLD),))
    assert history.amended(6, OLD, keep_from=5) == history


def test_settings_that_no_batch_can_need_are_dropped() -> None:
    history = SettingsHistory(((0, OLD), (6, NEW))).amended(9, NEWEST, keep_from=8)
    assert history.entries == ((6, NEW), (9, NEWEST))


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([OLD, NEW, NEWEST])), min_size=1, max_size=12))
@settings(max_examples=examples(100))
def test_over_many_starts_each_batch_has_the_settings_that_it_first_ran_with(starts: list[Any]) -> None:
    history, ran = SettingsHistory(()), dict[int, object]()
    for batches, batch_settings in starts:
        first_new = max(ran, default=-1) + 1
        history = SettingsHistory.from_json(
            history.amended(first_new, batch_settings, keep_from=max(0, first_new - 1)).to_json()
        )
        if ran:
            assert history.at(first_new - 1) == ran[first_new - 1]
        ran |= dict.fromkeys(range(first_new, first_new + batches), batch_settings)
        assert all(history.at(batch) == batch_settings for batch in range(first_new, first_new + batches))
        assert len(history.entries) <= 2
