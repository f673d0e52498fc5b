"""Options that librdkafka refuses are reported before a client is needed, and without a broker."""

from __future__ import annotations

import subprocess
import sys

import pytest
from confluent_kafka import KafkaError, KafkaException

from conf.errors import SettingError
from conf.kafka.clients import check_clients, fatal_error_raised
from conf.load import load_settings
from conf.settings import Settings


def settings(*overrides: str) -> Settings:
    return load_settings(None, ["kafka.bootstrap_servers=127.0.0.1:1", *overrides], environ={})


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["kafka.linger.ms=abc"], r'"linger\.ms"'),
        (["kafka.queue.buffering.max.ms=abc"], r'"queue\.buffering\.max\.ms"'),
        (["kafka.linger.ms=-1"], r"linger\.ms"),
        (["kafka.compression.type=zip"], r'"zip" .*"compression\.type"'),
        (["kafka.max.in.flight=10"], r"`max\.in\.flight` must be set <= 5"),
        (
            ["kafka.max.in.flight.requests.per.connection=10"],
            r"`max\.in\.flight\.requests\.per\.connection` must be",
        ),
        (["kafka.retries=0"], r"`retries` must be set >= 1"),
        # Transactions of the lease last 10 s, and transactions of deliveries a minute.
        (["kafka.socket.timeout.ms=30000"], r"`socket\.timeout\.ms` must be .*=10000, from lease\.period"),
        (["kafka.message.timeout.ms=30000"], r"`message\.timeout\.ms` must be .*=10000, from lease\.period"),
        (["kafka.socket.timeout.ms=90000", "lease.period=2m"], "=60000, from release.transaction_timeout"),
        # Only a consumer refuses these.
        (["kafka.session.timeout.ms=400000"], r"`max\.poll\.interval\.ms`.*`session\.timeout\.ms`"),
    ],
)
def test_options_that_a_client_refuses_are_wrong_settings(options: list[str], names: str) -> None:
    with pytest.raises(SettingError, match=rf"\[kafka\]: .*{names}"):
        check_clients(settings(*options))


def test_a_value_that_looks_like_a_secret_is_not_repeated() -> None:
    with pytest.raises(SettingError, match=r'"\*{6}" .*"compression\.type"') as raised:
        check_clients(settings("kafka.compression.type=user:hunter2@host"))
    assert "hunter2" not in str(raised.value)
    # A traceback would show the cause, which has the secret in clear.
    assert raised.value.__suppress_context__


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["kafka.socket.timeout.ms=10000", "kafka.linger.ms=50", "kafka.compression.type=zstd", "kafka.max.in.flight=1"],
        # The lease's producer does not linger.
        ["kafka.linger.ms=5000", "lease.period=2s"],
        ["kafka.socket.timeout.ms=30000", "lease.period=30s"],
        ["kafka.log_level=7"],
    ],
)
def test_valid_options_pass_and_a_missing_broker_prints_nothing(options: list[str]) -> None:
    # In a process of its own: clients of earlier tests may still look for their brokers, and say so.
    check = f"import tests.conf.kafka.test_clients as t; t.check_clients(t.settings(*{options!r}))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_a_producers_fatal_error_is_raised_in_place_of_pythons_complaint_about_it() -> None:
    fatal = KafkaException(KafkaError(KafkaError._FENCED))

    @fatal_error_raised()
    def polls(cause: BaseException | None) -> None:
        try:
            # As with two callbacks that are called while the exception is set.
            raise SystemError("returned a result with an exception set") from cause
        except SystemError as first:
            raise SystemError("returned a result with an exception set") from first

    with pytest.raises(KafkaException) as raised:
        polls(fatal)
    assert raised.value is fatal
    with pytest.raises(SystemError, match="with an exception set"):
        polls(None)
