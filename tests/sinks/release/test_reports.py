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
    assert "the login of [kafka] lacks the right Write on orders/3" in str(problem)


@pytest.mark.parametrize(
    "code", [KafkaError.KAFKA_STORAGE_ERROR, KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError._MSG_TIMED_OUT]
)
def test_an_error_of_the_broker_or_the_producer_keeps_its_text_and_adds_the_partition(code: int) -> None:
    problem = _error(code)
    assert isinstance(problem, KafkaException)
    error = problem.args[0]
    assert (error.code(), error.str()) == (code, f"orders/3: {KafkaError(code).str()}")


@pytest.mark.parametrize("code", [KafkaError.POLICY_VIOLATION, KafkaError.UNKNOWN, 9_999])
def test_any_other_error_of_a_broker_is_the_topics_refusal_and_has_its_name(code: int) -> None:
    problem = _error(code)
    assert isinstance(problem, Refused)
    assert (problem.topic, problem.error.code) == ("orders", "record-refused")
    assert KafkaError(code).name() in str(problem)


def test_a_failed_transaction_is_not_blamed_on_the_next_record() -> None:
    assert "orders" not in str(_error(KafkaError._STATE))


@pytest.mark.parametrize("code", [KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP])
def test_a_refused_record_has_the_brokers_text_and_where_to_look(code: int) -> None:
    problem = _error(code)
    assert isinstance(problem, Refused)
    assert (problem.topic, problem.error.code) == ("orders", "record-refused")
    assert f"orders/3 refuses the record: {KafkaError(code).str()}. Check whether" in str(problem)


class _Report:
    """The client's report on a record that the broker has."""

    def __init__(self, partition: int, offset: int | None) -> None:
        self._partition, self._offset = partition, offset

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int | None:
        return self._offset


def test_the_offsets_of_a_transaction_are_the_first_and_the_last_of_each_partition() -> None:
    reports = DeliveryReports()
    for partition, offset in ((0, 7), (1, 3), (0, 9), (0, 8)):
        reports.reported(None, _Report(partition, offset))
    assert reports.offsets == {("orders", 0): (7, 9), ("orders", 1): (3, 3)}
    reports.begin()
    assert reports.offsets == {}


@pytest.mark.parametrize("offsets", [(None, 7), (7, None), (7, None, 9), (None, None)])
def test_a_partition_with_a_record_of_unknown_offset_reports_no_offsets(
    offsets: tuple[int | None, ...],
) -> None:
    reports = DeliveryReports()
    for offset in offsets:
        reports.reported(None, _Report(0, offset))
    reports.reported(None, _Report(1, 4))
    assert reports.offsets == {("orders", 1): (4, 4)}
