"""The [kafka] section, translated for each of the three Kafka clients.

| client | used for |
| --- | --- |
| Java's | Spark's source |
| librdkafka (confluent-kafka) | deliveries |
| kafka-python | administration and the command line |

They agree on most names, but each spells security in its own way. The section may use any spelling; each client gets
its own. An option that only some clients know goes to those.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from conf.errors import SettingError
from conf.kafka.jaas import LOGIN_MODULES, read_jaas, write_jaas
from conf.kafka.option_names import (
    FILES,
    JAVA_ONLY,
    KAFKA_PYTHON_NUMBERS,
    KAFKA_PYTHON_TEXT,
    KNOWN,
    LIBRDKAFKA_ONLY,
    REFUSED,
    SHARED,
)
from conf.secrets import is_secret
from conf.settings import KafkaSettings

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = (*LOGIN_MODULES, "GSSAPI")
_BESIDE_CA = "a PEM file as ssl.ca.location beside it"
_BESIDE_CERTIFICATE = "PEM files as ssl.certificate.location and ssl.key.location beside it"
# DER of the object identifier 1.2.840.113549.1.5.13 (RFC 8018): the default encryption of a key by openssl.
_PBES2 = bytes.fromhex("06092a864886f70d01050d")
_JAVAS_KEYS = (
    "a key whose encryption Java's client knows: openssl pkcs8 -topk8 -v1 PBE-SHA1-3DES, or -nocrypt; or a PKCS12 file "
    "for Java as ssl.keystore.location beside it, with ssl.keystore.type and ssl.keystore.password"
)


@dataclass(frozen=True)
class _Security:
    """The security options of the section, independent of any client's spelling. None: not set."""

    protocol: str | None
    mechanism: str | None
    username: str | None
    password: str | None = field(repr=False)
    ca: str | None
    certificate: str | None
    key: str | None
    key_password: str | None = field(repr=False)
    checks_host: bool | None


def check_options(kafka: KafkaSettings) -> None:
    """Check that every passed-on key of `kafka` is known and that the three clients can use it. Raises SettingError.

    Reads no file.
    """
    options, _ = _read(kafka)
    _numbers(options)


def java_options(kafka: KafkaSettings) -> dict[str, str]:
    """Return the options of Java's client, for Spark's source, without the prefix `kafka.`. Contains secrets.

    If certificate and key of the client are in two files, both are passed as text: Java accepts only one PEM file.

    Raises:
        SettingError: as `check_options`, and for a file that cannot be read or a PEM file that Java cannot use.
    """
    options, security = _read(kafka)
    _check_files(options)
    java = {name: value for name, value in options.items() if name in SHARED | JAVA_ONLY}
    java |= {"bootstrap.servers": kafka.bootstrap_servers} | _drop_none(
        {
            "security.protocol": security.protocol,
            "sasl.mechanism": security.mechanism,
            "sasl.jaas.config": options.get("sasl.jaas.config") or _jaas(security),
            "ssl.key.password": security.key_password,
        }
    )
    if security.checks_host is not None:
        java["ssl.endpoint.identification.algorithm"] = "https" if security.checks_host else ""
    if security.ca and not {"ssl.truststore.location", "ssl.truststore.certificates"} & java.keys():
        java |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": security.ca}
    if security.certificate and not {"ssl.keystore.location", "ssl.keystore.certificate.chain"} & java.keys():
        java |= _java_keystore(security.certificate, security.key or security.certificate)
    return java


def librdkafka_options(kafka: KafkaSettings) -> dict[str, str]:
    """Return the options of confluent-kafka. Contains secrets.

    Raises:
        SettingError: as `check_options`, and for a file that cannot be read.
    """
    options, security = _read(kafka)
    _check_files(options)
    known = {name: value for name, value in options.items() if name in SHARED | LIBRDKAFKA_ONLY}
    checks_host = {None: None, True: "https", False: "none"}[security.checks_host]
    return known | _drop_none(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "security.protocol": security.protocol,
            "sasl.mechanism": security.mechanism,
            "sasl.username": security.username,
            "sasl.password": security.password,
            "ssl.ca.location": security.ca,
            "ssl.certificate.location": security.certificate,
            "ssl.key.location": security.key,
            "ssl.key.password": security.key_password,
            "ssl.endpoint.identification.algorithm": checks_host,
        }
    )


