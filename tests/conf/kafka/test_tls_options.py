"""Options of TLS: files of certificates and keys, stores of Java, and the check of host names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from conf.errors import SettingError
from conf.kafka.options import check_options, java_options, kafka_python_options, librdkafka_options
from tests.conf.kafka.option_tables import kafka, refused

KEY = "-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----\n"


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that the tests below name, in a temporary folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("ca.pem", "c.pem", "t.jks", "k.jks"):
        Path(name).touch()


@pytest.mark.parametrize(
    "options",
    [{"ssl.ca.location": "ca.pem"}, {"ssl.truststore.type": "PEM", "ssl.truststore.location": "ca.pem"}],
)
def test_a_ca_file_in_either_spelling_reaches_every_client(options: dict[str, str]) -> None:
    settings = kafka({"security.protocol": "SSL", **options})
    java = java_options(settings)
    assert (java["ssl.truststore.type"], java["ssl.truststore.location"]) == ("PEM", os.path.abspath("ca.pem"))
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
    assert java["ssl.truststore.password"] == "x"
    for name in ("ssl.truststore.location", "ssl.keystore.location"):
        # Java has another working folder.
        assert java[name] == os.path.abspath(stores[name])
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
        assert java["ssl.keystore.location"] == os.path.abspath("c.pem")
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
    store = {"ssl.keystore.location": os.path.abspath("k.jks"), "ssl.keystore.type": "PKCS12"}
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
