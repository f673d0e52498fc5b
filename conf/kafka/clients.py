"""Making clients of librdkafka, which looks at its options no earlier, and compares them with each other then."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaException, Producer

from conf.errors import SettingError
from conf.kafka.option_names import ALIASES
from conf.kafka.options import librdkafka_options
from conf.settings import Settings, without_secrets

Client = TypeVar("Client")

# How long at the least a producer is given for its transactional id, however short its transactions are: a broker's
# first takes seconds.
OPEN_TIMEOUT_S = 10.0


def make_client(kind: Callable[[dict[str, Any]], Client], options: Mapping[str, Any], because: str = "") -> Client:
    """Return a client of `kind`. Raises SettingError, in librdkafka's words and `because`, for options it refuses."""
    try:
        return kind(dict(options))
    except KafkaException as problem:
        said = _as_written(problem.args[0].str(), options)
        # Without its cause, which has the text as it was.
        raise SettingError(f"[kafka]: {said}{because}") from None


def check_clients(settings: Settings) -> None:
    """Raise SettingError unless librdkafka takes the options of [kafka] beside those that Delayline sets.

    By a client of each sort, which is dropped at once and asks no broker: what would be told in the middle of a start
    otherwise, or for a broker that is away.
    """
    options = librdkafka_options(settings.kafka) | {"log_level": "0"}
    make_client(Consumer, {**options, "group.id": "unused"})
    producers: tuple[tuple[str, int, dict[str, str]], ...] = (
        ("lease.period", settings.lease.period, {"linger.ms": "0"}),
        ("delivery.transaction_timeout", settings.delivery.transaction_timeout, {}),
    )
    for key, timeout_ms, own in producers:
        timeout = {"transactional.id": "unused", "transaction.timeout.ms": str(timeout_ms)}
        because = f" (a producer of Delayline's has transaction.timeout.ms={timeout_ms}, by {key})"
        make_client(Producer, options | timeout | own, because)


def _as_written(said: str, options: Mapping[str, Any]) -> str:
    """Return what librdkafka says with the names that the section has, and without its secrets."""
    said = without_secrets(said, options)
    for names in ALIASES:
        for written, told in (names, reversed(names)):
            if written in options and told not in options:
                said = re.sub(rf"""(?<=["`]){re.escape(told)}(?=["`])""", written, said)
    return said
