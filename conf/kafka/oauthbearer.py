"""OAUTHBEARER with client credentials (RFC 6749, section 4.4): what each client needs to fetch a token.

Java's client reads most of it from the JAAS entry, librdkafka from options of its own. kafka-python has no such
options: `conf.kafka.tokens` fetches the token for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from conf.errors import SettingError
from conf.kafka.jaas import write_jaas
from conf.kafka.tls import file_for_java
from conf.kafka.wrong_option import wrong_option

MECHANISM = "OAUTHBEARER"
_HANDLER = "sasl.login.callback.handler.class"
_JAVA_PACKAGE = "org.apache.kafka.common.security.oauthbearer"
_JAVA_HANDLER = f"{_JAVA_PACKAGE}.OAuthBearerLoginCallbackHandler"
_HANDLERS = (_JAVA_HANDLER, f"{_JAVA_PACKAGE}.secured.OAuthBearerLoginCallbackHandler")
_LOGIN_MODULE = f"{_JAVA_PACKAGE}.OAuthBearerLoginModule"
_URL = "sasl.oauthbearer.token.endpoint.url"
# The prefix of a SASL extension in a JAAS entry.
_EXTENSION = "extension_"
# The options by their name in a JAAS entry: first the name in librdkafka, then in Java's client from 4.1 on.
_NAMES = {
    "clientId": ("sasl.oauthbearer.client.id", "sasl.oauthbearer.client.credentials.client.id"),
    "clientSecret": ("sasl.oauthbearer.client.secret", "sasl.oauthbearer.client.credentials.client.secret"),
    "scope": ("sasl.oauthbearer.scope",),
}


@dataclass(frozen=True)
class ClientCredentials:
    """How a token is fetched.

    - `url`: the token endpoint, http or https
    - `extensions`: SASL extensions that go to the broker with the token, as name and value
    - `ca`: a PEM file of the authorities that sign the endpoint's certificate; None for the system's authorities
    """

    url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None = None
    extensions: tuple[tuple[str, str], ...] = ()
    ca: str | None = None


def read_client_credentials(options: Mapping[str, str], jaas: Mapping[str, str]) -> ClientCredentials:
    """Return what `options` of the section and the entry `jaas` in it say. Raises SettingError."""
    handler, method = options.get(_HANDLER, _JAVA_HANDLER), options.get("sasl.oauthbearer.method", "oidc")
    if handler not in _HANDLERS:
        raise wrong_option(
            _HANDLER, handler, f"{_JAVA_HANDLER} with {MECHANISM}: the other clients do not have this class"
        )
    if method.lower() != "oidc":
        raise wrong_option("sasl.oauthbearer.method", method, "oidc")
    url = options.get(_URL)
    if url is None or not url.lower().startswith(("https://", "http://")):
        raise wrong_option(_URL, url, f"with {MECHANISM}: the http or https URL of the token endpoint")
    client_id, secret, scope = (_one(options, jaas, name) for name in _NAMES)
    for name, value in (("clientId", client_id), ("clientSecret", secret)):
        if value is None:
            raise wrong_option(_NAMES[name][0], None, f"a text with {MECHANISM}, unless sasl.jaas.config has {name}")
    assert client_id is not None
    assert secret is not None
    return ClientCredentials(url, client_id, secret, scope, _extensions(options, jaas), _ca(options, jaas))


def java_login(credentials: ClientCredentials) -> dict[str, str]:
    """Return the options of Java's client. Contains the secret."""
    entry = {"clientId": credentials.client_id, "clientSecret": credentials.client_secret}
    if credentials.scope is not None:
        entry["scope"] = credentials.scope
    entry |= {_EXTENSION + name: value for name, value in credentials.extensions}
    if credentials.ca is not None:
        entry |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": file_for_java(credentials.ca)}
    return {
        _URL: credentials.url,
        _HANDLER: _JAVA_HANDLER,
        "sasl.jaas.config": write_jaas(_LOGIN_MODULE, entry),
    }


def librdkafka_login(credentials: ClientCredentials) -> dict[str, str]:
    """Return the options of librdkafka. Contains the secret."""
    login = {
        "sasl.oauthbearer.method": "oidc",
        _URL: credentials.url,
        "sasl.oauthbearer.client.id": credentials.client_id,
        "sasl.oauthbearer.client.secret": credentials.client_secret,
        "sasl.oauthbearer.scope": credentials.scope,
        "sasl.oauthbearer.extensions": ",".join("=".join(pair) for pair in credentials.extensions) or None,
        "https.ca.location": credentials.ca,
    }
    return {name: value for name, value in login.items() if value is not None}


def _one(options: Mapping[str, str], jaas: Mapping[str, str], name: str) -> str | None:
    """Return the value that has several names. Raises SettingError if two of them differ."""
    found = {option: options[option] for option in _NAMES[name] if option in options}
    if name in jaas:
        found["sasl.jaas.config"] = jaas[name]
    if len(set(found.values())) > 1:
        raise SettingError(f"kafka.{next(iter(found))} differs from {name} in {', '.join([*found][1:])}")
    return next(iter(found.values()), None)


def _extensions(options: Mapping[str, str], jaas: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    name = "sasl.oauthbearer.extensions"
    if name not in options:
        return tuple((key.removeprefix(_EXTENSION), jaas[key]) for key in jaas if key.startswith(_EXTENSION))
    pairs = [pair.partition("=") for pair in options[name].split(",")]
    if not all(key and equals for key, equals, _ in pairs):
        raise wrong_option(name, options[name], "name=value, or several separated by commas")
    return tuple((key.strip(), value) for key, _, value in pairs)


def _ca(options: Mapping[str, str], jaas: Mapping[str, str]) -> str | None:
    store = jaas.get("ssl.truststore.location")
    if "https.ca.location" in options or store is None:
        return options.get("https.ca.location")
    if jaas.get("ssl.truststore.type", "JKS").upper() != "PEM":
        raise SettingError(
            "kafka.sasl.jaas.config: ssl.truststore.location is not a PEM file. Use a PEM file with "
            "ssl.truststore.type=PEM, or add a PEM file as https.ca.location"
        )
    return store
