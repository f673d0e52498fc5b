"""Fetching tokens for kafka-python, which has no client of a token endpoint. Java's and librdkafka fetch their own."""

from __future__ import annotations

import json
import ssl
import threading
import time
from base64 import b64encode
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from kafka.errors import KafkaConnectionError
from kafka.net.sasl.oauth import AbstractTokenProvider

from conf.kafka.oauthbearer import ClientCredentials

_TIMEOUT_S = 10.0
_MAX_ANSWER_BYTES = 1024 * 1024
# The share of its life after which a token is renewed, as in the other clients.
_RENEWAL = 0.8


class FetchedTokens(AbstractTokenProvider):  # type: ignore[misc]
    """The token of one client, fetched at its first connection and again before it expires."""

    def __init__(self, credentials: ClientCredentials) -> None:
        super().__init__()
        self._credentials = credentials
        self._lock = threading.Lock()
        self._token = ""
        self._renewal_s = 0.0

    def token(self) -> str:
        """Return a token that is not expired. Raises OSError, KafkaConnectionError."""
        with self._lock:
            if not self._token or time.monotonic() >= self._renewal_s:
                asked_s = time.monotonic()
                answer = _fetch(self._credentials)
                self._token = answer["access_token"]
                self._renewal_s = asked_s + _RENEWAL * float(answer.get("expires_in", 0))
            return self._token

    def extensions(self) -> dict[str, str]:
        """Return the SASL extensions that go with the token."""
        return dict(self._credentials.extensions)


def _fetch(credentials: ClientCredentials) -> dict[str, Any]:
    form = {"grant_type": "client_credentials"} | ({"scope": credentials.scope} if credentials.scope else {})
    # As Java's client and librdkafka send them: neither encodes the two for a form first.
    login = b64encode(f"{credentials.client_id}:{credentials.client_secret}".encode()).decode()
    headers = {"Authorization": f"Basic {login}", "Accept": "application/json"}
    request = Request(credentials.url, urlencode(form).encode(), headers)  # noqa: S310 - the section allows http(s) only
    tls = ssl.create_default_context(cafile=credentials.ca) if credentials.url.lower().startswith("https:") else None
    with urlopen(request, timeout=_TIMEOUT_S, context=tls) as response:  # noqa: S310
        text = response.read(_MAX_ANSWER_BYTES)
    try:
        answer = json.loads(text)
        if isinstance(answer["access_token"], str):
            return dict(answer)
    except (ValueError, LookupError, TypeError):
        pass  # The error below says the same.
    # Without the text, which may hold a token.
    raise KafkaConnectionError(f"the token endpoint {credentials.url} answered without an access_token")