def kafka_python_options(kafka: KafkaSettings) -> dict[str, Any]:
    """Return keyword arguments that kafka-python's producer, consumer and admin client all accept. Contains secrets.

    Raises:
        SettingError: as `check_options`, and for a file that cannot be read.
    """
    options, security = _read(kafka)
    _check_files(options)
    typed: dict[str, Any] = {"bootstrap_servers": kafka.bootstrap_servers.split(",")}
    for name in KAFKA_PYTHON_TEXT & options.keys():
        typed[name.replace(".", "_")] = options[name]
    typed |= _numbers(options)
    return typed | _drop_none(
        {
            "security_protocol": security.protocol,
            "sasl_mechanism": security.mechanism,
            "sasl_plain_username": security.username,
            "sasl_plain_password": security.password,
            "ssl_cafile": security.ca,
            "ssl_certfile": security.certificate,
            "ssl_keyfile": security.key,
            "ssl_password": security.key_password,
            "ssl_crlfile": options.get("ssl.crl.location"),
            "ssl_check_hostname": security.checks_host,
        }
    )


def _numbers(options: dict[str, str]) -> dict[str, int]:
    typed = {}
    for name in KAFKA_PYTHON_NUMBERS & options.keys():
        try:
            typed[name.replace(".", "_")] = int(options[name])
        except ValueError:
            raise _wrong(name, options[name], "a whole number") from None
    return typed


def _check_files(options: dict[str, str]) -> None:
    """Raise SettingError for a missing file. The clients' own errors are obscure, or they wait for a broker forever."""
    for name in FILES & options.keys():
        try:
            with open(options[name], "rb"):
                pass
        except OSError as error:
            raise _wrong(name, options[name], f"a file that can be read ({error.strerror})") from None


