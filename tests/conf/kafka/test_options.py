from __future__ import annotations

from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

from conf.errors import SettingError
from conf.kafka import option_names as kafka_names
from conf.kafka.options import check_options, java_options, kafka_python_options, librdkafka_options
from conf.sections import KafkaSettings

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
LOGIN = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "u",
    "sasl.password": "hunter2",
}
KEY = "-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----\n"


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that the tests below name, in a temporary folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("ca.pem", "c.pem", "t.jks", "k.jks"):
        Path(name).touch()


def kafka(options: dict[str, Any] | None = None) -> KafkaSettings:
    return KafkaSettings(bootstrap_servers="a:1,b:2", **(options or {}))


def refused(options: dict[str, Any]) -> str:
    with pytest.raises(SettingError) as raised:
        check_options(kafka(options))
    assert "hunter2" not in str(raised.value)
    return str(raised.value)


def test_without_options_each_client_gets_the_servers_only() -> None:
    assert java_options(kafka()) == {"bootstrap.servers": "a:1,b:2"}
    assert librdkafka_options(kafka()) == {"bootstrap.servers": "a:1,b:2"}
    assert kafka_python_options(kafka()) == {"bootstrap_servers": ["a:1", "b:2"]}


def test_an_option_that_all_clients_know_goes_to_each_in_its_type() -> None:
    settings = kafka({"client.id": "me", "request.timeout.ms": 5000})
    assert java_options(settings)["client.id"] == librdkafka_options(settings)["client.id"] == "me"
    assert java_options(settings)["request.timeout.ms"] == librdkafka_options(settings)["request.timeout.ms"] == "5000"
    assert kafka_python_options(settings) == {
        "bootstrap_servers": ["a:1", "b:2"],
        "client_id": "me",
        "request_timeout_ms": 5000,
    }


def test_an_option_that_one_client_knows_goes_to_that_client_only() -> None:
    settings = kafka({"linger.ms": 5, "default.api.timeout.ms": 7, "max.poll.records": 9})
    assert librdkafka_options(settings) == {"bootstrap.servers": "a:1,b:2", "linger.ms": "5"}
    assert java_options(settings).keys() == {
        "bootstrap.servers",
        "default.api.timeout.ms",
        "max.poll.records",
    }
    assert kafka_python_options(settings).keys() == {"bootstrap_servers"}


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


@pytest.mark.parametrize(
    "options",
    [{"ssl.ca.location": "ca.pem"}, {"ssl.truststore.type": "PEM", "ssl.truststore.location": "ca.pem"}],
)
def test_a_ca_file_in_either_spelling_reaches_every_client(options: dict[str, str]) -> None:
    settings = kafka({"security.protocol": "SSL", **options})
    java = java_options(settings)
    assert (java["ssl.truststore.type"], java["ssl.truststore.location"]) == ("PEM", "ca.pem")
    assert "ssl.ca.location" not in java
    assert librdkafka_options(settings) == {
        "bootstrap.servers": "a:1,b:2",
        "security.protocol": "SSL",
        "ssl.ca.location": "ca.pem",
    }
    assert kafka_python_options(settings)["ssl_cafile"] == "ca.pem"


def test_java_uses_its_own_stores_if_pem_files_are_set_as_well() -> None:
    stores = {
        "ssl.truststore.location": "t.jks",
        "ssl.truststore.password": "x",
        "ssl.keystore.location": "k.jks",
    }
    settings = kafka({**stores, "ssl.ca.location": "ca.pem", "ssl.certificate.location": "c.pem"})
    java = java_options(settings)
    assert stores.items() <= java.items()
    assert not {"ssl.truststore.type", "ssl.keystore.type"} & java.keys()
    assert not {name for name in librdkafka_options(settings) if "store" in name}


