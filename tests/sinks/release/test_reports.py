"""The errors that a broker's answers become: they name the partition and the remedy."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from conf.errors import RightMissing
from sinks.release.reports import DeliveryReports, Refused, Unwritable


def _error(code: int) -> Exception:
    return DeliveryReports().error(KafkaError(code), "orders", 3)


def test_a_missing_permission_is_named_with_the_partition() -> None:
    problem = _error(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    assert isinstance(problem, Unwritable)
    assert isinstance(problem.error, RightMissing)
    assert "write to orders/3: the login of [kafka] needs the right Write there" in str(problem)


@pytest.mark.parametrize("code", [KafkaError.POLICY_VIOLATION, KafkaError.KAFKA_STORAGE_ERROR])
def test_any_other_refusal_keeps_its_text_and_adds_the_partition(code: int) -> None:
    problem = _error(code)
    assert isinstance(problem, KafkaException)
    error = problem.args[0]
    assert (error.code(), error.str()) == (code, f"orders/3: {KafkaError(code).str()}")


def test_a_failed_transaction_is_not_blamed_on_the_next_record() -> None:
    assert "orders" not in str(_error(KafkaError._STATE))


@pytest.mark.parametrize("code", [KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP])
def test_a_refused_record_has_the_brokers_text_and_where_to_look(code: int) -> None:
    problem = _error(code)
    assert isinstance(problem, Refused)
    assert (problem.topic, problem.error.code) == ("orders", "record-refused")
    assert f"orders/3 does not take the record: {KafkaError(code).str()}. See whether" in str(problem)
