"""Records by other schedulers' own clients, and the values that their consumers read: `captured/README.md`."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sources.intake.accept import accept
from tests.messages import PARTITIONS, headers, records, some_batch_settings

_RETRIES = ("orders-retry-10000", "orders-retry-30000")
_CAPTURED = Path(__file__).parent / "captured"


def captured(project: str) -> list[Any]:
    """Return the records of a project as parameters of a test. In each row, `reads` has the values read from it."""
    rows = [json.loads(line) for line in (_CAPTURED / f"{project}.jsonl").read_text().splitlines()]
    return [pytest.param(_decoded(row), id=f"{row['library']}, {row['case']}") for row in rows]


def _decoded(row: dict[str, Any]) -> dict[str, Any]:
    pairs = [(name, _bytes(value)) for name, value in row["headers"]]
    return {**row, "key": _bytes(row["key"]), "value": _bytes(row["value"]), "headers": headers(*pairs)}


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


def accepted(preset: str, row: dict[str, Any]) -> pa.Table:
    settings = some_batch_settings(
        presets={row["topic"]: (preset,)},
        allowed_outputs=("orders", *_RETRIES),
        partitions=PARTITIONS | dict.fromkeys(_RETRIES, 3),
    )
    # As if it were read at once.
    return accept(records([row]), settings, row["timestamp_ms"]).messages


@pytest.mark.parametrize("row", captured("spring-kafka"))
def test_a_retry_of_spring_is_due_when_springs_own_listener_would_go_on(row: dict[str, Any]) -> None:
    (message,) = accepted("spring-retry", row).to_pylist()
    assert (message["error_code"], message["deliver_at_ms"]) == (None, row["reads"]["deliver_at_ms"])
    # Spring's own retry topic, where the recoverer published to Delayline's input topic instead.
    assert message["output_topic"] == (row["reads"]["topic"] if row["topic"] == "retries" else "delayline-out")
    assert (message["key"], message["value"], message["headers"]) == (row["key"], row["value"], row["headers"])


@pytest.mark.parametrize("row", captured("spring-kafka"))
def test_a_retry_of_spring_that_keeps_the_delay_of_the_delivery_before_waits_for_that(row: dict[str, Any]) -> None:
    kept = {**row, "headers": [*headers(("deliver-after", b"1h")), *row["headers"]]}
    (message,) = accepted("spring-retry", kept).to_pylist()
    assert message["deliver_at_ms"] == row["timestamp_ms"] + 3_600_000 != row["reads"]["deliver_at_ms"]


@pytest.mark.parametrize("row", captured("nats"))
def test_a_schedule_of_nats_is_due_when_it_is_on_the_server(row: dict[str, Any]) -> None:
    (message,) = accepted("nats", row).to_pylist()
    if row["reads"]["deliver_at_ms"] is None:
        # The server refuses it too, or would deliver more than once, or another message.
        assert message["error_code"] == "bad-schedule"
        return
    assert (message["error_code"], message["deliver_at_ms"]) == (None, row["reads"]["deliver_at_ms"])
    assert (message["output_topic"], message["headers"]) == (row["reads"]["target"], row["headers"])


@pytest.mark.parametrize("row", captured("rocketmq"))
def test_a_message_of_rocketmq_is_due_when_its_broker_would_deliver_it(row: dict[str, Any]) -> None:
    (message,) = accepted("rocketmq", row).to_pylist()
    # The broker delivers a message at once if it is due before it is published.
    assert max(message["deliver_at_ms"], row["timestamp_ms"]) == row["reads"]["deliver_at_ms"]
    assert message["output_topic"] == (row["reads"]["target"] or "delayline-out")
    assert (message["error_code"], message["headers"]) == (None, row["headers"])


@pytest.mark.parametrize("row", captured("activemq"))
def test_a_message_of_activemq_is_due_when_its_scheduler_would_deliver_it(row: dict[str, Any]) -> None:
    (message,) = accepted("activemq", row).to_pylist()
    if row["reads"]["deliver_at_ms"] is None:
        # It would be delivered more than once.
        assert message["error_code"] == "bad-schedule"
        return
    assert (message["error_code"], message["deliver_at_ms"]) == (None, row["reads"]["deliver_at_ms"])
    assert message["headers"] == row["headers"]


@pytest.mark.parametrize("row", captured("rabbitmq"))
def test_a_delay_by_spring_amqp_is_that_of_the_delayed_exchange(row: dict[str, Any]) -> None:
    (message,) = accepted("rabbitmq", row).to_pylist()
    assert (message["error_code"], message["deliver_at_ms"]) == (None, row["reads"]["deliver_at_ms"])
    assert message["headers"] == row["headers"]
