"""Loading settings: the default file, which source wins, the forms of values, and files that cannot be read."""

from __future__ import annotations

import re
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from conf.load import load_settings
from conf.settings import Settings
from tests.conf.setting_failure import SECRET, failure

DEFAULT_FILE = Path(__file__).parents[2] / "conf" / "delayline.toml"


def test_the_default_file_has_exactly_the_built_in_defaults() -> None:
    assert load_settings(DEFAULT_FILE, environ={}) == load_settings(environ={}) == Settings()


def test_the_default_file_has_every_key_and_a_comment_above_it() -> None:
    table = tomllib.loads(DEFAULT_FILE.read_text())
    written = {f"{section}.{key}" for section, keys in table.items() if isinstance(keys, dict) for key in keys}
    known = {
        f"{section}.{key}"
        for section, field in Settings.model_fields.items()
        for key in getattr(field.annotation, "model_fields", {})
    }
    assert written == known | {"spark.spark.master"}
    assert "application_id" in table
    lines = DEFAULT_FILE.read_text().splitlines()
    for above, line in pairwise(lines):
        if re.match(r'["a-z_.]+ = ', line):
            assert above.startswith("# "), line


def test_the_environment_overrides_the_file_and_set_overrides_both(toml: Any) -> None:
    file = toml('application_id = "f"\n[bucket]\nshards = 3\nmax_messages = 30\nmax_bytes = 3000')
    environ = {"DELAYLINE_BUCKET__MAX_MESSAGES": "40", "DELAYLINE_BUCKET__MAX_BYTES": "4000"}
    settings = load_settings(file, ["bucket.max_bytes=5000"], environ)
    assert settings.application_id == "f"
    assert (settings.bucket.shards, settings.bucket.max_messages, settings.bucket.max_bytes) == (3, 40, 5000)


def test_the_last_of_two_overrides_wins() -> None:
    assert load_settings(None, ["bucket.shards=3", "bucket.shards=4"], {}).bucket.shards == 4


def test_options_of_clients_are_merged_over_all_three_sources(toml: Any) -> None:
    file = toml('[kafka]\nsecurity.protocol = "SSL"\n"client.id" = "f"\n"ssl.ca.location" = "ca.pem"')
    environ = {"DELAYLINE_KAFKA__CLIENT_ID": "e", "DELAYLINE_KAFKA__ssl.crl.location": "crl.pem"}
    settings = load_settings(file, ["kafka.security.protocol=PLAINTEXT"], environ)
    assert settings.kafka.options == {
        "security.protocol": "PLAINTEXT",
        "client.id": "e",
        "ssl.ca.location": "ca.pem",
        "ssl.crl.location": "crl.pem",
    }


def test_the_default_environment_is_that_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELAYLINE_APPLICATION_ID", "mine")
    assert load_settings().application_id == "mine"
    assert load_settings(environ={}).application_id == "delayline"


def test_an_override_is_split_at_the_first_dot_and_the_first_equals_sign() -> None:
    settings = load_settings(None, ["spark.spark.master=local[4]", "spark.spark.x=a=b", "storage.path=s3a://b/p.q"], {})
    assert settings.spark.options == {"spark.master": "local[4]", "spark.x": "a=b"}
    assert settings.storage.path == "s3a://b/p.q"


@pytest.mark.parametrize("text", ['["a", "b"]', "['a','b']", "a,b", " a , b "])
def test_a_list_is_read_in_each_of_its_forms(text: str) -> None:
    assert load_settings(None, [f"topics.input={text}"], {}).topics.input == ("a", "b")
    assert load_settings(None, [], {"DELAYLINE_TOPICS__INPUT": text}).topics.input == ("a", "b")


def test_an_empty_text_is_an_empty_list() -> None:
    assert load_settings(None, ["topics.allowed_outputs="], {}).topics.allowed_outputs == ()


def test_a_text_that_looks_like_a_number_stays_text() -> None:
    assert load_settings(None, ["topics.output=123", "application_id=9"], {}).topics.output == "123"


def test_durations_are_stored_in_milliseconds() -> None:
    settings = load_settings(None, ["clock.trigger=2s", "policies.max_delay=PT1H", "levels.delays=1s,2m"], {})
    assert (settings.clock.trigger, settings.policies.max_delay) == (2000, 3_600_000)
    assert settings.levels.delays == (1000, 120_000)


def test_spark_keeps_the_case_of_a_variable_that_is_not_in_capitals() -> None:
    environ = {
        "DELAYLINE_SPARK__spark.executor.memoryOverhead": "1g",
        "DELAYLINE_SPARK__spark_driver_memoryOverhead": "2g",
        "DELAYLINE_SPARK__SPARK_EXECUTOR_CORES": "2",
    }
    options = load_settings(None, [], environ).spark.options
    assert options["spark.executor.memoryOverhead"] == "1g"
    assert options["spark.driver.memoryOverhead"] == "2g"
    assert options["spark.executor.cores"] == "2"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert re.search(r"nowhere\.toml' cannot be read: No such file", failure(file=tmp_path / "nowhere.toml"))


def test_a_directory_is_not_a_settings_file(tmp_path: Path) -> None:
    assert "Is a directory" in failure(file=tmp_path)


def test_an_error_for_invalid_toml_names_the_line(toml: Any) -> None:
    assert "line 2" in failure(file=toml(f'[kafka]\n"sasl.password" = {SECRET}'))


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_bytes(b"\xff\xfe")
    assert "is not valid TOML" in failure(file=file)
