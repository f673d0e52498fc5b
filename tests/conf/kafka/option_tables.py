"""Kafka options as a table of the settings has them, and the error of those that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from conf.errors import SettingError
from conf.kafka.options import check_options
from conf.sections import KafkaSettings

LOGIN = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "u",
    "sasl.password": "hunter2",
}


def kafka(options: dict[str, Any] | None = None) -> KafkaSettings:
    """Return settings of two brokers with these options."""
    return KafkaSettings(bootstrap_servers="a:1,b:2", **(options or {}))


def refused(options: dict[str, Any]) -> str:
    """Return the error of options that are refused, which shows no password."""
    with pytest.raises(SettingError) as raised:
        check_options(kafka(options))
    assert "hunter2" not in str(raised.value)
    return str(raised.value)
