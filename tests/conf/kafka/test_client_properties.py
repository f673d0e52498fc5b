from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession

from conf.errors import SettingError
from conf.kafka.client_properties import MAX_BYTES, parse_properties
from conf.kafka.options import java_options, kafka_python_options, librdkafka_options
from conf.load import load_settings
from conf.settings import Settings
from streaming.local.broker_properties import properties_text

SECRET = "hunter2"
# As a vendor of Kafka hands it to users.
USUAL = f"""\
# Required connection configs for Kafka producer, consumer, and admin
bootstrap.servers=broker-1.example.com:9092, broker-2.example.com:9092
security.protocol=SASL_SSL
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
    username='anna' \\
    password='{SECRET}';
sasl.mechanism=PLAIN

# Required for correctness in Apache Kafka clients prior to 2.6
client.dns.lookup=use_all_dns_ips
session.timeout.ms=45000
# Best practice for Kafka producer to prevent data loss
acks=all
isolation.level=read_committed
client.id=anna-1
"""


@pytest.fixture
def load(tmp_path: Path) -> Any:
    """A function that loads settings with a properties file of this content, or with the file as it is."""
    file = tmp_path / "client.properties"

    def loaded(content: str | bytes | None, *overrides: str) -> Settings:
        if content is not None:
            file.write_bytes(content if isinstance(content, bytes) else content.encode("latin-1"))
        return load_settings(None, [f"kafka.client_properties={file}", *overrides], environ={})

    return loaded


def refused(load: Any, content: str | bytes | None, *overrides: str) -> str:
    with pytest.raises(SettingError) as raised:
        load(content, *overrides)
    assert SECRET not in "".join(traceback.format_exception(raised.value))
    return str(raised.value)


