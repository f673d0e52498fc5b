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

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from conf.errors import SettingError
from conf.kafka import oauthbearer
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
from conf.kafka.tls import ca_file, checks_host, client_certificate, file_for_java, java_keystore
from conf.kafka.wrong_option import wrong_option
from conf.sections import KafkaSettings

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = (*LOGIN_MODULES, oauthbearer.MECHANISM, "GSSAPI")


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
    # With OAUTHBEARER, and only then.
    tokens: oauthbearer.ClientCredentials | None


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
            "ssl.key.password": security.key_password,
        }
    )
    java |= _java_login(options, security)
    if security.checks_host is not None:
        java["ssl.endpoint.identification.algorithm"] = "https" if security.checks_host else ""
    if security.ca and not {"ssl.truststore.location", "ssl.truststore.certificates"} & java.keys():
        java |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": security.ca}
    if security.certificate and not {"ssl.keystore.location", "ssl.keystore.certificate.chain"} & java.keys():
        java |= java_keystore(security.certificate, security.key or security.certificate)
    return java | {name: file_for_java(java[name]) for name in FILES & java.keys()}


def librdkafka_options(kafka: KafkaSettings) -> dict[str, str]:
    """Return the options of confluent-kafka. Contains secrets.

    Raises:
        SettingError: as `check_options`, and for a file that cannot be read.
    """
    options, security = _read(kafka)
    _check_files(options)
    known = {name: value for name, value in options.items() if name in SHARED | LIBRDKAFKA_ONLY}
    host_check = {None: None, True: "https", False: "none"}[security.checks_host]
    return (
        known
        | _drop_none(
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
                "ssl.endpoint.identification.algorithm": host_check,
            }
        )
        | (oauthbearer.librdkafka_login(security.tokens) if security.tokens else {})
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
    if security.tokens is not None:
        # Brings kafka-python, which most readers of the settings do without.
        from conf.kafka.tokens import FetchedTokens

        typed["sasl_oauth_token_provider"] = FetchedTokens(security.tokens)
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
            raise wrong_option(name, options[name], "a whole number") from None
    return typed


def _check_files(options: dict[str, str]) -> None:
    """Raise SettingError for a missing file. The clients' own errors are obscure, or they wait for a broker forever."""
    for name in FILES & options.keys():
        try:
            with open(options[name], "rb"):
                pass
        except OSError as error:
            raise wrong_option(name, options[name], f"a readable file ({error.strerror})") from None


def _drop_none(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _check_names(options: dict[str, str]) -> None:
    wrong = []
    for name in options:
        if name in REFUSED:
            wrong.append(f"kafka.{name} is not allowed: {REFUSED[name]}")
        elif name not in KNOWN:
            near = get_close_matches(name, [*sorted(KNOWN), "bootstrap_servers"], n=1)
            hint = f"did you mean kafka.{near[0]}?" if near else "no Kafka client knows it"
            wrong.append(f"kafka.{name}: unknown setting; {hint}")
    if wrong:
        raise SettingError("\n".join(wrong))


def _read(kafka: KafkaSettings) -> tuple[dict[str, str], _Security]:
    options = kafka.options
    _check_names(options)
    protocol = _one_of(options, "security.protocol", _PROTOCOLS)
    mechanism = _mechanism(options)
    jaas = read_jaas(options.get("sasl.jaas.config", ""))
    username, password = _login(options, jaas)
    tokens = None
    if (protocol or "PLAINTEXT").startswith("SASL_"):
        if mechanism is None:
            raise wrong_option("sasl.mechanism", None, f"with {protocol}: {', '.join(_MECHANISMS)}")
        if mechanism == oauthbearer.MECHANISM:
            tokens = oauthbearer.read_client_credentials(options, jaas)
        if mechanism in LOGIN_MODULES and (username is None or password is None):
            missing = "sasl.username" if username is None else "sasl.password"
            raise wrong_option(missing, None, f"a text with {mechanism}, unless sasl.jaas.config has it")
    elif mechanism or username or password:
        # A client would silently ignore the login.
        raise wrong_option("security.protocol", protocol, "SASL_SSL or SASL_PLAINTEXT, with sasl options")
    certificate, key = client_certificate(options)
    security = _Security(
        protocol, mechanism, username, password, ca_file(options), certificate, key,
        options.get("ssl.key.password"), checks_host(options), tokens,
    )  # fmt: skip
    return options, security


def _one_of(options: dict[str, str], name: str, allowed: Sequence[str]) -> str | None:
    value = options.get(name)
    if value is not None and value.upper() not in allowed:
        raise wrong_option(name, value, ", ".join(allowed))
    return value and value.upper()


def _mechanism(options: dict[str, str]) -> str | None:
    java, librdkafka = (_one_of(options, name, _MECHANISMS) for name in ("sasl.mechanism", "sasl.mechanisms"))
    if java and librdkafka and java != librdkafka:
        raise wrong_option("sasl.mechanisms", librdkafka, f"the value of sasl.mechanism: {java}")
    return java or librdkafka


def _login(options: dict[str, str], jaas: dict[str, str]) -> tuple[str | None, str | None]:
    username = options.get("sasl.username", jaas.get("username"))
    return username, options.get("sasl.password", jaas.get("password"))


def _java_login(options: dict[str, str], security: _Security) -> dict[str, str]:
    if security.tokens is not None:
        return oauthbearer.java_login(security.tokens)
    if jaas := options.get("sasl.jaas.config"):
        return {"sasl.jaas.config": jaas}
    if security.mechanism not in LOGIN_MODULES or security.username is None or security.password is None:
        return {}
    login = {"username": security.username, "password": security.password}
    return {"sasl.jaas.config": write_jaas(LOGIN_MODULES[security.mechanism], login)}
