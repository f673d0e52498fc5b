"""Errors about values: each names the key, the value, what is allowed, and where the value is from."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conf.setting_failure import SECRET, failure


@pytest.mark.parametrize(
    ("override", "allowed"),
    [
        ("bucket.shards=two", "a whole number from 1 to 1024"),
        ("bucket.shards=2.0", "a whole number from 1 to 1024"),
        ("bucket.shards=", "a whole number from 1 to 1024"),
        ("bucket.shards=0", "a whole number from 1 to 1024"),
        ("bucket.shards=1025", "a whole number from 1 to 1024"),
        ("bucket.fan_in=1", "a whole number from 2 to 100"),
        ("bucket.fan_in=101", "a whole number from 2 to 100"),
        ("limits.messages_per_trigger=-1", "a whole number from 1 to"),
        ("policies.max_delay=5 parsecs", "a duration from 0ms to 36525d, written as ms"),
        ("policies.max_delay=-1s", "a duration"),
        ("clock.horizon=2h", "a duration from 1s to 1h"),
        ("clock.horizon=500ms", "a duration from 1s to 1h"),
        ("release.transaction_timeout=1h", "a duration from 1s to 15m"),
        ("release.lead=11s", "a duration from 1ms to 10s"),
        ("release.processes=65", "a whole number from 0 to 64"),
        ("release.max_bytes=1000000", "a whole number from 16777216 to "),
        ("topics.output=a b", "a topic name"),
        ("topics.dead_letter=..", "a topic name"),
        ("topics.input=a,b/c", "a topic name"),
        ("topics.input=", "a list of one or more"),
        # No client describes it, so no job with it could start.
        ("topics.input=a,b, a", "each name once, and 'a' is there twice"),
        ('topics.input=["a"', "a list, written as"),
        ("topics.allowed_outputs=a{b}", "a topic name, or a shell pattern"),
        ("application_id=a/b", "1 to 100 of"),
        ("kafka.bootstrap_servers=localhost", "host:port"),
        ("kafka.bootstrap_servers=a:99999", "host:port"),
        ("headers.deliver_at=", "1 character or more"),
        ("headers.deliver_at=delayline-id", "1 character or more, not beginning with"),
        ("storage.path= ", "a local path"),
        ("levels.delays=1s,soon", "a duration"),
        ("policies.repeats=maybe", "true or false"),
        ("policies.repeats=", "true or false"),
        ("topics.skip_expired=2", "true or false"),
    ],
)
def test_an_error_names_key_value_allowed_values_and_origin(override: str, allowed: str) -> None:
    text = failure(override)
    key, _, value = override.partition("=")
    assert text.startswith(f"bad-setting: {key} = ")
    assert f"allowed is {allowed}" in text
    assert text.endswith("(from --set)")
    assert any(repr(part) in text for part in (value, *value.split(","))) or value == ""


def test_an_error_for_a_value_that_is_not_utf_8_names_only_the_key() -> None:
    # Python reads a byte that is not UTF-8 in an argument or variable as such a surrogate.
    value = f"{SECRET}\udcff"
    assert failure(f"kafka.sasl.password={value}") == "bad-setting: --set kafka.sasl.password: allowed is UTF-8 text"
    message = failure(environ={"DELAYLINE_STORAGE__PATH": value})
    assert message == "bad-setting: DELAYLINE_STORAGE__PATH: allowed is UTF-8 text"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[bucket]\nshards = true", "bucket.shards = True"),
        ("[bucket]\nshards = 2.5", "bucket.shards = 2.5"),
        ("[topics]\noutput = 3", "topics.output = 3"),
        ("[topics]\ninput = 3", "topics.input = 3"),
        ("[clock]\ntrigger = 0.5", "clock.trigger = 0.5"),
        ("[kafka]\n'client.id' = ['a']", "kafka.client.id = ['a']"),
        ("[topics.output]\nname = 'x'", "topics.output = {'name': 'x'}"),
        ("bucket = 3", "[bucket]: allowed is a table"),
    ],
)
def test_a_wrong_type_in_the_file_is_named_with_the_file(toml: Any, text: str, key: str) -> None:
    file = toml(text)
    assert failure(file=file).startswith(f"bad-setting: {key}")


def test_an_error_names_the_file_or_variable_of_the_value(toml: Any) -> None:
    file = toml("[bucket]\nshards = 0")
    assert f"(from file {file})" in failure(file=file)
    variable = "DELAYLINE_BUCKET__SHARDS"
    assert f"(from environment variable {variable})" in failure(file=file, environ={variable: "x"})


def test_all_wrong_settings_are_listed_at_once(toml: Any) -> None:
    file = toml("[bucket]\nshards = 0\nsize = 1\n[nowhere]\nx = 1")
    text = failure("policies.max_delay=x", "nothing", file=file, environ={"DELAYLINE_CLOCK__TRIGGR": "1s"})
    for key in (
        "bucket.shards = 0",
        "bucket.size",
        "nowhere",
        "policies.max_delay",
        "nothing",
        "CLOCK__TRIGGR",
    ):
        assert key in text
    assert len(text.splitlines()) == 6
