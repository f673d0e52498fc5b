"""Options of a login: each client gets it in its own form, and half a login is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.kafka.options import java_options, kafka_python_options, librdkafka_options
from tests.conf.kafka.option_tables import LOGIN, kafka, refused

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.mark.parametrize("mechanism", ["sasl.mechanism", "sasl.mechanisms"])
def test_a_login_in_librdkafkas_spelling_reaches_every_client(mechanism: str) -> None:
    options = {**LOGIN, "security.protocol": "sasl_ssl"}
    options[mechanism] = options.pop("sasl.mechanism").lower()
    settings = kafka(options)
    java = java_options(settings)
    assert java["security.protocol"] == "SASL_SSL"
    assert java["sasl.mechanism"] == "SCRAM-SHA-512"
    assert java["sasl.jaas.config"] == f'{SCRAM} required username="u" password="hunter2";'
    assert not {"sasl.mechanisms", "sasl.username", "sasl.password"} & java.keys()
    assert librdkafka_options(settings) == {"bootstrap.servers": "a:1,b:2", **LOGIN}
    assert kafka_python_options(settings) == {
        "bootstrap_servers": ["a:1", "b:2"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "u",
        "sasl_plain_password": "hunter2",
    }


@pytest.mark.parametrize(
    "jaas",
    [
        f'{PLAIN} required username="u" password="a\\"b\\\\c\\n\\101";',
        f"{PLAIN}  required\n password='a\"b\\\\c\\n\\101'   username=u ;",
    ],
)
def test_a_login_in_javas_spelling_reaches_every_client(jaas: str) -> None:
    settings = kafka({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas})
    assert java_options(settings)["sasl.jaas.config"] == jaas
    assert librdkafka_options(settings)["sasl.username"] == "u"
    assert librdkafka_options(settings)["sasl.password"] == 'a"b\\c\nA'
    assert kafka_python_options(settings)["sasl_plain_password"] == 'a"b\\c\nA'
    assert "sasl.jaas.config" not in librdkafka_options(settings)


# That Kafka's own JaasContext parses such entries too was tried by hand with kafka-clients 3.9.
@given(st.text(min_size=1), st.text(min_size=1))
def test_any_user_name_and_password_survive_the_jaas_entry(username: str, password: str) -> None:
    options = {**LOGIN, "sasl.username": username, "sasl.password": password}
    jaas = java_options(kafka(options))["sasl.jaas.config"]
    assert "\n" not in jaas
    java_login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": jaas}
    login = kafka_python_options(kafka(java_login))
    assert (login["sasl_plain_username"], login["sasl_plain_password"]) == (username, password)


@pytest.mark.parametrize(
    ("missing", "names"),
    [
        ("security.protocol", "kafka.security.protocol = not set: allowed is SASL_SSL"),
        ("sasl.mechanism", "kafka.sasl.mechanism = not set: allowed is with SASL_SSL: PLAIN, SCRAM"),
        ("sasl.username", "kafka.sasl.username = not set: allowed is a text with SCRAM-SHA-512"),
        ("sasl.password", "kafka.sasl.password = not set: allowed is a text with SCRAM-SHA-512"),
    ],
)
def test_half_a_login_is_refused(missing: str, names: str) -> None:
    assert names in refused({key: value for key, value in LOGIN.items() if key != missing})


def test_two_mechanisms_are_refused() -> None:
    assert "the value of sasl.mechanism" in refused({**LOGIN, "sasl.mechanisms": "PLAIN"})


@pytest.mark.parametrize("mechanism", ["AWS_MSK_IAM", "MAGIC"])
def test_a_mechanism_that_not_all_clients_have_is_refused(mechanism: str) -> None:
    allowed = "allowed is PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, GSSAPI"
    assert allowed in refused({**LOGIN, "sasl.mechanism": mechanism})


def test_an_unknown_protocol_is_refused() -> None:
    assert "kafka.security.protocol = 'TLS': allowed is PLAINTEXT, SSL" in refused({"security.protocol": "TLS"})
