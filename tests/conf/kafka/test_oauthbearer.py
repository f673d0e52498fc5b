from __future__ import annotations

import os
from pathlib import Path

import confluent_kafka
import pytest

from conf.errors import SettingError
from conf.kafka.options import check_options, java_options, kafka_python_options, librdkafka_options
from conf.sections import KafkaSettings

URL = "https://login.example.com/token"
SECRET = "hunter2"
JAVA = "org.apache.kafka.common.security.oauthbearer"
# The same login: in librdkafka's names, in the entry of Java's client, and in the names of Java's client from 4.1 on.
LIBRDKAFKA = {
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "me",
    "sasl.oauthbearer.client.secret": SECRET,
    "sasl.oauthbearer.scope": "all",
    "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,identityPoolId=pool-1",
    "https.ca.location": "ca.pem",
}
ENTRY = (
    f'{JAVA}.OAuthBearerLoginModule required clientId="me" clientSecret="{SECRET}" scope="all" '
    'extension_logicalCluster="lkc-1" extension_identityPoolId="pool-1" '
    'ssl.truststore.type="PEM" ssl.truststore.location="ca.pem";'
)
IN_ENTRY = {
    "sasl.jaas.config": ENTRY,
    "sasl.login.callback.handler.class": f"{JAVA}.secured.OAuthBearerLoginCallbackHandler",
}
NEWEST = {
    "sasl.oauthbearer.client.credentials.client.id": "me",
    "sasl.oauthbearer.client.credentials.client.secret": SECRET,
    "sasl.oauthbearer.scope": "all",
    "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,identityPoolId=pool-1",
    "https.ca.location": "ca.pem",
}


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ca.pem").touch()


def kafka(options: dict[str, str], **more: str) -> KafkaSettings:
    login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    return KafkaSettings.model_validate({**login, "sasl.oauthbearer.token.endpoint.url": URL, **options, **more})


@pytest.mark.parametrize("options", [LIBRDKAFKA, IN_ENTRY, NEWEST])
def test_a_login_in_any_spelling_reaches_every_client(options: dict[str, str]) -> None:
    settings = kafka(options)
    shared = {
        "bootstrap.servers": "127.0.0.1:9092",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": URL,
    }
    assert librdkafka_options(settings) == shared | LIBRDKAFKA
    handler = {"sasl.login.callback.handler.class": f"{JAVA}.OAuthBearerLoginCallbackHandler"}
    own = ENTRY.replace("ca.pem", os.path.abspath("ca.pem"))
    assert java_options(settings) == shared | handler | {"sasl.jaas.config": own}
    python = kafka_python_options(settings)
    assert (python["security_protocol"], python["sasl_mechanism"]) == ("SASL_SSL", "OAUTHBEARER")
    assert python["sasl_oauth_token_provider"].extensions() == {"logicalCluster": "lkc-1", "identityPoolId": "pool-1"}
    assert SECRET not in repr(settings)


def test_librdkafka_can_fetch_tokens() -> None:
    # Only if it is built with curl.
    # An empty file is not a certificate.
    options = librdkafka_options(kafka({key: LIBRDKAFKA[key] for key in LIBRDKAFKA if key != "https.ca.location"}))
    confluent_kafka.Producer({**options, "log_level": "0"})


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"sasl.oauthbearer.token.endpoint.url": None}, "kafka.sasl.oauthbearer.token.endpoint.url = not set"),
        ({"sasl.oauthbearer.token.endpoint.url": "file:///token"}, "the http or https URL of the token endpoint"),
        ({"sasl.oauthbearer.client.id": None}, "kafka.sasl.oauthbearer.client.id = not set: allowed is a text"),
        ({"sasl.oauthbearer.client.secret": None}, "kafka.sasl.oauthbearer.client.secret = not set"),
        ({"sasl.oauthbearer.method": "default"}, "kafka.sasl.oauthbearer.method = 'default': allowed is oidc"),
        ({"sasl.oauthbearer.extensions": "a"}, "kafka.sasl.oauthbearer.extensions = 'a': allowed is name=value"),
        (
            {"sasl.jaas.config": 'x required clientId="you";'},
            "kafka.sasl.oauthbearer.client.id differs from clientId in sasl.jaas.config",
        ),
        (
            {"sasl.jaas.config": 'x required ssl.truststore.location="t.jks";', "https.ca.location": None},
            "kafka.sasl.jaas.config: ssl.truststore.location is not a PEM file",
        ),
        (
            {"sasl.login.callback.handler.class": "software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler"},
            "the other clients do not have this class",
        ),
    ],
)
def test_what_a_client_could_not_use_is_refused(wrong: dict[str, str | None], words: str) -> None:
    options = {"sasl.oauthbearer.token.endpoint.url": URL, **LIBRDKAFKA, **wrong}
    settings = {key: value for key, value in options.items() if value is not None}
    login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    with pytest.raises(SettingError) as raised:
        check_options(KafkaSettings.model_validate({**login, **settings}))
    assert words in str(raised.value)
    assert SECRET not in str(raised.value)
