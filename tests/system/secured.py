"""A broker that every login of the clients can be tried with, and the [kafka] section of each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from conf.kafka.jaas import LOGIN_MODULES, write_jaas
from streaming.local.broker import EmbeddedBroker
from streaming.local.broker_properties import properties_text
from tests.certificates import STORE_PASSWORD, Authority
from tests.quick_java import quick_broker
from tests.token_server import CLIENT_ID, CLIENT_SECRET, SCOPE, TokenServer, write_key_set

# With characters that are special in TOML, in a JAAS entry and in a shell.
PASSWORD = "unique-pass-7f3a'\\ $x"
MUTUAL_TLS = "mutual TLS"
LOGINS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", MUTUAL_TLS)
_SCRAMS = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
_USER = "delayline"
_OAUTH = "org.apache.kafka.common.security.oauthbearer"


@dataclass(frozen=True)
class Secured:
    """A broker with secured listeners.

    - `sections`: the [kafka] section for each of `LOGINS`; the one for SCRAM-SHA-256 names a file of Java's client
    - `stranger`: the certificate of an authority unknown to the broker
    - `tokens`: the token endpoint
    """

    broker: EmbeddedBroker
    sections: dict[str, dict[str, str]]
    stranger: Path
    tokens: TokenServer

    @property
    def section(self) -> dict[str, str]:
        """The section with mutual TLS and a login by user name and password."""
        return self.sections["SCRAM-SHA-512"]


@contextmanager
def secured_broker(folder: Path) -> Iterator[Secured]:
    """Start the broker and the token endpoint.

    | listener | demands |
    | --- | --- |
    | SASL_SSL | the client's certificate, and PLAIN, SCRAM-SHA-512 or OAUTHBEARER |
    | SASL_PLAINTEXT | SCRAM-SHA-256 |
    | SSL | the client's certificate |
    """
    authority, stranger = Authority(folder / "authority"), Authority(folder / "stranger")
    certificate, key = authority.issue_pem("client")
    keys = folder / "keys.json"
    write_key_set(keys)
    with (
        TokenServer(*authority.issue_pem("tokens"), STORE_PASSWORD, _USER) as tokens,
        pytest.MonkeyPatch.context() as m,
    ):
        # Kafka 4 reads keys from nowhere else.
        m.setenv("JDK_JAVA_OPTIONS", f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys.as_uri()}")
        properties = _properties(authority, keys)
        listeners = ["SASL_SSL", "SASL_PLAINTEXT", "SSL"]
        with quick_broker(folder / "node", properties=properties, heap="512m", secured=listeners) as broker:
            _add_users(broker)
            tls = {
                "ssl.ca.location": str(authority.ca),
                "ssl.certificate.location": str(certificate),
                "ssl.key.location": str(key),
                "ssl.key.password": STORE_PASSWORD,
            }
            user = {"sasl.username": _USER, "sasl.password": PASSWORD}
            client = {
                "sasl.oauthbearer.token.endpoint.url": tokens.url,
                "sasl.oauthbearer.client.id": CLIENT_ID,
                "sasl.oauthbearer.client.secret": CLIENT_SECRET,
                "sasl.oauthbearer.scope": SCOPE,
                "https.ca.location": str(authority.ca),
            }
            sections = {
                "PLAIN": _section(broker, "SASL_SSL", "PLAIN", user | tls),
                "SCRAM-SHA-256": _properties_section(broker, folder / "client.properties"),
                "SCRAM-SHA-512": _section(broker, "SASL_SSL", "SCRAM-SHA-512", user | tls),
                "OAUTHBEARER": _section(broker, "SASL_SSL", "OAUTHBEARER", client | tls),
                MUTUAL_TLS: _section(broker, "SSL", None, tls),
            }
            yield Secured(broker, sections, stranger.ca, tokens)


def _properties(authority: Authority, keys: Path) -> dict[str, str]:
    login = "listener.name.sasl_ssl"
    return {
        "ssl.keystore.location": str(authority.issue("broker")),
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.password": STORE_PASSWORD,
        "ssl.truststore.location": str(authority.ca),
        "ssl.truststore.type": "PEM",
        "listener.name.ssl.ssl.client.auth": "required",
        f"{login}.ssl.client.auth": "required",
        f"{login}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512,OAUTHBEARER",
        f"{login}.plain.sasl.jaas.config": write_jaas(LOGIN_MODULES["PLAIN"], {f"user_{_USER}": PASSWORD}),
        f"{login}.scram-sha-512.sasl.jaas.config": write_jaas(LOGIN_MODULES["SCRAM-SHA-512"], {}),
        f"{login}.oauthbearer.sasl.jaas.config": write_jaas(f"{_OAUTH}.OAuthBearerLoginModule", {}),
        f"{login}.oauthbearer.sasl.server.callback.handler.class": f"{_OAUTH}.OAuthBearerValidatorCallbackHandler",
        f"{login}.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": write_jaas(LOGIN_MODULES["SCRAM-SHA-256"], {}),
    }


def _add_users(broker: EmbeddedBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": "0"})
    # A request may change each user once.
    for mechanism in _SCRAMS:
        user = UserScramCredentialUpsertion(_USER, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
        admin.alter_user_scram_credentials([user])[_USER].result()


def _section(broker: EmbeddedBroker, protocol: str, mechanism: str | None, options: dict[str, str]) -> dict[str, str]:
    login = {} if mechanism is None else {"sasl.mechanism": mechanism}
    return {"bootstrap_servers": broker.secured(protocol), "security.protocol": protocol, **login, **options}


def _properties_section(broker: EmbeddedBroker, file: Path) -> dict[str, str]:
    options = {
        "bootstrap.servers": broker.secured("SASL_PLAINTEXT"),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": write_jaas(LOGIN_MODULES["SCRAM-SHA-256"], {"username": _USER, "password": PASSWORD}),
    }
    # As people write it: the entry over several lines.
    text = properties_text(options).replace(" required ", " required \\\n    ")
    file.write_text("# For Kafka's own tools\n" + text, encoding="latin-1")
    return {"bootstrap_servers": broker.secured("SASL_PLAINTEXT"), "client_properties": str(file)}