@pytest.mark.parametrize(
    "name",
    [
        "ssl.truststore.location",
        "ssl.truststore.certificates",
        "ssl.keystore.location",
        "ssl.keystore.certificate.chain",
    ],
)
def test_an_option_that_only_java_can_read_is_refused_without_pem_files_for_the_others(name: str) -> None:
    assert f"kafka.{name}" in refused({name: "x"})


def test_a_client_certificate_and_key_in_one_file_reach_every_client() -> None:
    for options in (
        {"ssl.certificate.location": "c.pem", "ssl.key.password": "p"},
        {"ssl.keystore.type": "pem", "ssl.keystore.location": "c.pem", "ssl.key.password": "p"},
    ):
        java = java_options(kafka(options))
        assert java["ssl.keystore.location"] == "c.pem"
        assert java["ssl.keystore.type"].upper() == "PEM"
        assert java["ssl.key.password"] == "p"
        librdkafka = librdkafka_options(kafka(options))
        assert librdkafka["ssl.certificate.location"] == librdkafka["ssl.key.location"] == "c.pem"
        python = kafka_python_options(kafka(options))
        assert (python["ssl_certfile"], python["ssl_keyfile"], python["ssl_password"]) == (
            "c.pem",
            "c.pem",
            "p",
        )


def test_a_key_in_a_separate_file_reaches_java_as_text(tmp_path: Path) -> None:
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    certificate.write_text("CHAIN")
    key.write_text(KEY)
    settings = kafka({"ssl.certificate.location": str(certificate), "ssl.key.location": str(key)})
    java = java_options(settings)
    assert java["ssl.keystore.type"] == "PEM"
    assert java["ssl.keystore.certificate.chain"] == "CHAIN"
    assert java["ssl.keystore.key"] == KEY
    assert "ssl.keystore.location" not in java
    assert librdkafka_options(settings)["ssl.key.location"] == str(key)


def test_a_key_file_that_java_cannot_use_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "k.pem"
    settings = kafka({"ssl.certificate.location": str(key), "ssl.key.location": str(tmp_path / "missing.pem")})
    key.write_text("-----BEGIN RSA PRIVATE KEY-----")
    with pytest.raises(SettingError, match=r"kafka\.ssl\.key\.location = .*a readable file"):
        java_options(settings)
    other = tmp_path / "other.pem"
    other.write_text("-----BEGIN RSA PRIVATE KEY-----")
    with pytest.raises(SettingError, match="PKCS#8"):
        java_options(kafka({"ssl.certificate.location": str(key), "ssl.key.location": str(other)}))


@pytest.mark.parametrize("client", [java_options, librdkafka_options, kafka_python_options])
@pytest.mark.parametrize("name", ["ssl.ca.location", "ssl.certificate.location", "ssl.crl.location"])
def test_a_missing_file_is_named_when_a_client_needs_it(client: Any, name: str) -> None:
    settings = kafka({"security.protocol": "SSL", name: "nowhere.pem"})
    check_options(settings)
    with pytest.raises(
        SettingError, match=rf"kafka\.{name} = 'nowhere\.pem': allowed is a readable file .*No such file"
    ):
        client(settings)


@pytest.mark.parametrize("in_one_file", [True, False])
def test_a_key_with_an_encryption_that_java_cannot_read_is_refused(in_one_file: bool) -> None:
    # The beginning of a key from `openssl pkcs8 -topk8`.
    pbes2 = "MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAhTT0RHTnkzZwICCAAw"
    Path("k.pem").write_text(f"-----BEGIN ENCRYPTED PRIVATE KEY-----\n{pbes2}\n-----END ENCRYPTED PRIVATE KEY-----\n")
    options = {"ssl.certificate.location": "k.pem" if in_one_file else "c.pem", "ssl.key.location": "k.pem"}
    with pytest.raises(SettingError, match=r"kafka\.ssl\.key\.location = 'k\.pem': allowed is .*PBE-SHA1-3DES"):
        java_options(kafka(options))
    store = {"ssl.keystore.location": "k.jks", "ssl.keystore.type": "PKCS12"}
    assert store.items() <= java_options(kafka(options | store)).items()


