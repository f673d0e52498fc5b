"""Which option names and values are secrets, and how they are kept out of what is printed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from pydantic import SecretStr

_SECRET_KEY = re.compile(
    r"passw|passphrase|secret|jaas|token|private|credential|signature|oauthbearer\.config|keystore\.key$|key\.pem"
    r"|(?:access|account|encryption|shared|api|sas)[._-]?key",
    re.IGNORECASE,
)
# Secrets inside other values: user:password@host in a URI, -Djavax.net.ssl.keyStorePassword=..., a PEM key.
_SECRET_VALUE = re.compile(
    r"(?:^|//|,)[^/@,\s]*:[^/@,\s]+@|(?:passw|secret|token|credential)[\w.-]*\s*[=:]|PRIVATE KEY",
    re.IGNORECASE,
)
SECRET_PATTERN = f"(?i){_SECRET_KEY.pattern}|{_SECRET_VALUE.pattern}"
"""The pattern that `is_secret` searches for in keys and values, in a form that Java reads as well."""


def is_secret(key: str, value: object = "") -> bool:
    """Return whether the value of the option `key` must not be printed."""
    return (
        isinstance(value, SecretStr)
        or bool(_SECRET_KEY.search(key))
        or (isinstance(value, str) and bool(_SECRET_VALUE.search(value)))
    )


def without_login(url: str) -> str:
    """Return `url` without its user and password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def without_secrets(text: str, options: Mapping[str, object]) -> str:
    """Return `text`, the output of a client with `options`, with `******` for each value that `is_secret`."""
    for name, value in options.items():
        if value and is_secret(name, value):
            text = text.replace(str(value), "******")
    return text
