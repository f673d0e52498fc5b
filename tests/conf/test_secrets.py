"""Secrets, which no error and no log shows."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from conf.load import load_settings
from conf.setting_types import OptionTable
from conf.settings import Settings
from tests.conf.setting_failure import SECRET, failure


def test_no_error_shows_a_secret(toml: Any) -> None:
    file = toml(
        f'[kafka]\n"sasl.password" = ["{SECRET}"]\n"sasl.jaas.config" = {{ a = ["{SECRET}"] }}\n[kafak]\nx = "{SECRET}"'
    )
    environ = {
        "DELAYLINE_KAFKA__SASL_PASSWRD": SECRET,
        "DELAYLINE_STORAGE__PATH": f"s3a://id:{SECRET}@bucket/",
    }
    text = failure(f"kafka.bootstrap_servers=u:{SECRET}@host:1", "bucket.shards=0", file=file, environ=environ)
    assert "kafka.sasl.password = ******" in text
    assert "storage.path = ******" in text


@pytest.mark.parametrize(
    "options",
    [
        {"sasl.password": SECRET, "sasl.username": "u"},
        {"sasl.password": SECRET, "security.protocol": "SASL_SSL"},
        {"sasl.jaas.config": SECRET, "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"},
    ],
)
def test_no_error_of_a_combination_of_client_options_shows_a_secret(options: dict[str, str]) -> None:
    assert "kafka." in failure(*(f"kafka.{key}={value}" for key, value in options.items()))


def test_not_even_the_debug_log_of_the_library_shows_a_secret(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, toml: Any
) -> None:
    monkeypatch.setenv("PYDANTIC_SETTINGS_DEBUG", "1")
    file = toml(f'[kafka]\nssl.key.password = "{SECRET}"\n')
    with caplog.at_level(logging.DEBUG):
        load_settings(file, [f"spark.spark.x.secret={SECRET}"], {"DELAYLINE_KAFKA__SSL_TRUSTSTORE_PASSWORD": SECRET})
    assert "kafka" in caplog.text
    assert SECRET not in caplog.text


def test_every_section_that_takes_further_keys_hides_its_secrets() -> None:
    tables = {
        name
        for name, field in Settings.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, OptionTable)
    }
    assert tables == {"kafka", "policies", "presets", "rates", "spark"}
