from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from conf.secrets import is_secret
from conf.sections import KafkaSettings, SparkSettings
from conf.setting_groups import ADVANCED, EVERYBODY, group_of
from conf.settings import Settings

DEFAULTS = Path(__file__).parents[2] / "conf/delayline.toml"
SECRET = "hunter2"
SECRET_OPTIONS = {
    "sasl.password": SECRET,
    "sasl.jaas.config": f'x.PlainLoginModule required username="u" password="{SECRET}";',
    "ssl.key.password": SECRET,
    "ssl.keystore.key": SECRET,
    "ssl.truststore.password": SECRET,
}
SECRET_SPARK_OPTIONS = {
    "spark.hadoop.fs.s3a.access.key": SECRET,
    "spark.hadoop.fs.s3a.secret.key": SECRET,
    "spark.hadoop.fs.azure.account.key.store.dfs.core.windows.net": SECRET,
    "spark.ssl.keyStorePassword": SECRET,
    "spark.driver.extraJavaOptions": f"-Djavax.net.ssl.trustStorePassword={SECRET}",
    "spark.jars.repositories": f"https://user:{SECRET}@repo.example.org",
}


def test_settings_read_nothing_but_their_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELAYLINE_BUCKET__SHARDS", "7")
    assert Settings().bucket.shards == 2


def test_no_rendering_of_settings_shows_a_secret() -> None:
    kafka = {"security.protocol": "SASL_SSL", **SECRET_OPTIONS}
    settings = Settings(
        kafka=KafkaSettings.model_validate(kafka), spark=SparkSettings.model_validate(SECRET_SPARK_OPTIONS)
    )
    for text in (
        repr(settings),
        str(settings),
        f"{settings.kafka!r} {settings.kafka}",
        repr(settings.model_dump()),
        repr(settings.model_dump(mode="json")),
        settings.model_dump_json(),
        repr(vars(settings)),
        repr(settings.kafka.model_extra),
        repr(list(settings.kafka)),
        repr(copy.deepcopy(settings)),
        repr(pickle.loads(pickle.dumps(settings))),
    ):
        assert SECRET not in text
    assert "SASL_SSL" in repr(settings)
    assert json.loads(settings.model_dump_json())["kafka"]["sasl.password"] == "**********"


def test_options_return_secrets_in_clear() -> None:
    settings = Settings(kafka=KafkaSettings.model_validate(SECRET_OPTIONS))
    assert settings.kafka.options == SECRET_OPTIONS


def test_changing_the_returned_options_changes_no_setting() -> None:
    kafka = KafkaSettings.model_validate({"client.id": "a"})
    kafka.options["client.id"] = "b"
    assert kafka.options == {"client.id": "a"}


@pytest.mark.parametrize("key", ["ssl.ca.location", "ssl.key.location", "ssl.keystore.location", "sasl.username"])
def test_paths_and_names_are_not_secrets(key: str) -> None:
    assert not is_secret(key, "/etc/pki/client.key")


def test_a_secret_value_is_a_secret_under_any_key() -> None:
    assert is_secret("anything", SecretStr("x"))


def test_settings_are_frozen_and_hashable() -> None:
    settings = Settings()
    with pytest.raises(ValidationError, match="frozen"):
        settings.application_id = "other"
    with pytest.raises(ValidationError, match="frozen"):
        settings.bucket.shards = 3
    assert hash(settings) == hash(Settings())


def test_option_values_are_text_in_the_clients_spelling() -> None:
    spark = SparkSettings.model_validate({"spark.a": True, "spark.b": 3, "spark.c": 0.5, "spark.d": "x"})
    assert spark.options == {"spark.a": "true", "spark.b": "3", "spark.c": "0.5", "spark.d": "x"} | {
        "spark.master": "local[2,4]"
    }


def test_settings_with_different_options_are_not_equal() -> None:
    assert KafkaSettings.model_validate({"client.id": "a"}) != KafkaSettings.model_validate({"client.id": "b"})


@pytest.mark.parametrize("role", ["progress", "lease", "ready", "position"])
def test_the_name_of_an_internal_topic_follows_from_the_application_id_alone(role: str) -> None:
    settings = Settings(application_id="a")
    assert getattr(settings, f"{role}_topic") == f"a-{role}"
    assert f"a-{role}" in settings.own_topics
    with pytest.raises(ValidationError, match="Extra inputs"):
        Settings(topics={role: "p"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "topics",
    [
        {"input": ["a", "b"], "output": "b"},
        {"input": ["a"], "dead_letter": "a"},
        {"input": ["delayline-progress"]},
        {"output": "x", "dead_letter": "x"},
        {"output": "delayline-progress"},
        {"input": ["delayline-ready"]},
        {"output": "delayline-position"},
        {"allowed_outputs": ["delayline-ready"]},
        {"allowed_outputs": ["delayline-in"]},
        {"allowed_outputs": ["delayline-dead-letter"]},
    ],
)
def test_topics_that_would_loop_messages_are_refused(topics: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="topic"):
        Settings(topics=topics)  # type: ignore[arg-type]


def test_pydantics_own_errors_repeat_no_value() -> None:
    with pytest.raises(ValidationError) as raised:
        Settings.model_validate(
            {
                "kafka": {"bootstrap_servers": SECRET, "sasl.password": [SECRET]},
                "limits": {"messages_per_trigger": SECRET},
            }
        )
    assert raised.value.error_count() == 3
    assert SECRET not in f"{raised.value} {raised.value!r}"


def test_each_setting_is_in_one_group_and_eight_are_for_everybody() -> None:
    fields = Settings.model_fields
    keys = {name for name, field in fields.items() if not hasattr(field.annotation, "model_fields")}
    for section in fields.keys() - keys:
        keys |= {f"{section}.{key}" for key in fields[section].annotation.model_fields}  # type: ignore[union-attr]
    assert len(EVERYBODY) == 8
    assert not set(EVERYBODY) & set(ADVANCED)
    assert {*EVERYBODY, *ADVANCED} <= keys
    (head, *_) = DEFAULTS.read_text().split("\n# The name of the job")
    assert all(key in head for key in EVERYBODY)
    assert DEFAULTS.read_text().count("# Advanced.\n") == len(ADVANCED)


def test_groups_tell_who_sets_a_key() -> None:
    of = {group_of(key) for key in ("topics.input", "release.lead", "clock.trigger")}
    assert of == {"everybody", "operators", "advanced"}
