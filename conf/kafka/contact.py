"""First contact with secured brokers: why they refuse a client, which most errors of the clients leave out.

Uses librdkafka, the only client that distinguishes a refused login, an untrusted certificate and a broker that is down.
"""

from __future__ import annotations

import logging
import re
import time
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from conf.errors import BrokerUnreachable, CertificateRefused, LoginRefused, SettingError
from conf.kafka.client_log import client_log
from conf.kafka.oauthbearer import MECHANISM
from conf.kafka.options import librdkafka_options
from conf.sections import KafkaSettings

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 10.0
# After one broker has refused, another one of the cluster may still answer.
_PATIENCE_S = 1.0
_POLL_S = 0.05
# A broker that refuses the client's certificate breaks the connection; only the TLS alert has the reason.
_ALERT = re.compile(r"alert .*(?:certificate|unknown ca)", re.IGNORECASE)


def check_contact(kafka: KafkaSettings) -> None:
    """Return when a broker has accepted the certificates and the login of `kafka`; at once if it has neither.

    Raises:
        LoginRefused, CertificateRefused, BrokerUnreachable: within `CONNECT_TIMEOUT_S`.
        SettingError: the client cannot use a file or an option.
    """
    options = librdkafka_options(kafka)
    if options.get("security.protocol", "PLAINTEXT") == "PLAINTEXT":
        return
    servers = kafka.bootstrap_servers
    problems: list[KafkaError] = []
    try:
        own: dict[str, Any] = {"log_level": "0", "error_cb": problems.append}
        client = AdminClient({**options, **own}, logger=client_log(log))
        _wait(
            client,
            client.describe_cluster(request_timeout=CONNECT_TIMEOUT_S),
            problems,
            servers,
            options.get("sasl.mechanism"),
        )
    except KafkaException as problem:
        if problem.args[0].code() == KafkaError._INVALID_ARG:
            raise SettingError(f"[kafka]: {problem.args[0].str()}") from problem
        reasons = (
            "; ".join(dict.fromkeys(_short(each) for each in problems if _is_informative(each)))
            or problem.args[0].str()
        )
        raise BrokerUnreachable(
            f"no broker answers at {servers} ({reasons}). Check that it runs, kafka.bootstrap_servers and "
            "kafka.security.protocol"
        ) from problem


def _wait(
    client: AdminClient, answer: Future[Any], problems: list[KafkaError], servers: str, mechanism: str | None
) -> None:
    refusal, since_s = None, 0.0
    while not answer.done():
        # Calls `error_cb`, which appends to `problems`.
        client.poll(_POLL_S)
        if refusal is None:
            refusal = next((found for problem in problems if (found := _refusal(problem, servers, mechanism))), None)
            since_s = time.monotonic()
        elif time.monotonic() - since_s > _PATIENCE_S:
            raise refusal
    answer.result()


def _refusal(problem: KafkaError, servers: str, mechanism: str | None) -> BrokerUnreachable | None:
    reason = _short(problem)
    if problem.code() == KafkaError._AUTHENTICATION:
        token = "oauthbearer.token.endpoint.url", "oauthbearer.client.id", "oauthbearer.client.secret"
        keys = token if mechanism == MECHANISM else ("mechanism", "username", "password")
        return LoginRefused(f"{servers}: {reason}. Check {', '.join(f'kafka.sasl.{key}' for key in keys)}")
    if problem.code() == KafkaError._SSL or _ALERT.search(reason):
        return CertificateRefused(
            f"{servers}: {reason}. Check kafka.ssl.ca.location (the CA that signed the broker's "
            "certificate), the host names in kafka.bootstrap_servers, and kafka.ssl.certificate.location if "
            "the broker requires a client certificate"
        )
    return None


def _is_informative(problem: KafkaError) -> bool:
    return problem.code() != KafkaError._ALL_BROKERS_DOWN


def _short(problem: KafkaError) -> str:
    """Drop the parts that differ between tries: the connection and the times."""
    return re.sub(r"^\S+://\S+: | \(after \d+ms in state .*\)$", "", problem.str())