def _drop_none(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _wrong(name: str, value: str | None, allowed: str) -> SettingError:
    shown = "not set" if value is None else "******" if is_secret(name, value) else repr(value)
    return SettingError(f"kafka.{name} = {shown}: allowed is {allowed}")


def _check_names(options: dict[str, str]) -> None:
    wrong = []
    for name in options:
        if name in REFUSED:
            wrong.append(f"kafka.{name}: not allowed here: {REFUSED[name]}")
        elif name not in KNOWN:
            near = get_close_matches(name, [*sorted(KNOWN), "bootstrap_servers"], n=1)
            hint = f"the nearest is kafka.{near[0]}" if near else "no Kafka client knows it"
            wrong.append(f"kafka.{name}: no such setting; {hint}")
    if wrong:
        raise SettingError("\n".join(wrong))


def _read(kafka: KafkaSettings) -> tuple[dict[str, str], _Security]:
    options = kafka.options
    _check_names(options)
    protocol = _one_of(options, "security.protocol", _PROTOCOLS)
    mechanism = _mechanism(options)
    username, password = _login(options)
    if (protocol or "PLAINTEXT").startswith("SASL_"):
        if mechanism is None:
            raise _wrong("sasl.mechanism", None, f"with {protocol}: {', '.join(_MECHANISMS)}")
        if mechanism in LOGIN_MODULES and (username is None or password is None):
            missing = "sasl.username" if username is None else "sasl.password"
            raise _wrong(missing, None, f"a text with {mechanism}, unless sasl.jaas.config has it")
    elif mechanism or username or password:
        # A client would silently ignore the login.
        raise _wrong("security.protocol", protocol, "SASL_SSL or SASL_PLAINTEXT, with sasl options")
    certificate, key = _certificate(options)
    security = _Security(
        protocol, mechanism, username, password, _ca(options), certificate, key,
        options.get("ssl.key.password"), _checks_host(options),
    )  # fmt: skip
    return options, security


def _one_of(options: dict[str, str], name: str, allowed: Sequence[str]) -> str | None:
    value = options.get(name)
    if value is not None and value.upper() not in allowed:
        raise _wrong(name, value, ", ".join(allowed))
    return value and value.upper()


def _mechanism(options: dict[str, str]) -> str | None:
    java, librdkafka = (_one_of(options, name, _MECHANISMS) for name in ("sasl.mechanism", "sasl.mechanisms"))
    if java and librdkafka and java != librdkafka:
        raise _wrong("sasl.mechanisms", librdkafka, f"what sasl.mechanism says: {java}")
    return java or librdkafka


def _login(options: dict[str, str]) -> tuple[str | None, str | None]:
    jaas = options.get("sasl.jaas.config")
    parsed = read_jaas(jaas) if jaas else {}
    username = options.get("sasl.username", parsed.get("username"))
    return username, options.get("sasl.password", parsed.get("password"))


def _jaas(security: _Security) -> str | None:
    if security.mechanism not in LOGIN_MODULES or security.username is None or security.password is None:
        return None
    return write_jaas(security.mechanism, security.username, security.password)


def _ca(options: dict[str, str]) -> str | None:
    if "ssl.ca.location" in options:
        return options["ssl.ca.location"]
    store = options.get("ssl.truststore.location")
    if store is not None and options.get("ssl.truststore.type", "JKS").upper() != "PEM":
        raise _wrong("ssl.truststore.location", store, "a PEM file with ssl.truststore.type = PEM, or " + _BESIDE_CA)
    if store is None and "ssl.truststore.certificates" in options:
        raise SettingError(f"kafka.ssl.truststore.certificates: only Java takes it; allowed is {_BESIDE_CA}")
    return store


def _certificate(options: dict[str, str]) -> tuple[str | None, str | None]:
    """Return the PEM files of the client's certificate and key, which may be one file."""
    certificate, key = options.get("ssl.certificate.location"), options.get("ssl.key.location")
    if certificate is None and key is not None:
        raise _wrong("ssl.certificate.location", None, "the PEM file that belongs to ssl.key.location")
    if certificate is None:
        certificate = options.get("ssl.keystore.location")
        if certificate is not None and options.get("ssl.keystore.type", "JKS").upper() != "PEM":
            allowed = "a PEM file with ssl.keystore.type = PEM, or " + _BESIDE_CERTIFICATE
            raise _wrong("ssl.keystore.location", certificate, allowed)
        if certificate is None and "ssl.keystore.certificate.chain" in options:
            raise SettingError(
                f"kafka.ssl.keystore.certificate.chain: only Java takes it; allowed is {_BESIDE_CERTIFICATE}"
            )
    return certificate, key or certificate


def _java_keystore(certificate: str, key: str) -> dict[str, str]:
    chain, text = _pem("ssl.certificate.location", certificate), _pem("ssl.key.location", key)
    if _has_pbes2_key(text):
        raise _wrong("ssl.key.location", key, _JAVAS_KEYS)
    if certificate == key:
        return {"ssl.keystore.type": "PEM", "ssl.keystore.location": certificate}
    if not re.search(r"BEGIN (ENCRYPTED )?PRIVATE KEY", text):
        raise _wrong("ssl.key.location", key, "a PKCS#8 key, as Java reads no other: openssl pkcs8 -topk8")
    return {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": chain, "ssl.keystore.key": text}


def _pem(name: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(name, path, f"a readable PEM file ({error})") from None


def _has_pbes2_key(pem: str) -> bool:
    key = re.search(r"BEGIN ENCRYPTED PRIVATE KEY-+\s+([\w+/=\s]+)", pem, re.ASCII)
    return key is not None and _PBES2 in b64decode(key[1])


def _checks_host(options: dict[str, str]) -> bool | None:
    if options.get("enable.ssl.certificate.verification", "true").lower() != "true":
        name = "enable.ssl.certificate.verification"
        raise _wrong(name, options[name], "true, since Java always verifies; give the CA as ssl.ca.location")
    algorithm = options.get("ssl.endpoint.identification.algorithm")
    if algorithm is None:
        return None
    if algorithm.lower() not in {"", "none", "https"}:
        raise _wrong("ssl.endpoint.identification.algorithm", algorithm, "https, or none (or empty) for no check")
    return algorithm.lower() == "https"