def test_a_key_without_its_certificate_is_refused() -> None:
    assert "kafka.ssl.certificate.location = not set" in refused({"ssl.key.location": "k.pem"})


@pytest.mark.parametrize(
    ("algorithm", "java", "librdkafka", "python"),
    [("", "", "none", False), ("none", "", "none", False), ("https", "https", "https", True)],
)
def test_the_host_name_check_is_set_in_each_clients_form(
    algorithm: str, java: str, librdkafka: str, python: bool
) -> None:
    name = "ssl.endpoint.identification.algorithm"
    settings = kafka({name: algorithm})
    assert java_options(settings)[name] == java
    assert librdkafka_options(settings)[name] == librdkafka
    assert kafka_python_options(settings)["ssl_check_hostname"] is python


def test_another_kind_of_host_name_check_is_refused() -> None:
    assert "allowed is https, or none" in refused({"ssl.endpoint.identification.algorithm": "ldaps"})


def test_certificates_are_always_verified_since_java_cannot_skip_it() -> None:
    assert "allowed is true" in refused({"enable.ssl.certificate.verification": False})
    check_options(kafka({"enable.ssl.certificate.verification": True}))


@pytest.mark.parametrize("name", ["bootstrap.servers", "transactional.id", "group.id", "acks", "ssl.ca.pem"])
def test_an_option_that_delayline_sets_itself_is_refused(name: str) -> None:
    assert f"kafka.{name} is not allowed: " in refused({name: "x"})


def test_a_queue_bound_that_one_message_may_exceed_is_refused() -> None:
    name = "queue.buffering.max.kbytes"
    assert f"kafka.{name} is not allowed: messages above it" in refused({name: 512})


def test_an_option_that_hides_topics_is_refused() -> None:
    assert "kafka.topic.blacklist is not allowed: Delayline could not read" in refused({"topic.blacklist": "^orders"})


def test_unknown_options_are_all_named_with_the_nearest_known_one() -> None:
    text = refused({"clientid": "x", "qqqqqq": "y"})
    assert "kafka.clientid: unknown setting; did you mean kafka.client.id?" in text
    assert "kafka.qqqqqq: unknown setting; no Kafka client knows it" in text


def test_a_numeric_option_of_kafka_python_must_be_a_number() -> None:
    assert "kafka.request.timeout.ms = '5s': allowed is a whole number" in refused({"request.timeout.ms": "5s"})


def test_kafka_python_knows_every_name_it_may_get() -> None:
    names = {n.replace(".", "_") for n in kafka_names.KAFKA_PYTHON_TEXT | kafka_names.KAFKA_PYTHON_NUMBERS}
    security = {
        "security_protocol",
        "sasl_mechanism",
        "sasl_plain_username",
        "sasl_plain_password",
        "ssl_cafile",
    }
    security |= {"ssl_certfile", "ssl_keyfile", "ssl_password", "ssl_crlfile", "ssl_check_hostname"}
    for client in (KafkaProducer, KafkaConsumer, KafkaAdminClient):
        assert names | security <= client.DEFAULT_CONFIG.keys()


@pytest.mark.parametrize("name", sorted(kafka_names.SHARED | kafka_names.LIBRDKAFKA_ONLY))
def test_librdkafka_knows_every_name_it_may_get(name: str) -> None:
    # No property accepts this value: the error differs between an unknown name and a known one with a wrong value.
    try:
        confluent_kafka.Producer({name: "\u2620"})
    except confluent_kafka.KafkaException as error:
        assert "No such configuration property" not in str(error)  # noqa: PT017 - no error is fine too


def test_confluent_kafka_starts_with_a_full_login() -> None:
    options = librdkafka_options(kafka({**LOGIN, "ssl.endpoint.identification.algorithm": "", "client.id": "me"}))
    confluent_kafka.Producer(options)
    confluent_kafka.Consumer({**options, "group.id": "g"})
