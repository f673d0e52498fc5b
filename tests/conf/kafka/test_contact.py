"""First contact without a broker. `tests/system/test_security.py` has a broker that refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.errors import BrokerUnreachable, SettingError
from conf.kafka.contact import check_contact
from conf.sections import KafkaSettings

NOWHERE = "127.0.0.1:1"


def kafka(options: dict[str, str]) -> KafkaSettings:
    return KafkaSettings(bootstrap_servers=NOWHERE, **options)  # type: ignore[arg-type]


def test_brokers_without_security_are_not_contacted() -> None:
    check_contact(kafka({}))


def test_an_unreachable_secured_broker_is_named_with_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conf.kafka.contact.CONNECT_TIMEOUT_S", 1.0)
    with pytest.raises(BrokerUnreachable, match=rf"no broker answers at {NOWHERE} \(Connect to .*refused"):
        check_contact(kafka({"security.protocol": "SSL"}))


def test_a_file_without_a_certificate_is_a_wrong_setting(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("nothing")
    with pytest.raises(SettingError, match=r"\[kafka\]: .*ssl\.ca\.location"):
        check_contact(kafka({"security.protocol": "SSL", "ssl.ca.location": str(file)}))