def test_a_usual_file_configures_every_client(load: Any) -> None:
    kafka = load(USUAL).kafka
    assert SECRET not in repr(kafka)
    servers = "broker-1.example.com:9092,broker-2.example.com:9092"
    shared = {"bootstrap.servers": servers, "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
    shared |= {"client.id": "anna-1", "session.timeout.ms": "45000", "client.dns.lookup": "use_all_dns_ips"}
    assert librdkafka_options(kafka) == shared | {"sasl.username": "anna", "sasl.password": SECRET}
    jaas = "org.apache.kafka.common.security.plain.PlainLoginModule required username='anna' password='hunter2';"
    assert java_options(kafka) == shared | {"sasl.jaas.config": jaas}
    python = kafka_python_options(kafka)
    assert python["bootstrap_servers"] == servers.split(",")
    assert (python["sasl_plain_username"], python["sasl_plain_password"]) == ("anna", SECRET)


def test_keys_of_the_section_stand_beside_the_file_and_may_repeat_it(load: Any) -> None:
    same = ["kafka.bootstrap_servers=a:1", "kafka.security.protocol=SSL", "kafka.client.id=me"]
    settings = load("bootstrap.servers=a:1\nsecurity.protocol=SSL\nclient.rack=r", *same)
    assert settings.kafka.bootstrap_servers == "a:1"
    assert settings.kafka.options == {"security.protocol": "SSL", "client.id": "me", "client.rack": "r"}


def test_without_a_file_nothing_is_read() -> None:
    assert load_settings(None, ["kafka.client_properties="], environ={}).kafka.options == {}


@pytest.mark.parametrize(
    ("content", "overrides", "words"),
    [
        (
            "a=1\n\nclientid=x",
            (),
            "kafka.clientid: unknown setting; did you mean kafka.client.id? (from {file}, line 3)",
        ),
        (
            "group.id=g",
            (),
            "kafka.group.id is not allowed: Delayline sets this option itself. Remove it (from {file}, line 1)",
        ),
        ("acks=1", (), "kafka.acks is not allowed: Delayline sets this option itself. Remove it (from {file}, line 1)"),
        (
            "isolation.level=read_uncommitted",
            (),
            "kafka.isolation.level is not allowed: Delayline sets this option itself. Remove it (from {file}, line 1)",
        ),
        ("config.providers=file", (), "(from {file}, line 1)"),
        (
            "\nsasl.mechanism=AWS_MSK_IAM",
            (),
            "kafka.sasl.mechanism = 'AWS_MSK_IAM': allowed is PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, GSSAPI "
            "(from {file}, line 2)",
        ),
        (
            "ssl.truststore.location=/t.jks",
            (),
            "kafka.ssl.truststore.location = '/t.jks': allowed is a PEM file with ssl.truststore.type = PEM, or a PEM "
            "file in ssl.ca.location in addition (from {file}, line 1)",
        ),
        (
            "client.id=b",
            ("kafka.client.id=c",),
            "kafka.client.id differs from the client.id of {file}, line 1. Keep one of them",
        ),
        (
            "bootstrap.servers=a:1",
            ("kafka.bootstrap_servers=b:1",),
            "kafka.bootstrap_servers differs from the bootstrap.servers of {file}, line 1. Keep one of them",
        ),
        (
            f"sasl.jaas.config=x password='{SECRET}';",
            ("kafka.sasl.jaas.config=y",),
            "kafka.sasl.jaas.config differs from the sasl.jaas.config of {file}, line 1. Keep one of them",
        ),
        (
            "bootstrap.servers=a",
            (),
            "kafka.bootstrap_servers = 'a': allowed is host:port, or several separated by commas (from {file}, line 1)",
        ),
        (
            f"x=1\nsasl.password={SECRET}\nsasl.password={SECRET}",
            (),
            "{file}, line 3: sasl.password is already set in line 2. Keep one of them",
        ),
        ("a=b\nc=\\u20a", (), "{file}, line 2: \\u must be followed by four hexadecimal digits"),
    ],
)
def test_what_cannot_be_used_is_refused_with_key_file_and_line(
    load: Any, tmp_path: Path, content: str, overrides: tuple[str, ...], words: str
) -> None:
    assert words.format(file=tmp_path / "client.properties") in refused(load, content, *overrides)


@pytest.mark.parametrize("content", [b"a=\0", "a=é".encode("utf-16"), "\ufeffa=b".encode()])
def test_a_file_in_another_encoding_is_refused(load: Any, content: bytes) -> None:
    assert "allowed is Latin-1 text" in refused(load, content)


def test_a_missing_file_a_folder_and_a_huge_file_are_refused(load: Any, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    begin = f"kafka.client_properties = {str(file)!r}: allowed is a "
    assert f"{begin}readable file (No such file or directory)" in refused(load, None)
    file.mkdir()
    assert f"{begin}readable file (Is a directory)" in refused(load, None)
    file.rmdir()
    assert f"{begin}file of up to 1048576 bytes" in refused(load, b"#" * (MAX_BYTES + 1))
    assert load(b"#" * MAX_BYTES).kafka.options == {}


def test_a_file_that_may_not_be_read_is_refused(load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root, as whom containers run tests, may read every file.
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(SettingError, match=r"a readable file \(Permission denied\)"):
        load(None)


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_what_is_written_is_read_again(properties: dict[str, str]) -> None:
    # A lone surrogate is not a character.
    clean = {_valid(key): _valid(value) for key, value in properties.items()}
    read = parse_properties(properties_text(clean), "f")
    assert {key: found.value for key, found in read.items()} == clean


def _valid(text: str) -> str:
    return text.encode("utf-16", "replace").decode("utf-16")


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(text="\\\r")
@example(text="\\\r#")
@example(text="a\\\n#b\\\n\\\n!c")
@given(text=st.text(alphabet="ab=:#!u0\\ \t\f\r\n\xe9", max_size=30))
def test_a_file_is_read_as_java_reads_it(spark: SparkSession, text: str) -> None:
    jvm: Any = spark._jvm
    properties = jvm.java.util.Properties()
    java: dict[str, str] | None
    try:
        properties.load(jvm.java.io.StringReader(text))
        java = dict(properties)
    except IllegalArgumentException:
        # An escape that Java cannot read.
        java = None
    try:
        read = {key: found.value for key, found in parse_properties(text, "f").items()}
    except SettingError as refusal:
        if "already" not in str(refusal):
            assert java is None
        return
    assert _named(read) == (None if java is None else _named(java))


def _named(properties: dict[str, str]) -> dict[str, str]:
    """Leave out an empty value without a key: a backslash at the file's end is one, or none before a CR with LF."""
    return {key: value for key, value in properties.items() if key or value}
