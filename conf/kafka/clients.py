"""Opening clients of librdkafka. It checks its options, and their relations, only when a client is opened.

Each client gets a `logger`, wherever it is opened. Without one, librdkafka writes lines of its own format to standard
error. The log lines arrive when the client is polled.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from conf.errors import SettingError
from conf.kafka.client_log import client_log
from conf.kafka.option_names import ALIASES
from conf.kafka.options import librdkafka_options
from conf.secrets import without_secrets
from conf.settings import Settings

log = logging.getLogger(__name__)

Client = TypeVar("Client")

# Each producer has this after the options of [kafka]: a topic limits the size of its records, and a lower limit of the
# client would stop one that its topic takes.
NO_SIZE_LIMIT = {"message.max.bytes": "1000000000"}
# The least time for a producer to get its transactional id, however short its transactions are: the first one on a
# new broker takes seconds.
OPEN_TIMEOUT_S = 10.0
# For how long a broker that has just started may say that a topic or a partition does not exist.
STARTING_S = 3.0


def make_client(kind: Callable[[dict[str, Any]], Client], options: Mapping[str, Any], because: str = "") -> Client:
    """Open a client of `kind`. Raises SettingError, with librdkafka's text and `because`, for options it refuses."""
    try:
        return kind({**options, "logger": client_log(log)})
    except KafkaException as problem:
        refusal = _as_written(problem.args[0].str(), options)
        # `from None`: the cause has the text with its secrets.
        raise SettingError(f"[kafka]: {refusal}{because}") from None


@contextmanager
def admin_client(options: Mapping[str, Any], logger: logging.Logger) -> Iterator[AdminClient]:
    """Yield an admin client with librdkafka's `options`. Its lines go to the `client_log` of `logger` at the end."""
    client = AdminClient(dict(options), logger=client_log(logger))
    try:
        yield client
    finally:
        client.poll(0)


def check_clients(settings: Settings) -> None:
    """Check that librdkafka accepts the options of [kafka] together with those that Delayline sets.

    Opens a client of each kind and drops it at once, without a broker. A wrong option is then reported before the
    start, even while the broker is down. Raises SettingError.
    """
    options = librdkafka_options(settings.kafka) | {"log_level": "0"}
    make_client(Consumer, {**options, "group.id": "unused"})
    producers: tuple[tuple[str, int, dict[str, str]], ...] = (
        ("lease.period", settings.lease.period, {"linger.ms": "0"}),
        ("release.transaction_timeout", settings.release.transaction_timeout, {}),
    )
    for key, timeout_ms, own in producers:
        timeout = {"transactional.id": "unused", "transaction.timeout.ms": str(timeout_ms)}
        because = f" (Delayline's producers use transaction.timeout.ms={timeout_ms}, from {key})"
        make_client(Producer, options | NO_SIZE_LIMIT | timeout | own, because)


@contextmanager
def fatal_error_raised() -> Iterator[None]:
    """Raise a producer's fatal error, such as that it is fenced, as the KafkaException that it is.

    The client sets that exception while it polls, and goes on to call `on_delivery`: Python then raises a SystemError
    in its place, since a function was called while an exception was set.
    """
    try:
        yield
    except SystemError as problem:
        cause: BaseException | None = problem
        while cause is not None and not isinstance(cause, KafkaException):
            cause = cause.__cause__
        raise cause or problem from None


def _as_written(refusal: str, options: Mapping[str, Any]) -> str:
    """Return the text of librdkafka with the option names of the section, and without its secrets."""
    refusal = without_secrets(refusal, options)
    for names in ALIASES:
        for written, alias in (names, reversed(names)):
            if written in options and alias not in options:
                refusal = re.sub(rf"""(?<=["`]){re.escape(alias)}(?=["`])""", written, refusal)
    return refusal
