"""What becomes of a broker's answer: an error that names the place, and what to do."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from conf.errors import TopicMismatch
from sinks.delivery.reports import DeliveryReports, Refused


def _error(code: int) -> Exception:
    return DeliveryReports().error(KafkaError(code), "orders", 3)


def test_a_right_that_is_lacking_is_named_with_the_partition() -> None:
    problem = _error(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    assert isinstance(problem, TopicMismatch)
    assert "write to orders/3: the login of [kafka] needs the right Write there" in str(problem)


@pytest.mark.parametrize("code", [KafkaError.POLICY_VIOLATION, KafkaError.KAFKA_STORAGE_ERROR])
def test_any_other_refusal_is_told_as_it_is_with_the_partition(code: int) -> None:
    problem = _error(code)
    assert isinstance(problem, KafkaException)
    told = problem.args[0]
    assert (told.code(), told.str()) == (code, f"orders/3: {KafkaError(code).str()}")


def test_a_failed_transaction_is_not_laid_to_the_record_that_comes_next() -> None:
    assert "orders" not in str(_error(KafkaError._STATE))


@pytest.mark.parametrize("code", [KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP])
def test_a_record_that_is_refused_as_it_is_has_the_brokers_words_and_where_to_look(code: int) -> None:
    problem = _error(code)
    assert isinstance(problem, Refused)
    assert (problem.topic, problem.error.code) == ("orders", "record-refused")
    assert f"orders/3 does not take the record: {KafkaError(code).str()}. See whether" in str(problem)
